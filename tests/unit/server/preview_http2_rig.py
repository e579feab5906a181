"""A visitor and a program that speak HTTP/2 by hand."""

from __future__ import annotations

import socket
from collections.abc import Callable

import h2.config
import h2.connection
import h2.events


class Raw:
    """A visitor that speaks HTTP/2 by hand."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.http = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="latin-1"))
        self.http.initiate_connection()
        self.events: list[h2.events.Event] = []
        self.flush()

    def flush(self) -> None:
        self.socket.sendall(self.http.data_to_send())

    def ask(self, host: str, path: str, *headers: tuple[str, str], end: bool = True) -> int:
        stream = self.http.get_next_available_stream_id()
        fields = [(":method", "GET"), (":scheme", "http"), (":authority", host), (":path", path), *headers]
        self.http.send_headers(stream, fields, end_stream=end)
        self.flush()
        return stream

    def until(self, true: Callable[[h2.events.Event], bool]) -> h2.events.Event:
        while not (found := [event for event in self.events if true(event)]):
            data = self.socket.recv(65536)
            if not data:
                raise EOFError
            self.events += self.http.receive_data(data)
            self.flush()
        return found[0]

    def status(self, stream: int) -> tuple[int, dict[str, str]]:
        event = self.until(lambda event: isinstance(event, h2.events.ResponseReceived) and event.stream_id == stream)
        headers = dict(event.headers)
        return int(headers.pop(":status")), headers


def speak(connection: socket.socket, head: bytes) -> None:
    """A program that answers every request with its headers, in HTTP/2."""
    http = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="latin-1"))
    http.initiate_connection()
    data = head
    while data:
        for event in http.receive_data(data):
            if isinstance(event, h2.events.RequestReceived):
                body = "\n".join(f"{name}={value}" for name, value in event.headers).encode()
                http.send_headers(event.stream_id, [(":status", "200"), ("set-cookie", "a=1"), ("set-cookie", "b=2")])
                http.send_data(event.stream_id, body, end_stream=True)
        connection.sendall(http.data_to_send())
        data = connection.recv(65536)
