"""Executions: commands in a sandbox, their outcome and their logs. They belong to the sandbox, never to a connection."""
