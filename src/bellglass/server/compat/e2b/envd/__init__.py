"""What E2B's clients expect to find inside a sandbox at port 49983: commands, files and a health probe."""
