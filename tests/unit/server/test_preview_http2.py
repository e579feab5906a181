"""HTTP/2 through a published port: gRPC as people use it, and streams that are each judged by themselves."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import h2.config
import h2.connection
import h2.errors
import h2.events
import httpx2
import pytest
from preview_http2_rig import Raw, speak
from preview_rig import WAIT_S, Site, Visitor, program, public, silent
from server_harness import Harness, make_data_dir

from bellglass.supervise import preview_ca


class Service(grpc.GenericRpcHandler):
    """Unary, both ways streamed, slow, failing; all in bytes."""

    def __init__(self) -> None:
        self.metadata: list[dict[str, Any]] = []
        self.cancelled = threading.Event()

    def service(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        self.metadata.append(dict(call.invocation_metadata) | {":path": call.method})
        return {
            "/t.T/Echo": grpc.unary_unary_rpc_method_handler(lambda request, context: request),
            "/t.T/Both": grpc.stream_stream_rpc_method_handler(self.both),
            "/t.T/Fail": grpc.unary_unary_rpc_method_handler(self.fail),
            "/t.T/Wait": grpc.unary_stream_rpc_method_handler(self.wait),
        }.get(call.method)

    def both(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        context.set_trailing_metadata((("seen", "yes"),))
        for request in requests:
            yield request + b"!"

    def fail(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no such luck")
        raise AssertionError

    def wait(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        context.add_callback(self.cancelled.set)
        yield b"begun"
        self.cancelled.wait(WAIT_S)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Service, int]]:
    service = Service()
    server = grpc.server(futures.ThreadPoolExecutor(16), handlers=(service,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield service, port
    server.stop(None)


def channel(harness: Harness, host: str) -> grpc.Channel:
    options = [("grpc.default_authority", host), ("grpc.max_receive_message_length", -1)]
    return grpc.insecure_channel(f"127.0.0.1:{harness.previews_port}", options=options)


def test_grpc_unary_streams_errors_and_much_at_once(
    harness: Harness, api: httpx2.Client, served: tuple[Service, int]
) -> None:
    service, port = served
    site = Site(harness, api, port)
    token = site.token()["token"]
    metadata = [("x-bellglass-token", token), ("custom", "kept")]
    service.metadata.clear()
    with channel(harness, site.host) as grpc_channel:
        echo = grpc_channel.unary_unary("/t.T/Echo")
        with pytest.raises(grpc.RpcError) as refused:
            echo(b"x", timeout=WAIT_S)
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED and service.metadata == []
        assert echo(b"question", metadata=metadata, timeout=WAIT_S) == b"question"
        big = bytes(range(256)) * 12_000
        assert echo(big, metadata=metadata, timeout=WAIT_S) == big
        both = grpc_channel.stream_stream("/t.T/Both")
        call = both(iter([b"a", b"b" * 500_000, b"c"]), metadata=metadata, timeout=WAIT_S)
        assert list(call) == [b"a!", b"b" * 500_000 + b"!", b"c!"]
        assert ("seen", "yes") in [tuple(pair) for pair in call.trailing_metadata()]
        with pytest.raises(grpc.RpcError) as failed:
            grpc_channel.unary_unary("/t.T/Fail")(b"", metadata=metadata, timeout=WAIT_S)
        assert (failed.value.code(), failed.value.details()) == (grpc.StatusCode.FAILED_PRECONDITION, "no such luck")
        waiting = [echo.future(b"%d" % number, metadata=metadata, timeout=WAIT_S) for number in range(200)]
        assert [call.result() for call in waiting] == [b"%d" % number for number in range(200)]
        waited = grpc_channel.unary_stream("/t.T/Wait")(b"", metadata=metadata, timeout=WAIT_S)
        assert next(waited) == b"begun"
        waited.cancel()
        assert service.cancelled.wait(WAIT_S), "the program does not hear that its caller gave up"
    seen = service.metadata[-1]
    assert seen["custom"] == "kept" and seen["x-forwarded-proto"] == "http" and "x-bellglass-token" not in seen


def test_what_is_revoked_is_cut(harness: Harness, api: httpx2.Client, served: tuple[Service, int]) -> None:
    service, port = served
    service.cancelled.clear()
    site = Site(harness, api, port)
    metadata = [("x-bellglass-token", site.token()["token"])]
    with channel(harness, site.host) as grpc_channel:
        waited = grpc_channel.unary_stream("/t.T/Wait")(b"", metadata=metadata, timeout=WAIT_S)
        assert next(waited) == b"begun"
        assert api.delete(site.path + "/tokens").status_code == 204
        with pytest.raises(grpc.RpcError):
            next(waited)
        assert service.cancelled.wait(WAIT_S)


@pytest.fixture
def raw(harness: Harness) -> Iterator[Raw]:
    with socket.create_connection(("127.0.0.1", harness.previews_port), timeout=WAIT_S) as connection:
        yield Raw(connection)


def test_streams_of_one_connection_are_judged_one_by_one(harness: Harness, api: httpx2.Client, raw: Raw) -> None:
    with program(speak) as mine, program(speak) as other:
        site, foreign = public(harness, api, mine.port), Site(harness, harness.project("p2"), other.port)
        token = foreign.token()["token"]
        header = ("x-bellglass-token", token)
        asked = [
            raw.ask(site.host, "/1"), raw.ask(foreign.host, "/2"), raw.ask(foreign.host, "/3", header),
            raw.ask(site.host, "/4", header), raw.ask("localhost", "/5"), raw.ask(site.host, "/6"),
        ]  # fmt: skip
        assert [raw.status(stream)[0] for stream in asked] == [200, 401, 200, 200, 404, 200]
        ends = [raw.until(lambda e, s=s: isinstance(e, h2.events.StreamEnded) and e.stream_id == s) for s in asked]
        assert len(ends) == 6
        bodies = {
            stream: b"".join(
                e.data for e in raw.events if isinstance(e, h2.events.DataReceived) and e.stream_id == stream
            )
            for stream in asked
        }
        assert b":path=/3" in bodies[asked[2]] and f":authority={foreign.host}".encode() in bodies[asked[2]]
        assert b"bgp_" not in b"".join(bodies.values())
        assert (len(mine.heads), len(other.heads)) == (1, 1), "one connection to each program"


def test_a_link_and_its_cookie(harness: Harness, api: httpx2.Client, raw: Raw) -> None:
    with program(speak) as shown:
        site = Site(harness, api, shown.port)
        token = site.token()["token"]
        status, headers = raw.status(raw.ask(site.host, f"/a?x=1&_bellglass_token={token}"))
        assert status == 302 and headers["location"] == site.record["url"] + "/a?x=1"
        cookie = headers["set-cookie"].partition(";")[0]
        assert raw.status(raw.ask(site.host, "/a", ("cookie", "theme=dark"), ("cookie", cookie)))[0] == 200
        raw.until(lambda event: isinstance(event, h2.events.DataReceived) and b"theme=dark" in event.data)
        assert not any(isinstance(e, h2.events.DataReceived) and b"bgp_" in e.data for e in raw.events)


def test_a_program_that_speaks_no_http2(harness: Harness, api: httpx2.Client, raw: Raw) -> None:
    with program() as shown:
        site = public(harness, api, shown.port)
        assert raw.status(raw.ask(site.host, "/"))[0] == 502
        assert raw.status(raw.ask(site.host, "/"))[0] == 502


def test_streams_that_are_opened_to_be_given_up(harness: Harness, api: httpx2.Client, raw: Raw) -> None:
    with program(silent) as shown:
        site = public(harness, api, shown.port)
        for _ in range(2000):
            try:
                stream = raw.ask(site.host, "/")
                raw.http.reset_stream(stream, h2.errors.ErrorCodes.CANCEL)
                raw.flush()
            except OSError:
                break
        try:
            end = raw.until(lambda event: isinstance(event, h2.events.ConnectionTerminated))
            assert end.error_code == h2.errors.ErrorCodes.ENHANCE_YOUR_CALM
        except (EOFError, ConnectionResetError):
            pass  # cut before the last word was read
        assert len(shown.heads) <= 300


@pytest.mark.parametrize(
    "said",
    [
        b"\x00\x00\x00\x04\x00\x00\x00\x00\x00" + b"x" * 100,
        b"\xff" * 1000,
        b"\x00\x00\x08\x06\x00\x00\x00\x00\x00" + b"x" * 8,
    ],
    ids=["frames that are none", "noise", "a ping"],
)
def test_bytes_that_are_no_http2(harness: Harness, said: bytes) -> None:
    with socket.create_connection(("127.0.0.1", harness.previews_port), timeout=WAIT_S) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + said)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            continue
    assert harness.client(None).get("/v1/health").status_code == 200


def test_over_tls_it_is_offered_where_the_program_speaks_it(tmp_path: Path, served: tuple[Service, int]) -> None:
    root = tmp_path / "data"
    made = preview_ca.make(make_data_dir(root), "preview.localhost")
    options = {
        "previews.domain": "preview.localhost", "previews.tls_cert": str(made.cert), "previews.tls_key": str(made.key),
    }  # fmt: skip
    harness = Harness(root, options).start()
    try:
        with program() as plain:
            api = harness.project("p1")
            grpc_site, site = public(harness, api, served[1], http2=True), public(harness, api, plain.port)
            names = [f"{each.sandbox_id}-{each.port}.preview.localhost" for each in (grpc_site, site)]
            context = ssl.create_default_context(cafile=made.ca)
            context.set_alpn_protocols(["h2", "http/1.1"])

            def connect(name: str) -> ssl.SSLSocket:
                connection = socket.create_connection(("127.0.0.1", harness.previews_port), timeout=WAIT_S)
                return context.wrap_socket(connection, server_hostname=name)

            with connect(names[0]) as first, connect(names[1]) as second:
                chosen = [first.selected_alpn_protocol(), second.selected_alpn_protocol()]
                assert chosen == ["h2", "http/1.1"]
                raw = Raw(first)
                # A browser that takes this connection for another name of the certificate is sent away.
                assert raw.status(raw.ask(names[1], "/"))[0] == 421
                visitor = Visitor.__new__(Visitor)
                visitor.host, visitor.connection, visitor.file = names[1], second, second.makefile("rb")
                assert visitor.ask("/").status == 200
            credentials = grpc.ssl_channel_credentials(made.ca.read_bytes())
            target_name = [("grpc.ssl_target_name_override", names[0]), ("grpc.default_authority", names[0])]
            where = f"127.0.0.1:{harness.previews_port}"
            with grpc.secure_channel(where, credentials, options=target_name) as grpc_channel:
                assert grpc_channel.unary_unary("/t.T/Echo")(b"over tls", timeout=WAIT_S) == b"over tls"
    finally:
        harness.stop()


def test_trailers_and_the_scheme_are_not_the_visitors_to_choose(harness: Harness, api: httpx2.Client, raw: Raw) -> None:
    seen: list[tuple[str, str]] = []

    def keep(connection: socket.socket, head: bytes) -> None:
        http = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="latin-1"))
        http.initiate_connection()
        data = head
        while data:
            for event in http.receive_data(data):
                if isinstance(event, (h2.events.RequestReceived, h2.events.TrailersReceived)):
                    seen.extend(event.headers)
                if isinstance(event, h2.events.StreamEnded):
                    http.send_headers(event.stream_id, [(":status", "204")], end_stream=True)
            connection.sendall(http.data_to_send())
            data = connection.recv(65536)

    with program(keep) as made:
        site = Site(harness, api, made.port)
        token = site.token()["token"]
        stream = raw.http.get_next_available_stream_id()
        fields = [(":method", "POST"), (":scheme", "evil"), (":authority", site.host), (":path", "/")]
        raw.http.send_headers(stream, [*fields, ("x-bellglass-token", token)])
        raw.http.send_data(stream, b"x")
        trailers = [("checksum", "1"), ("x-bellglass-token", token), ("x-forwarded-for", "10.0.0.1")]
        raw.http.send_headers(stream, trailers, end_stream=True)
        raw.flush()
        assert raw.status(stream)[0] == 204
    assert ("checksum", "1") in seen and (":scheme", "http") in seen
    assert "x-bellglass-token" not in dict(seen) and ("x-forwarded-for", "10.0.0.1") not in seen
