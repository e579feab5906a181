"""Logs of a sandbox: what its executions wrote and what happened to it, in the order of time."""
