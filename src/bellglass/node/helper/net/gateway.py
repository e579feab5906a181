"""A sandbox's two network namespaces: S, which its processes are in, and G, the gateway that S's only link leads to.

    S   eth0 10.200.0.2/30 -- veth -- g0 10.200.0.1/30   G

G has no other link and forwards nothing. Whatever S sends ends at the listeners that are opened inside of G here and
used elsewhere: those of proxy, resolver and node. A listener that nobody holds is a refused connection.

S is made together with the sandbox's user namespace, which owns it (idmap.py); G is the host's. While it is needed, a
bind mount of it lies at `<data>/run/gateways/<sandbox id>`. As long as there are such, the folder is a shared mount of
its own: a namespace that copies the host's mounts then loses what is unmounted here, and holds no gateway for ever.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from bellglass.datadir import DataDir
from bellglass.errors import InternalError, NotFound
from bellglass.node.helper import kernel
from bellglass.node.helper.net import netlink, nft
from bellglass.node.helper.uids import RANGE_SIZE
from bellglass.node.helper.wait import until

SANDBOX_ADDRESS = "10.200.0.2"
GATEWAY_ADDRESS = "10.200.0.1"
IDENTITY_ADDRESS = "198.18.0.1"
PREFIX = 30
SANDBOX_LINK, GATEWAY_LINK = "eth0", "g0"
PROXY_PORT, DNS_PORT, IDENTITY_PORT = 1080, 1053, 1081
LISTENERS = {
    "proxy": (socket.SOCK_STREAM, PROXY_PORT),
    "dns_udp": (socket.SOCK_DGRAM, DNS_PORT),
    "dns_tcp": (socket.SOCK_STREAM, DNS_PORT),
    "identity": (socket.SOCK_STREAM, IDENTITY_PORT),
}
"""By name, in the order in which their descriptors are passed on."""
MAX_CONNECTIONS = 4096
"""Tracked ones, ended ones included until the kernel forgets them."""
_OWN = "/proc/self/ns/net"
_BACKLOG = 256
_IN_USE_S = 2.0
_HARDWARE = {SANDBOX_LINK: "026267000002", GATEWAY_LINK: "026267000001"}
# Both links get this index: 1 is lo, and some kernels put idle tunnels into each new namespace behind it.
_INDEX = 100
_IFF_UP = 1
_PERMANENT = 0x80
_RULES = nft.gateway_rules(
    device=GATEWAY_LINK,
    sandbox=SANDBOX_ADDRESS,
    identity=IDENTITY_ADDRESS,
    proxy_port=PROXY_PORT,
    dns_port=DNS_PORT,
    identity_port=IDENTITY_PORT,
    connections=MAX_CONNECTIONS,
)
# A new namespace takes some of its settings from the host's. IPv6 is absent: no address, no listener, no rule.
_GATEWAY_SETTINGS = {
    "ipv4/ip_forward": "0",
    "ipv4/icmp_ratemask": "0",  # each refusal is told, not only one a second
    "ipv6/conf/default/disable_ipv6": "1",
}
# Of what is tracked only the living is to count against MAX_CONNECTIONS. On some kernels these files come with the
# first rule that tracks.
_TRACKING_SETTINGS = {
    "netfilter/nf_conntrack_tcp_timeout_time_wait": "2",
    "netfilter/nf_conntrack_tcp_timeout_close": "2",
    "netfilter/nf_conntrack_udp_timeout": "3",
    "netfilter/nf_conntrack_udp_timeout_stream": "3",
}
# As in other containers: any user may listen on any port and ping (itself).
_SANDBOX_SETTINGS = {
    "ipv4/ip_forward": "0",
    "ipv4/ip_unprivileged_port_start": "0",
    "ipv6/conf/default/disable_ipv6": "1",
}


def make(data: DataDir, sandbox_id: str) -> int:
    """A descriptor of G. In the host's mount namespace."""
    home = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
    with ExitStack() as undo:
        undo.callback(os.close, home)
        kernel.unshare(kernel.CLONE_NEWNET)
        undo.callback(kernel.setns, home, kernel.CLONE_NEWNET)
        folder = undo.enter_context(_folder(data))
        folder.mkdir(mode=0o700, exist_ok=True)
        if not kernel.is_mount(str(folder)):
            kernel.mount(str(folder), str(folder), "", kernel.MS_BIND)
            kernel.mount("none", str(folder), "", kernel.MS_SHARED)
        pin = folder / sandbox_id
        pin.touch(mode=0o600)
        kernel.mount(_OWN, str(pin), "", kernel.MS_BIND)
        return os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)


