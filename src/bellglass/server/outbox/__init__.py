"""The outbox: a record of every change of state, written in the change's own transaction.

Events, audit and webhooks are to read it.
"""
