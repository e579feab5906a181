"""File operations: done inside by the sandbox's own kernel with the user's rights; the node only moves bytes."""
