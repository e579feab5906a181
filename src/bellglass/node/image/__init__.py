"""Templates: recipes that describe a root file system, and the folders built from them."""
