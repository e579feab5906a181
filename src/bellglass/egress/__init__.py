"""The egress boundary's own processes: the proxy, the only way out of a sandbox, and the resolver that it believes.

Standard library only and lean: each is its own process under its own uid, and all that it reads is an attacker's.
`policy.py` and `floor.py` are pure and used by server and node as well; `control.py` is how the node speaks to both.
"""
