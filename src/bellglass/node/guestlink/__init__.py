"""The node's end of the stream to a sandbox's guest agent. Whoever speaks there is taken for an attacker."""
