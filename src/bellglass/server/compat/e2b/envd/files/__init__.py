"""/files: contents of files over plain HTTP."""
