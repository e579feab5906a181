"""The proxy: accepts what sandboxes dial, decides, looks the name up itself, checks the floor, dials, relays."""
