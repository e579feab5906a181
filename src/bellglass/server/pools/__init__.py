"""Warm pools: what should be, in the database. The node, which is told, keeps the machines."""
