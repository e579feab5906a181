"""What tests need and operators can run too: the leak check, a real installation for a while, the conformance suite.

Nothing else in the package imports from here.
"""
