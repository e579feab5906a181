"""Sandboxes of the node that the database does not know: kept apart, shown to the operator, removed in the end."""
