"""Templates that sandboxes can be made from."""
