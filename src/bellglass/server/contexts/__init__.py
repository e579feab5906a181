"""Interpreter contexts: checked here, kept and run by the node, their output passed through."""
