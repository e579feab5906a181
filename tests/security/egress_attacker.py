"""Code of an attacker in the place of the proxy's or the resolver's loop: tries everything and tells how it ended.

Usage: egress_attacker.py proxy|resolver|control --data-dir D --config JSON. As `proxy` and `resolver` it starts as the
daemon does: the same modules, the same frame, the same confinement; only what serves is another function. As `control`
nothing is given up, to see that each attempt is one that works. The report is a line of JSON on standard error, by
attempt `ok` or the errno's name.
"""

from __future__ import annotations

import ctypes
import errno
import importlib
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

from bellglass.egress import confine, daemon

LIBC = ctypes.CDLL(None, use_errno=True)
TIMEOUT_S = 3.0
PTRACE_ATTACH, PTRACE_DETACH = 16, 17
# Each with arguments that are wrong on purpose: where it is allowed the kernel finds that out and nothing happens.
CALLS = {
    "execve": (59, 0, 0, 0),
    "execveat": (322, -1, 0, 0, 0, -1),
    "clone": (56, 0x7FFF0000FFFF0000, 0),
    "clone3": (435, 0, 0),
    "unshare": (272, -1),
    "setns": (308, -1, 0),
    "mount": (165, 0, 0, 0, 0, 0),
    "umount2": (166, 0, -1),
    "pivot_root": (155, 0, 0),
    "open_tree": (428, -1, 0, -1),
    "fsopen": (430, 0, -1),
    "chroot": (161, 0),
    "ptrace": (101, 9999, 0, 0, 0),
    "process_vm_readv": (310, -1, 0, 0, 0, 0, -1),
    "pidfd_open": (434, -1, -1),
    "pidfd_getfd": (438, -1, -1, -1),
    "kill": (62, 1 << 30, 99),
    "tgkill": (234, -1, -1, 99),
    "bpf": (321, -1, 0, 0),
    "io_uring_setup": (425, 0, 0),
    "io_uring_enter": (426, -1, 0, 0, 0, 0, 0),
    "userfaultfd": (323, -1),
    "perf_event_open": (298, 0, -1, -1, -1, -1),
    "keyctl": (250, -1, 0, 0, 0, 0),
    "add_key": (248, 0, 0, 0, 0, 0),
    "init_module": (175, 0, 0, 0),
    "kexec_load": (246, 0, -1, 0, -1),
    "open_by_handle_at": (304, -1, 0, 0),
    "memfd_create": (319, 0, -1),
    "mknodat": (259, -1, 0, 0, 0),
    "mkdirat": (258, -1, 0, 0),
    "unlinkat": (263, -1, 0, -1),
    "renameat2": (316, -1, 0, -1, 0, -1),
    "linkat": (265, -1, 0, -1, 0, -1),
    "symlinkat": (266, 0, -1, 0),
    "fchmodat": (268, -1, 0, 0),
    "setxattr": (188, 0, 0, 0, 0, -1),
    "truncate": (76, 0, -1),
    "setuid": (105, -1),
    "setgroups": (116, 1 << 30, 0),
    "capset": (126, 0, 0),
    "prctl": (157, -1, 0, 0, 0, 0),
    "seccomp": (317, -1, 0, 0),
    "setrlimit": (160, -1, 0),
    "prlimit64": (302, 1, 7, 0, 0),
    "personality": (135, 0xFFFFFFFF),
    "sethostname": (170, 0, -1),
    "shmget": (29, -1, -1, -1),
    "mq_open": (240, 0, 0, 0, 0),
    "inotify_init1": (294, -1),
    "bind": (49, -1, 0, 0),
    "listen": (50, -1, 0),
}


