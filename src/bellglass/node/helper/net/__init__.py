"""The sandboxes' networks: two namespaces each, a wall around the daemons that speak for them."""
