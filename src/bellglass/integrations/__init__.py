"""Bellglass for other frameworks, by their own plug-in contracts. Each is an extra of its own."""
