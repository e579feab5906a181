"""Where sandboxes run: the seam to the nodes. The first engine is `local`, one node over a unix socket."""
