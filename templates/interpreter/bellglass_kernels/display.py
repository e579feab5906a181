"""What a result is shown as: by MIME type, with `chart` and `data` beside, each within a size."""

import base64
import re
from typing import Any

MAX_VALUE_BYTES = 16 * 1024 * 1024
"""Of one representation of one result. A longer one is left out and named in `dropped`."""
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def shown(data: dict[str, Any]) -> tuple[dict[str, Any], dict[str, int]]:
    """What goes out of a bundle of MIME types, and the sizes of what doesn't."""
    found: dict[str, Any] = {}
    dropped: dict[str, int] = {}
    for mime, value in data.items():
        if isinstance(value, bytes):
            value = base64.b64encode(value).decode()
        elif isinstance(value, str):
            value = clean(value)
        if isinstance(value, str) and len(value) > MAX_VALUE_BYTES:
            dropped[mime] = len(value)
        else:
            found[mime] = value
    return found, dropped


def clean(text: str) -> str:
    """Without halves of characters, which no encoding of the world takes."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def plain(text: str) -> str:
    """Without colours."""
    return clean(_ESCAPES.sub("", text))


def cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def install(shell: Any) -> None:
    pass
