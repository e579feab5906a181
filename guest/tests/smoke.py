"""An agent end to end over a real socket, with nothing but Python's library: `smoke.py COMMAND... ` starts it.

The command is the agent or an emulator and the agent. The thorough tests are the project's pytest suite; this one runs
where the agent needs an emulator or a sanitizer, and prints a line per test.
"""

import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

HEADER = struct.Struct("<IBBHI")
HELLO, WELCOME, START, STARTED, DATA, ACK, EOF, EXIT, FAILED, RELEASE = 1, 2, 16, 17, 18, 19, 20, 22, 23, 24
RESIZE, FILE, RESULT, DIAL, CONNECTED = 26, 32, 33, 34, 35
READ, WRITE, LIST, ARCHIVE_OUT, ARCHIVE_IN = 1, 2, 3, 8, 9


def tlv(tag, value):
    raw = struct.pack("<Q", value) if isinstance(value, int) else os.fsencode(value)
    return struct.pack("<HI", tag, len(raw)) + raw


def fields(payload):
    found, at = {}, 0
    while at < len(payload):
        tag, length = struct.unpack_from("<HI", payload, at)
        found.setdefault(tag, []).append(payload[at + 6 : at + 6 + length])
        at += 6 + length
    return found


class Link:
    def __init__(self, command, folder):
        path = str(folder / "s")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen()
        self.listener.settimeout(30)
        self.agent = subprocess.Popen([*command, path], stdin=subprocess.DEVNULL)
        self.accept()
        self.last = 0

    def accept(self):
        self.connection = self.listener.accept()[0]
        self.connection.settimeout(30)
        self.file = self.connection.makefile("rb")
        kind, _, _, payload = self.read()
        assert kind == HELLO
        self.send(WELCOME, 0, tlv(1, 1))
        return fields(payload)

    def send(self, kind, stream, payload=b"", channel=0, flags=0):
        self.connection.sendall(HEADER.pack(len(payload), kind, channel, flags, stream) + payload)

    def read(self):
        length, kind, channel, _, stream = HEADER.unpack(self.file.read(HEADER.size))
        return kind, channel, stream, self.file.read(length)

    def new(self):
        self.last += 1
        return self.last

    def finish(self, stream, needs_eof=False):
        """Frames of one stream up to its end: output by channel, and the last frame's type and fields."""
        output, last, eof = {1: b"", 2: b""}, None, False
        while last is None or (needs_eof and last[0] == RESULT and not eof):
            kind, channel, which, payload = self.read()
            assert which == stream
            if kind == DATA:
                output[channel] += payload[8:]
                self.send(ACK, stream, struct.pack("<Q", len(output[channel])), channel)
            elif kind == EOF:
                eof = True
            elif kind in (EXIT, FAILED, RESULT):
                last = kind, fields(payload)
        self.send(RELEASE, stream)
        return output, *last

    def run(self, *argv, input=None):
        stream = self.new()
        payload = b"".join(tlv(1, arg) for arg in argv) + tlv(2, "PATH=/usr/bin:/bin") + tlv(3, "/")
        self.send(START, stream, payload + tlv(5, 1 if input is not None else 0) + tlv(6, 500))
        if input is not None:
            self.send(DATA, stream, struct.pack("<Q", 0) + input)
            self.send(EOF, stream, struct.pack("<Q", len(input)))
        return self.finish(stream)

    def operate(self, operation, path, input=None, flags=0, more=b""):
        stream = self.new()
        self.send(FILE, stream, tlv(1, operation) + tlv(2, path) + tlv(4, "/") + tlv(6, flags) + more)
        for at in range(0, len(input or b""), 65536):
            self.send(DATA, stream, struct.pack("<Q", at) + input[at : at + 65536])
        if input is not None:
            self.send(EOF, stream, struct.pack("<Q", len(input)))
        return self.finish(stream, needs_eof=operation == READ)


def output_and_exit_code(link, folder):
    output, kind, found = link.run("sh", "-c", "echo out; echo err >&2; exit 7")
    assert (output, kind) == ({1: b"out\n", 2: b"err\n"}, EXIT)
    assert found[1] == [struct.pack("<Q", 7)]


def stdin_is_exact(link, folder):
    data = os.urandom(200_000)
    assert link.run("cat", input=data)[0][1] == data


def missing_program(link, folder):
    _, kind, found = link.run("nosuchcmd")
    assert (kind, found[1], found[2]) == (FAILED, [b"exec"], [struct.pack("<Q", 2)])


