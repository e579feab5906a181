"""The node's side of the network: what sandboxes may reach, and handing it to the processes that see to it."""
