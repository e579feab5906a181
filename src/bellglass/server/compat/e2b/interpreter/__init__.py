"""E2B's code interpreter: port 49999 of a sandbox, over the native contexts."""
