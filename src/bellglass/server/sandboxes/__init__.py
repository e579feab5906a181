"""Sandboxes: creating, finding, changing and deleting them."""
