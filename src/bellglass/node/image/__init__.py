"""Templates: recipes that describe a root file system, and building them into folders that sandboxes start from."""
