"""Events: what happened, written in the transaction of the change itself, read in order, shipped to collectors."""
