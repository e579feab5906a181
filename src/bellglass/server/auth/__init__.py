"""Who calls: keys of projects and the admin key."""
