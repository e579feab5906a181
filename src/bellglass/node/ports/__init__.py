"""Connections to the ports of a sandbox, made by its own agent: no packet path leads into it."""
