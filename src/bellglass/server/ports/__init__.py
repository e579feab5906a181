"""Published ports: who may see a port of a sandbox from outside, under which URL and until when."""
