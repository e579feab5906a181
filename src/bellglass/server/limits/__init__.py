"""What a project may have at once, and how much of it it has."""
