"""What every route shares: request context, strict bodies, the one error shape, and how a route is described."""
