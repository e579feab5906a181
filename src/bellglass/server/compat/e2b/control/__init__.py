"""E2B's control plane: sandboxes, templates, and typed refusals of what is not here."""
