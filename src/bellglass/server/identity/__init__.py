"""Sandboxes that call the API themselves: who calls is the node's word, and what they may do is a short list."""
