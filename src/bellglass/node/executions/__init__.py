"""Executions: commands in a sandbox, their outcome, their logs. They belong to the sandbox, never to a connection."""