def terminal(link, folder):
    """The size at the start and after RESIZE, echo and CR LF, a signal from a key, and an end that comes once."""
    stream = link.new()
    script = "trap 'stty size; exit 5' INT; tty -s && stty size; while :; do read a && stty size; done"
    payload = b"".join(tlv(1, arg) for arg in ("sh", "-c", script)) + tlv(2, "PATH=/usr/bin:/bin") + tlv(3, "/")
    link.send(START, stream, payload + tlv(9, 80) + tlv(10, 24))
    seen, sent = b"", 0

    def until(text):
        nonlocal seen
        while text not in seen:
            kind, channel, which, frame = link.read()
            assert which == stream and kind in (STARTED, DATA, ACK, EOF), (kind, frame)
            if kind == DATA:
                assert channel == 1
                seen += frame[8:]
            elif kind == EOF:
                assert channel == 2, "there is no standard error beside it"

    def type_in(text):
        nonlocal sent
        link.send(DATA, stream, struct.pack("<Q", sent) + text)
        sent += len(text)

    until(b"24 80\r\n")
    link.send(RESIZE, stream, tlv(1, 65535) + tlv(2, 1))
    type_in(b"x\n")
    until(b"x\r\n1 65535\r\n")
    type_in(b"\x03")
    link.send(ACK, stream, struct.pack("<Q", len(seen)), 1)
    output, kind, found = link.finish(stream)
    assert output[1].endswith(b"^C1 65535\r\n"), output
    assert (kind, found[1]) == (EXIT, [struct.pack("<Q", 5)])


def background_child(link, folder):
    assert link.run("sh", "-c", "sleep 5 & echo hi")[0][1] == b"hi\n"


def much_output(link, folder):
    assert len(link.run("head", "-c", "5000000", "/dev/zero")[0][1]) == 5_000_000


def write_and_read(link, folder):
    data, path = os.urandom(700_000), folder / "a/b/f"
    assert link.operate(WRITE, path, data, flags=1)[1] == RESULT
    assert link.operate(READ, path)[0][1] == data
    assert link.operate(READ, folder / "s")[2][1] == [b"type"]
    assert link.operate(LIST, folder / "a", flags=8)[0][1].count(b"b/f") == 1


def read_beyond_the_cache_limit(link, folder):
    data, path = os.urandom(20_000_001), folder / "large"
    path.write_bytes(data)
    assert link.operate(READ, path, more=tlv(16, len(data) - 1))[0][1] == data
    assert data in link.operate(ARCHIVE_OUT, path, more=tlv(16, 0))[0][1]
    path.unlink()


def archive_and_back(link, folder):
    archive = link.operate(ARCHIVE_OUT, folder / "a")[0][1]
    assert link.operate(ARCHIVE_IN, folder / "copy", archive)[1] == RESULT
    assert (folder / "a/b/f").read_bytes() == (folder / "copy/b/f").read_bytes()
    assert link.operate(ARCHIVE_IN, folder / "torn", archive[:-2000])[1] == FAILED
    assert not (folder / "torn").exists()


def dial_both_ways(link, folder):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        port = server.getsockname()[1]
        stream, data = link.new(), os.urandom(600_000)
        link.send(DIAL, stream, tlv(1, port))
        program = server.accept()[0]
        program.settimeout(30)
        kind, _, which, _ = link.read()
        assert (kind, which) == (CONNECTED, stream)
        link.send(DATA, stream, struct.pack("<Q", 0) + b"question")
        link.send(EOF, stream, struct.pack("<Q", 8))
        assert program.makefile("rb").read() == b"question"
        threading.Thread(target=lambda: (program.sendall(data), program.close())).start()
        answer, acked = b"", 0
        while True:
            kind, _, which, payload = link.read()
            if kind == DATA:
                answer += payload[8:]
                link.send(ACK, stream, struct.pack("<Q", len(answer)), 1)
            elif kind == ACK:
                acked = struct.unpack("<Q", payload)[0]
            elif kind in (RESULT, FAILED):
                break
        link.send(RELEASE, stream)
        assert (kind, acked) == (RESULT, 8) and answer == data
    refused = link.new()
    link.send(DIAL, refused, tlv(1, port))
    assert link.finish(refused)[2][1] == [b"connect"]


def new_link(link, folder):
    link.file.close()
    link.connection.close()
    assert link.accept()[4] == [struct.pack("<Q", 2)]
    assert link.run("echo", "again")[0][1] == b"again\n"


def sigterm(link, folder):
    link.agent.terminate()
    assert link.agent.wait(30) == 0


def main(command):
    tests = [output_and_exit_code, stdin_is_exact, missing_program, terminal, background_child, much_output]
    tests += [write_and_read, read_beyond_the_cache_limit, archive_and_back, dial_both_ways, new_link, sigterm]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        link = Link(command, folder)
        try:
            for test in tests:
                try:
                    test(link, folder)
                except (AssertionError, OSError, LookupError, struct.error) as error:
                    failed += 1
                    print(f"FAIL {test.__name__}: {type(error).__name__}: {error}")
                else:
                    print(f"ok   {test.__name__}")
        finally:
            if link.agent.poll() is None:
                link.agent.kill()
            link.agent.wait()
            link.file.close()
            link.connection.close()
            link.listener.close()
    print(f"{len(tests) - failed} passed, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
