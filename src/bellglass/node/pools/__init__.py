"""Warm pools: machines made ahead, which a create takes over instead of starting one.

What a pool should be is the server's to say (`pool.apply`); what it has is in this node's journal, so members survive a
restart of either. A member belongs to no project and has run nothing; once claimed it is a sandbox like any other and
never comes back.
"""
