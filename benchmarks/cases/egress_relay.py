"""The proxy between namespaces: what a connection costs to set up, and how much passes through it.

A new connection is what a program inside sees: the name resolved, TCP, TLS, against the same from beside the proxy with
the world's own DNS server. The proxy looks the name up at each (TTL 0). Proxy and resolver are real and confined.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from bellglass.egress.proxy import dns
from bellglass.testing.egress import DNS_SERVER, WORLD, Rig
from bellglass.testing.namespaces import Namespace
from benchmarks import memory
from benchmarks.bench import Bench
from benchmarks.egress import DOWNLOADS, STREAMS, outcome, program
from benchmarks.measure import Bound, Row, quiet_collector, summarize

NAME = "a.test"
ADDRESS = WORLD + "10"
CONNECTIONS = 50
FEW, MANY = 5, 500
OURS, DIRECT = "through the proxy", "direct"


def measure(bench: Bench) -> list[Row]:
    with Rig() as rig, quiet_collector():
        rig.dns.zone[NAME] = [ADDRESS]
        rig.attach("sb1", {"host": NAME, "ports": [22, 443]})
        crowd = crowded(rig, bench.times(5, 2), bench.times(60, 20))
        return [*crowd, *connecting(rig, bench.times(200, 50)), *relaying(rig, bench.times(3, 1), bench.times(5, 2))]


def connecting(rig: Rig, times: int) -> list[Row]:
    """In turns, a few of one and a few of the other."""
    ours: list[float] = []
    direct: list[float] = []
    inside = rig.sandboxes["sb1"].inner
    with tls_server(rig) as context:
        for _ in range(10):
            direct += rig.host.call(_connect_some, context, DNS_SERVER, times // 10)
            ours += inside.call(_connect_some, context, "10.200.0.1", times // 10)
    added = [took - summarize(direct).p50 for took in ours]
    what = "new TLS connection: name, TCP, handshake"
    return [
        Row("egress", what, OURS, "ms", ours),
        Row("egress", what, DIRECT, "ms", direct),
        Row("egress", "what the proxy adds to it", OURS, "ms", added, (Bound("p50", 5.0),)),
    ]


def _connect_some(context: ssl.SSLContext, resolver: str, times: int) -> list[float]:
    """The first one is not counted."""
    samples = []
    for _ in range(times + 1):
        began = time.perf_counter()
        with socket.socket(type=socket.SOCK_DGRAM) as asking:
            asking.settimeout(10)
            asking.connect((resolver, 53))
            asking.send(dns.question(1, NAME, dns.A))
            address = str(dns.answer(asking.recv(4096), 1, NAME, dns.A).addresses[0])
        with socket.create_connection((address, 443), 10) as sock:
            with context.wrap_socket(sock, server_hostname=NAME):
                samples.append((time.perf_counter() - began) * 1000)
    return samples[1:]


def crowded(rig: Rig, rounds: int, times: int) -> list[Row]:
    """In turns with FEW and with MANY sandboxes attached, each with some rules of its own."""
    rules = [{"host": f"n{n}.{NAME}", "ports": [443]} for n in range(20)]
    inside = rig.sandboxes["sb1"].inner
    samples: dict[int, list[float]] = {FEW: [], MANY: []}
    ratios = []
    rig.crowd(FEW - 1, *rules)
    with tls_server(rig) as context:
        for _ in range(rounds):
            few = inside.call(_connect_some, context, "10.200.0.1", times)
            rig.disperse(FEW - 1)
            rig.crowd(MANY - 1, *rules)
            many = inside.call(_connect_some, context, "10.200.0.1", times)
            rig.disperse(MANY - 1)
            rig.crowd(FEW - 1, *rules)
            samples[FEW] += few
            samples[MANY] += many
            ratios.append(summarize(many).p50 / summarize(few).p50)
    rig.disperse(FEW - 1)
    what = "new TLS connection with the rules of {} sandboxes"
    return [
        Row("egress", what.format(FEW), OURS, "ms", samples[FEW]),
        Row("egress", what.format(MANY), OURS, "ms", samples[MANY]),
        Row("egress", f"its p50 with {MANY} over that with {FEW}", OURS, "x", ratios, (Bound("p50", 1.25),)),
    ]


@contextlib.contextmanager
def tls_server(rig: Rig) -> Iterator[ssl.SSLContext]:
    """Answers handshakes at the name's port 443; yields a client's context that trusts it."""
    with tempfile.TemporaryDirectory() as folder:
        key, certificate = Path(folder, "key"), Path(folder, "crt")
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
             "-days", "2", "-subj", "/CN=test", "-addext", f"subjectAltName=DNS:{NAME}", "-keyout", key,
             "-out", certificate],
            check=True, capture_output=True,
        )  # fmt: skip
        serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        serving.load_cert_chain(certificate, key)
        trusting = ssl.create_default_context(cafile=str(certificate))
    listener = rig.listen(ADDRESS, 443)

    def serve() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            tls = serving.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            with tls, contextlib.suppress(OSError):
                tls.do_handshake()
                tls.recv(1)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield trusting
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def relaying(rig: Rig, rounds: int, seconds: float) -> list[Row]:
    """Memory is the proxy's high-water mark over what it had with no connection."""
    pid = rig.processes["proxy"].pid
    address = rig.sandboxes["sb1"].resolve(NAME)
    assert address is not None
    rates: dict[str, list[float]] = {OURS: [], DIRECT: []}
    before = memory.resident_bytes(pid)
    memory.forget_peak(pid)
    where: tuple[tuple[str, Namespace, str], ...] = (
        (OURS, rig.sandboxes["sb1"].inner, address),
        (DIRECT, rig.host, ADDRESS),
    )
    with program(rig.world, STREAMS, ADDRESS, 22):
        for _ in range(rounds):
            for who, namespace, target in where:
                with program(namespace, DOWNLOADS, target, 22, CONNECTIONS, seconds) as process:
                    rates[who].append(outcome(process))
    growth = (memory.peak_bytes(pid) - before) / memory.MIB
    what = f"{CONNECTIONS} downloads at once"
    return [
        Row("egress", what, OURS, "MB/s", rates[OURS], (Bound("p50", 300.0, at_least=True),)),
        Row("egress", what, DIRECT, "MB/s", rates[DIRECT]),
        Row("egress", f"growth of the proxy with {what}", OURS, "MiB", [growth], (Bound("max", 8.0),)),
    ]
