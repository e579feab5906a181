"""Kernels behind lines of JSON, for code that is run cell by cell. This runs inside sandboxes."""