def connect(gateway: int, sandbox: int, first_uid: int) -> list[socket.socket]:
    """Join S to G, both given as descriptors, and open the listeners. Raises OSError."""
    with _inside(sandbox):
        _set(_SANDBOX_SETTINGS | {"ipv4/ping_group_range": f"{first_uid} {first_uid + RANGE_SIZE - 1}"})
        inside = netlink.open_socket(netlink.NETLINK_ROUTE)
    with inside, _inside(gateway), netlink.open_socket(netlink.NETLINK_ROUTE) as own:
        _set(_GATEWAY_SETTINGS)
        netlink.request(
            own,
            "the gateway's link",
            _new_veth(sandbox),
            _up(_INDEX),
            _new_address(GATEWAY_ADDRESS),
            _new_neighbour(SANDBOX_ADDRESS, SANDBOX_LINK),
        )
        nft.apply(_RULES)
        _set(_TRACKING_SETTINGS)
        netlink.request(
            inside,
            "the sandbox's link",
            _up(1),
            _up(_INDEX),
            _new_address(SANDBOX_ADDRESS),
            _new_neighbour(GATEWAY_ADDRESS, GATEWAY_LINK),
            _new_default_route(GATEWAY_ADDRESS),
        )
        return open_listeners(LISTENERS)


def loopback_alone(sandbox: int) -> None:
    """For an S without a gateway: a descriptor of it."""
    with _inside(sandbox), netlink.open_socket(netlink.NETLINK_ROUTE) as inside:
        netlink.request(inside, "loopback", _up(1))


def open_listeners(names: Iterable[str]) -> list[socket.socket]:
    """In G, in which this process is; in the order of LISTENERS. One whose earlier holder is just dying is waited for.
    Raises OSError(EADDRINUSE) when somebody holds on to it."""
    wanted = set(names)
    return [_open_listener(*LISTENERS[name]) for name in LISTENERS if name in wanted]


