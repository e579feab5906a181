"""`python -m bellglass.egress.resolver`: see `egress/daemon.py`."""

import sys

from bellglass.egress import confine, daemon
from bellglass.egress.resolver import app

if __name__ == "__main__":
    sys.exit(daemon.main("resolver", confine.RESOLVER, app.serve, names=True))
