"""multipart/form-data as it comes: parts, their bytes, and their ends, none of it kept."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bellglass.errors import InvalidRequest

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartParser

MAX_HEAD_BYTES = 32 * 1024
"""Of one part; a path is at most 4096 bytes."""


@dataclass(frozen=True, slots=True)
class Part:
    """`filename` is a path, as it was sent."""

    name: str
    filename: str | None


class Form:
    """Raises InvalidRequest for a content type without a boundary."""

    def __init__(self, content_type: str) -> None:
        from python_multipart.multipart import parse_options_header  # only uploads of forms need it

        _, options = parse_options_header(content_type)
        boundary = options.get(b"boundary", b"")
        if not 1 <= len(boundary) <= 70:
            raise _broken("its content type has no boundary of 1 to 70 characters")
        self._boundary = boundary
        self._events: list[Part | bytes | None] = []
        self._field = b""
        self._value = b""
        self._headers: dict[bytes, bytes] = {}
        self._head_bytes = 0
        self._ended = False

    async def read(self, body: AsyncIterator[bytes]) -> AsyncIterator[Part | bytes | None]:
        """Each Part, then its bytes, then None for its end. Raises InvalidRequest."""
        from python_multipart.exceptions import MultipartParseError

        parser = self._parser()
        async for chunk in body:
            if self._ended:
                break  # what follows the last boundary means nothing
            try:
                parser.write(chunk)
            except MultipartParseError as error:
                raise _broken(str(error)) from None
            events, self._events = self._events, []
            for event in events:
                yield event
        if not self._ended:
            raise _broken("it is cut off")

    def _parser(self) -> MultipartParser:
        from python_multipart.multipart import MultipartParser

        return MultipartParser(
            self._boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._on_field,
                "on_header_value": self._on_value,
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers,
                "on_part_data": self._on_data,
                "on_part_end": lambda: self._events.append(None),
                "on_end": self._on_end,
            },
        )

    def _begin(self) -> None:
        self._headers, self._field, self._value, self._head_bytes = {}, b"", b"", 0

    def _on_field(self, data: bytes, start: int, end: int) -> None:
        self._field += self._head(data[start:end])

    def _on_value(self, data: bytes, start: int, end: int) -> None:
        self._value += self._head(data[start:end])

    def _head(self, piece: bytes) -> bytes:
        self._head_bytes += len(piece)
        if self._head_bytes > MAX_HEAD_BYTES:
            raise _broken(f"the head of a part is over {MAX_HEAD_BYTES} bytes")
        return piece

    def _on_header_end(self) -> None:
        self._headers[self._field.strip().lower()] = self._value.strip()
        self._field = self._value = b""

    def _on_headers(self) -> None:
        self._events.append(_part(self._headers.get(b"content-disposition", b"")))

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        self._events.append(data[start:end])

    def _on_end(self) -> None:
        self._ended = True


def _part(disposition: bytes) -> Part:
    """Names are UTF-8 as they are, with %22 for a quote and %0D, %0A for line breaks, as browsers write them."""
    fields: dict[str, str] = {}
    for name, value in _parameters(disposition):
        try:
            text = value.decode("utf-8")
        except UnicodeDecodeError:
            raise _broken(f"the name of a part is not UTF-8: {value[:80]!r}") from None
        fields[name] = text.replace("%22", '"').replace("%0D", "\r").replace("%0A", "\n")
    return Part(fields.get("name", ""), fields.get("filename"))


def _parameters(disposition: bytes) -> list[tuple[str, bytes]]:
    """`name="value"` and `name=value` behind the first semicolon. A backslash stands for itself but before a quote or
    another: paths hold them seldom, and older clients escape with them."""
    found, rest = [], disposition.partition(b";")[2]
    while rest := rest.lstrip(b" \t;"):
        name, _, rest = rest.partition(b"=")
        if rest.startswith(b'"'):
            value, at = bytearray(), 1
            while at < len(rest) and rest[at : at + 1] != b'"':
                if rest[at : at + 1] == b"\\" and rest[at + 1 : at + 2] in (b'"', b"\\"):
                    at += 1
                value += rest[at : at + 1]
                at += 1
            rest = rest[at + 1 :]
            found.append((name.strip().lower().decode("latin-1"), bytes(value)))
        else:
            value_, _, rest = rest.partition(b";")
            found.append((name.strip().lower().decode("latin-1"), value_.strip()))
    return found


def _broken(why: str) -> InvalidRequest:
    return InvalidRequest(f"the form can't be read: {why}", details={"field": "body"})