def attempts(config: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}

    def attempt(name: str, act: Callable[[], Any]) -> None:
        try:
            act()
            found[name] = "ok"
        except OSError as error:
            found[name] = errno.errorcode.get(error.errno or 0, type(error).__name__)
        except RuntimeError:
            found[name] = "EAGAIN"  # a thread that can't be started

    for path in config["files"]:
        attempt(f"read {path}", lambda path=path: _read(path))
        attempt(f"climb to {path}", lambda path=path: _read("../" * 30 + path.lstrip("/")))
    for path in config["writable"]:
        attempt(f"write {path}", lambda path=path: os.close(os.open(path, os.O_WRONLY)))
        attempt(f"create beside {path}", lambda path=path: _create(path + ".new"))
    attempt("list /", lambda: os.listdir("/"))
    attempt("list the data folder", lambda: os.listdir(config["data_dir"]))
    for path in config["sockets"]:
        for kind in ("STREAM", "SEQPACKET"):
            attempt(f"dial {path} {kind}", lambda path=path, kind=kind: _dial_unix(path, kind))
    for host, port in config["tcp"]:
        attempt(f"tcp {host}:{port}", lambda host=host, port=port: _dial_tcp(host, port))
    for host, port in config["udp"]:
        attempt(f"udp {host}:{port}", lambda host=host, port=port: _ask_udp(host, port))
    attempt("serve a port", lambda: _serve_port())
    for name, (family, kind, protocol) in {
        "raw": (2, 3, 1), "packet": (17, 3, 0), "netfilter": (16, 3, 12), "sctp": (2, 1, 132), "alg": (38, 5, 0)
    }.items():  # fmt: skip
        attempt(f"socket {name}", lambda family=family, kind=kind, protocol=protocol: socket.socket(
            family, kind, protocol).close())  # fmt: skip
    attempt("signal another process", lambda: os.kill(config["victim"], signal.SIGCONT))
    attempt("read another process", lambda: _read(f"/proc/{config['victim']}/environ"))
    attempt("trace another process", lambda: _trace(config["victim"]))
    attempt("fork", _fork)
    attempt("thread", _thread)
    attempt("executable memory", _executable_memory)
    for name, (number, *arguments) in CALLS.items():
        LIBC.syscall(ctypes.c_long(number), *[ctypes.c_long(argument) for argument in arguments])
        found[f"call {name}"] = errno.errorcode.get(ctypes.get_errno(), "ok")
        ctypes.set_errno(0)
    return found


def _read(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    os.read(descriptor, 1)
    os.close(descriptor)


def _create(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    os.unlink(path)


def _dial_unix(path: str, kind: str) -> None:
    with socket.socket(socket.AF_UNIX, getattr(socket, f"SOCK_{kind}")) as sock:
        sock.settimeout(TIMEOUT_S)
        sock.connect(path.replace("@", "\0"))


def _dial_tcp(host: str, port: int) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        sock.settimeout(TIMEOUT_S)
        sock.connect((host, port))
        if not sock.recv(1):
            raise ConnectionResetError(errno.ECONNRESET, "nothing came")


def _ask_udp(host: str, port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(TIMEOUT_S)
        sock.sendto(b"hello", (host, port))
        sock.recv(10)


def _serve_port() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()


def _trace(pid: int) -> None:
    if LIBC.ptrace(PTRACE_ATTACH, pid, 0, 0):
        raise OSError(ctypes.get_errno(), "ptrace")
    os.waitpid(pid, 0)
    LIBC.ptrace(PTRACE_DETACH, pid, 0, 0)


def _fork() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _thread() -> None:
    running = threading.Thread(target=lambda: None)
    running.start()
    running.join()


def _executable_memory() -> None:
    LIBC.mmap.restype = ctypes.c_void_p
    if LIBC.mmap(None, ctypes.c_size_t(4096), 7, 0x22, -1, ctypes.c_long(0)) == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap")


def report(config: dict[str, Any]) -> None:
    os.write(2, (json.dumps({"attempts": attempts(config)}) + "\n").encode())


def main() -> int:
    name = sys.argv.pop(1)
    if name == "control":
        report(json.loads(sys.argv[4]))
        return 0
    importlib.import_module(f"bellglass.egress.{name}.app")  # what the daemon has in its memory, the attacker has
    confinement = {"proxy": confine.PROXY, "resolver": confine.RESOLVER}[name]
    return daemon.main(name, confinement, lambda start: report(start.config), names=name == "resolver")


if __name__ == "__main__":
    sys.exit(main())
