"""The logs of the egress daemons: standard error, one JSON object a line."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from typing import Any


def log(event: str, **more: Any) -> None:
    """A full disk must not end what is told of."""
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    with suppress(OSError):
        os.write(2, (json.dumps({"at": at, "event": event, **more}) + "\n").encode())
