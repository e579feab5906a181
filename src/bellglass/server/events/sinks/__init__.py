"""Shipping events off the box: the table is the spool, and each sink has a cursor in it."""
