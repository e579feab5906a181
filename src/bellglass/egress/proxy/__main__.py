"""`python -m bellglass.egress.proxy`: see `egress/daemon.py`."""

import sys

from bellglass.egress import confine, daemon
from bellglass.egress.proxy import app

if __name__ == "__main__":
    sys.exit(daemon.main("proxy", confine.PROXY, app.serve))
