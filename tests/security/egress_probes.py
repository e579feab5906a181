"""What tests of the egress boundary run inside a sandbox: it reads `[{"op": "tcp", ...}, ...]`, does all of it at the
same time and prints an outcome for each, in order. Standard library only; bytes travel as latin-1.

An outcome is `{"outcome": WORD, "data": TEXT, "seconds": NUMBER}`. The word is "data" where something came back, "end"
at an orderly end without a byte, else the error's name: ECONNRESET, ENETUNREACH, EAI_NONAME, timeout.
"""

from __future__ import annotations

import errno
import json
import socket
import ssl
import struct
import sys
import threading
import time
from typing import Any

PATIENCE_S = 20.0


def connected(host: str, port: int, family: str = "AF_INET") -> socket.socket:
    kind = getattr(socket, family)
    address = socket.getaddrinfo(host, port, kind, socket.SOCK_STREAM)[0][4]
    sock = socket.socket(kind)
    sock.settimeout(PATIENCE_S)
    sock.connect(address)
    return sock


def tcp(host: str, port: int, pieces: list[str], family: str = "AF_INET", pause: float = 0, until: str = "") -> str:
    """Sends the pieces, `pause` apart, and reads until `until` was read, or a first piece, or the end."""
    with connected(host, port, family) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for index, piece in enumerate(pieces):
            if index and pause:
                time.sleep(pause)
            sock.sendall(piece.encode("latin-1"))
        found = b""
        while data := sock.recv(65536):
            found += data
            if until.encode("latin-1") in found:
                break
        return found.decode("latin-1")


def tls(host: str, port: int, authority: str, name: str | None, request: str, protocol: str = "http/1.1") -> str:
    """A real client, which checks the certificate; the answer's first piece."""
    context = ssl.create_default_context(cadata=authority)
    context.set_alpn_protocols([protocol])
    if name is None:
        context.check_hostname = False
    with connected(host, port) as sock, context.wrap_socket(sock, server_hostname=name) as secure:
        secure.sendall(request.encode("latin-1"))
        found = ""
        while (protocol == "h2" and "\0\1" not in found) or not found:  # an h2 answer ends with a frame of data
            piece = secure.recv(65536)
            if not piece:
                break
            found += piece.decode("latin-1")
        return found


def name(host: str) -> str:
    """By libc; the addresses, the first one first."""
    return " ".join(dict.fromkeys(str(found[4][0]) for found in socket.getaddrinfo(host, None)))


def udp(host: str, port: int, data: str, family: str = "AF_INET", patience: float = 2.0) -> str:
    with socket.socket(getattr(socket, family), socket.SOCK_DGRAM) as sock:
        sock.settimeout(patience)
        sock.connect((host, port))
        sock.send(data.encode("latin-1"))
        return sock.recv(65536).decode("latin-1")


def dns(server: str, host: str, kind: int, port: int = 53, stream: bool = False) -> str:
    """One question; the code of the answer and its addresses, such as "0 198.18.4.1"."""
    labels = b"".join(bytes([len(label)]) + label.encode("latin-1") for label in host.split(".") if label)
    query = struct.pack(">HHHHHH", 4711, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, 1)
    with socket.socket(type=socket.SOCK_STREAM if stream else socket.SOCK_DGRAM) as sock:
        sock.settimeout(PATIENCE_S)
        sock.connect((server, port))
        sock.sendall((len(query).to_bytes(2, "big") if stream else b"") + query)
        answer = sock.recv(4096)[2 if stream else 0 :]
    count = int.from_bytes(answer[6:8], "big")
    addresses = [socket.inet_ntoa(answer[-4:])] if count == 1 and kind == 1 else [""] * count
    return " ".join([str(answer[3] & 15), *addresses])


def attempt(op: str, arguments: dict[str, Any]) -> dict[str, Any]:
    begun = time.monotonic()
    found = ""
    try:
        found = globals()[op](**arguments)
        outcome = "data" if found else "end"
    except socket.gaierror as error:
        names = {getattr(socket, text): text for text in dir(socket) if text.startswith("EAI_")}
        outcome = names.get(error.errno, str(error))
    except TimeoutError:
        outcome = "timeout"
    except ssl.SSLError as error:
        outcome = error.reason or type(error).__name__
    except OSError as error:
        outcome = errno.errorcode.get(error.errno or 0, str(error))
    return {"outcome": outcome, "data": found, "seconds": time.monotonic() - begun}


def main() -> None:
    wanted = json.load(sys.stdin)
    outcomes: list[dict[str, Any] | None] = [None] * len(wanted)

    def one(index: int, arguments: dict[str, Any]) -> None:
        outcomes[index] = attempt(arguments.pop("op"), arguments)

    threads = [threading.Thread(target=one, args=item) for item in enumerate(wanted)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main()
