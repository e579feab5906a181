"""process.Process: commands and terminals, which are executions of ours."""
