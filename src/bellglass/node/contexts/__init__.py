"""Interpreter contexts: a kernel host as an execution for each, the lines that it writes, and runs of code in it."""
