"""Files of a sandbox: streamed both ways, resolved by the sandbox's own kernel."""
