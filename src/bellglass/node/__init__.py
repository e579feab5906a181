"""The node: the daemon that holds sandboxes. It never imports the server, nor the server it."""
