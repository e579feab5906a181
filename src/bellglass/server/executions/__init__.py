"""Executions: checked here, run and kept by the node, their output passed through."""
