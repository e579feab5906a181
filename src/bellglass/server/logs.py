"""Logs: one JSON object a line on stderr, from structlog and from the standard library alike."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress

from bellglass.spare_memory import without

with without("rich"):  # for logs on a terminal
    import structlog


def set_up(level: int = logging.INFO) -> None:
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=_stderr_logger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)


class _StderrLogger:
    """One write(2) a line. `name` is what `get_logger` was called with."""

    def __init__(self, name: str) -> None:
        self.name = name

    def msg(self, line: str) -> None:
        with suppress(OSError):  # a full disk must not end what is told of
            os.write(2, line.encode("utf-8", "backslashreplace") + b"\n")

    debug = info = warning = error = critical = exception = msg


def _stderr_logger(*arguments: str) -> _StderrLogger:
    return _StderrLogger(arguments[0] if arguments else "")
