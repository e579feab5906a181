"""Builds recipes: those of Debian's packages, and those whose steps run in a sandbox of another template."""