@contextmanager
def entered(data: DataDir, sandbox_id: str) -> Iterator[None]:
    """This process is in the sandbox's G meanwhile. Raises NotFound where there is none."""
    pin = data.gateways_dir / sandbox_id
    with ExitStack() as undo:
        try:
            fd = os.open(pin, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            undo.callback(os.close, fd)
            undo.enter_context(_inside(fd))
        except OSError as error:
            # EINVAL: the file alone, of a start that was cut off, or from before a restart of the host.
            if error.errno not in (errno.ENOENT, errno.EINVAL):
                raise
            raise NotFound(f"{sandbox_id} has no network") from None
        yield


@contextmanager
def _inside(namespace: int) -> Iterator[None]:
    home = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        kernel.setns(namespace, kernel.CLONE_NEWNET)
        try:
            yield
        finally:
            kernel.setns(home, kernel.CLONE_NEWNET)
    finally:
        os.close(home)


def remove(data: DataDir, sandbox_id: str, deadline: float) -> None:
    """G goes with its last holder: with this, and with the listeners where somebody has them. None is success."""
    with _folder(data) as folder:
        if not folder.is_dir():
            return
        pin = folder / sandbox_id

        def gone() -> bool:
            with suppress(OSError):  # nothing is mounted there
                kernel.detach(str(pin))
            try:
                pin.unlink(missing_ok=True)
            except OSError as error:
                if error.errno != errno.EBUSY:  # mounted twice by a start that was cut off and repeated
                    raise
                return False
            return True

        if not until(gone, deadline):
            raise InternalError(f"{pin} can't be unmounted")
        if not any(folder.iterdir()):
            with suppress(OSError):
                kernel.detach(str(folder))


@contextmanager
def _folder(data: DataDir) -> Iterator[Path]:
    """By one operation at a time: the last one out takes the mount away that the next one in makes."""
    # A folder that root alone may open: whoever could open it could hold the lock for ever.
    data.sandboxes_dir.mkdir(mode=0o711, exist_ok=True)
    lock = os.open(data.sandboxes_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield data.gateways_dir
    finally:
        os.close(lock)


def _open_listener(kind: int, port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    deadline = time.monotonic() + _IN_USE_S
    last: list[OSError] = []

    def bound() -> bool:
        try:
            made.bind((GATEWAY_ADDRESS, port))
            if kind == socket.SOCK_STREAM:
                made.listen(_BACKLOG)
        except OSError as error:
            last[:] = [error]
            if error.errno != errno.EADDRINUSE:
                raise
            return False
        return True

    try:
        if kind == socket.SOCK_STREAM:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if not until(bound, deadline, 0.02):
            raise last[0]
    except BaseException:
        made.close()
        raise
    return made


def _set(values: dict[str, str]) -> None:
    for name, value in values.items():
        file = Path("/proc/sys/net") / name
        if name.startswith("ipv6/") and not file.exists():
            continue  # a kernel without IPv6 has none to turn off
        file.write_text(value)


def _link(index: int, flags: int = 0) -> bytes:
    return struct.pack("=BBHiII", socket.AF_UNSPEC, 0, 0, index, flags, flags)


def _up(index: int) -> bytes:
    return netlink.message(netlink.RTM_NEWLINK, netlink.NLM_F_REQUEST | netlink.NLM_F_ACK, _link(index, _IFF_UP))


def _new(kind: int, body: bytes) -> bytes:
    flags = netlink.NLM_F_REQUEST | netlink.NLM_F_ACK | netlink.NLM_F_CREATE | netlink.NLM_F_EXCL
    return netlink.message(kind, flags, body)


def _new_veth(sandbox: int) -> bytes:
    """One queue each: by default there are as many as the host has processors."""

    def end(name: str, *more: bytes) -> bytes:
        hardware = netlink.attribute(1, bytes.fromhex(_HARDWARE[name]))
        queues = netlink.u32(31, 1) + netlink.u32(32, 1)
        return _link(_INDEX) + netlink.string(3, name) + hardware + queues + b"".join(more)

    peer = netlink.nested(1, end(SANDBOX_LINK, netlink.u32(28, sandbox)))
    info = netlink.nested(18, netlink.string(1, "veth"), netlink.nested(2, peer))
    return _new(netlink.RTM_NEWLINK, end(GATEWAY_LINK, info))


def _new_address(address: str) -> bytes:
    packed = socket.inet_aton(address)
    head = struct.pack("=BBBBi", socket.AF_INET, PREFIX, 0, 0, _INDEX)
    return _new(netlink.RTM_NEWADDR, head + netlink.attribute(2, packed) + netlink.attribute(1, packed))


def _new_neighbour(address: str, link: str) -> bytes:
    """For ever: neither end asks by ARP, which the gateway drops."""
    head = struct.pack("=BBHiHBB", socket.AF_INET, 0, 0, _INDEX, _PERMANENT, 0, 1)
    hardware = netlink.attribute(2, bytes.fromhex(_HARDWARE[link]))
    return _new(netlink.RTM_NEWNEIGH, head + netlink.attribute(1, socket.inet_aton(address)) + hardware)


def _new_default_route(gateway: str) -> bytes:
    table_main, static, universe, unicast = 254, 4, 0, 1
    head = struct.pack("=BBBBBBBBI", socket.AF_INET, 0, 0, 0, table_main, static, universe, unicast, 0)
    via = netlink.attribute(5, socket.inet_aton(gateway)) + netlink.u32(4, _INDEX)
    return _new(netlink.RTM_NEWROUTE, head + via)
