"""`~.` and `~~` of `bellglass shell`: only at the start of a line, cut at any place."""

from __future__ import annotations

import pytest

from bellglass.cli._tty import Escapes


@pytest.mark.parametrize(
    ("typed", "passed", "leaves"),
    [
        (b"ls\r", b"ls\r", False), (b"~.", b"", True), (b"ls\r~.", b"ls\r", True), (b"a~.", b"a~.", False),
        (b"~~x~.", b"~x~.", False), (b"~x", b"~x", False), (b"\r~~\r~.rest", b"\r~\r", True),
        (b"\n~\r~.", b"\n~\r", True),
    ],
)  # fmt: skip
def test_escapes(typed: bytes, passed: bytes, leaves: bool) -> None:
    assert Escapes().feed(typed) == (passed, leaves)
    one_by_one, out, left = Escapes(), b"", False
    for byte in typed:
        more, left = one_by_one.feed(bytes([byte]))
        out += more
        if left:
            break
    assert (out, left) == (passed, leaves)
