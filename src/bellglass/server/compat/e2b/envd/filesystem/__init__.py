"""filesystem.Filesystem: what the tree of a sandbox holds, and what changes in it."""
