"""What a sandbox may reach: judging a wish, changing it on one that runs, and bringing the node to what was said."""
