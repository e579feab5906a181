"""The listener of published ports: it reads heads, asks who may, and relays bytes. Never the API's origin."""
