"""The server about itself: health, the node, the API's description."""
