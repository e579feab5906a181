"""Frames and codecs: what goes over the streams between client, server, node and guest agent. No IO in here."""
