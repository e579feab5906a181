"""What a sandbox uses, over time."""
