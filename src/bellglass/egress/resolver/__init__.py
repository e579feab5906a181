"""The resolver: names inside a sandbox become synthetic addresses that only its own proxy understands.

It answers and never asks: no query of a sandbox leaves the host, whatever it says. Single thread, one epoll loop.
"""
