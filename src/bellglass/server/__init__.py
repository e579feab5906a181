"""The control plane: HTTP API, database, and the link to the node. Linux only; the client never imports it."""
