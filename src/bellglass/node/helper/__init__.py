"""The helper: the only part that runs as root. It is started with the node and ends with it.

It takes a handful of typed operations (operations.py) over an inherited socketpair. Requests hold ids and numbers;
every path and argv is built here, from the helper's own start parameters.
"""
