"""What `bellglass up` does on a box: prepare the data folder, start the daemons, keep them running, stop them.

The supervisor and the helper are the only parts that keep root; everything that reads bytes from clients or sandboxes
runs under a uid of its own.
"""
