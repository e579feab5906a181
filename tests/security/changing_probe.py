"""What tests run inside a sandbox: bytes that go on changing after they were sent.

sendfile(2) sends no copy of a file but its pages, and where no network card is between two sockets the one who reads
gets what stands in the file at that moment. `{"host", "port", "times", "texts", "tail"}` on standard input; the texts
have one length and travel as latin-1. While another process writes them into the file in turns, each connection sends
the file, then `tail`. Prints how many were answered and how many cut.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import socket
import sys
import tempfile

PATIENCE_S = 20.0


def keep_writing(shared: mmap.mmap, texts: list[bytes]) -> None:
    while True:
        for text in texts:
            shared[: len(text)] = text


def main() -> None:
    wanted = json.load(sys.stdin)
    texts = [text.encode("latin-1") for text in wanted["texts"]]
    tail = wanted["tail"].encode("latin-1")
    counts = {"answered": 0, "cut": 0}
    with tempfile.TemporaryFile() as file:
        file.write(texts[0])
        file.flush()
        shared = mmap.mmap(file.fileno(), len(texts[0]))
        writer = os.fork() if len(texts) > 1 else 0
        if len(texts) > 1 and not writer:
            keep_writing(shared, texts)
        try:
            for _ in range(wanted["times"]):
                with socket.create_connection((wanted["host"], wanted["port"]), PATIENCE_S) as sock:
                    try:
                        os.sendfile(sock.fileno(), file.fileno(), 0, len(texts[0]))
                        sock.sendall(tail)
                        answered = bool(sock.recv(65536))
                    except (ConnectionResetError, BrokenPipeError):
                        answered = False
                counts["answered" if answered else "cut"] += 1
        finally:
            if writer:
                os.kill(writer, signal.SIGKILL)
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
