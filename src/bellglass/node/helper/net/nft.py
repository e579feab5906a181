"""The rules of a gateway, which are the same for every sandbox: built once, put in place by one system call.

Starting nft(8) for them would cost each create some milliseconds. What the kernel has made of them is shown by
`nft list ruleset` in the gateway:

    table netdev guard {                    # before anything of the packet is looked at: no IPv6, no ARP, no VLAN,
      chain arrivals {                      # nobody else's address
        type filter hook ingress device "g0" priority filter; policy drop;
        ip saddr 10.200.0.2 accept
      }
    }
    table ip gateway {
      chain redirected {                    # whatever the sandbox dials is here
        type nat hook prerouting priority dstnat; policy accept;
        tcp dport 53 redirect to :1053
        ip daddr 198.18.0.1 tcp dport 80 redirect to :1081
        meta l4proto tcp redirect to :1080
        udp dport 53 redirect to :1053
      }
      chain others {                        # what was not redirected is refused at once
        type filter hook prerouting priority filter; policy drop;
        ct state new ct count over 4096 reject with icmp admin-prohibited
        ct status dnat accept
        meta l4proto tcp reject with tcp reset
        reject with icmp admin-prohibited
      }
      chain inward {
        type filter hook input priority filter; policy drop;
        ct status dnat accept
      }
      chain onward {
        type filter hook forward priority filter; policy drop;
      }
    }

A dial of a listener's own port changes nothing by being redirected, so it has no `dnat` status and is refused. Tracked
connections are memory of the host that no cgroup counts: hence their limit.
"""

from __future__ import annotations

import socket
import struct

from bellglass.node.helper.net.netlink import (
    NETLINK_NETFILTER,
    NLM_F_ACK,
    NLM_F_APPEND,
    NLM_F_CREATE,
    NLM_F_REQUEST,
    attribute,
    message,
    nested,
    open_socket,
    request,
    string,
)

_BATCH_BEGIN, _BATCH_END, _SUBSYSTEM = 0x10, 0x11, 10
_NEWTABLE, _NEWCHAIN, _NEWRULE = 0, 3, 6
_NFPROTO_IPV4, _NFPROTO_NETDEV = 2, 5
_NF_DROP, _NF_ACCEPT = 0, 1
_VERDICT, _REGISTER = 0, 1
_NETWORK_HEADER, _TRANSPORT_HEADER = 1, 2
_META_PROTOCOL, _META_L4PROTO = 1, 16
_CT_STATE, _CT_STATUS = 0, 2
_CT_IS_NEW, _CT_IS_DNAT = 8, 0x20
_OVER = 1
_PORT_IS_GIVEN = 2
_UNREACHABLE, _RESET = 0, 1
_ADMIN_PROHIBITED = 13


class _Rules:
    """One batch: the kernel takes all of it or nothing."""

    def __init__(self) -> None:
        self._messages = [self._edge(_BATCH_BEGIN)]

    def table(self, family: int, name: str) -> None:
        self._add(_NEWTABLE, NLM_F_CREATE, family, string(1, name))

    def chain(
        self, family: int, table: str, name: str, *, kind: str, hook: int, priority: int, policy: int, device: str = ""
    ) -> None:
        where = [_number(1, hook), _number(2, priority)] + ([string(3, device)] if device else [])
        body = string(1, table) + string(3, name) + nested(4, *where) + _number(5, policy) + string(7, kind)
        self._add(_NEWCHAIN, NLM_F_CREATE, family, body)

    def rule(self, family: int, table: str, chain: str, *expressions: list[bytes]) -> None:
        elements = [element for expression in expressions for element in expression]
        body = string(1, table) + string(2, chain) + nested(4, *elements)
        self._add(_NEWRULE, NLM_F_CREATE | NLM_F_APPEND, family, body)

    def __bytes__(self) -> bytes:
        return b"".join([*self._messages, self._edge(_BATCH_END)])

    @property
    def count(self) -> int:
        """How many of them the kernel acknowledges."""
        return len(self._messages) - 1

    def _add(self, kind: int, flags: int, family: int, body: bytes) -> None:
        flags |= NLM_F_REQUEST | NLM_F_ACK
        sequence = len(self._messages)
        self._messages.append(message(_SUBSYSTEM << 8 | kind, flags, _general(family, 0) + body, sequence))

    @staticmethod
    def _edge(kind: int) -> bytes:
        return message(kind, NLM_F_REQUEST, _general(0, _SUBSYSTEM), 0)


def _general(family: int, resource: int) -> bytes:
    return struct.pack("!BBH", family, 0, resource)


def _number(kind: int, value: int) -> bytes:
    """In network byte order, as nf_tables has its numbers."""
    return attribute(kind, struct.pack("!i" if value < 0 else "!I", value))


def _expression(name: str, *attributes: bytes) -> bytes:
    return nested(1, string(1, name), nested(2, *attributes))


def _compare(value: bytes, operation: int = 0) -> bytes:
    return _expression("cmp", _number(1, _REGISTER), _number(2, operation), nested(3, attribute(1, value)))


def _meta_is(key: int, value: bytes) -> list[bytes]:
    return [_expression("meta", _number(1, _REGISTER), _number(2, key)), _compare(value)]


def _payload_is(header: int, offset: int, value: bytes) -> list[bytes]:
    place = (_number(2, header), _number(3, offset), _number(4, len(value)))
    return [_expression("payload", _number(1, _REGISTER), *place), _compare(value)]


def _ct_has(key: int, bit: int) -> list[bytes]:
    masks = nested(4, attribute(1, struct.pack("=I", bit))), nested(5, attribute(1, bytes(4)))
    masked = _expression("bitwise", _number(1, _REGISTER), _number(2, _REGISTER), _number(3, 4), *masks)
    return [_expression("ct", _number(1, _REGISTER), _number(2, key)), masked, _compare(bytes(4), operation=1)]


def _more_connections_than(count: int) -> list[bytes]:
    return [_expression("connlimit", _number(1, count), _number(2, _OVER))]


def _accept() -> list[bytes]:
    verdict = nested(2, nested(2, _number(1, _NF_ACCEPT)))
    return [_expression("immediate", _number(1, _VERDICT), verdict)]


def _redirect(port: int) -> list[bytes]:
    value = _expression("immediate", _number(1, _REGISTER), nested(2, attribute(1, struct.pack("!H", port))))
    ports = _number(1, _REGISTER), _number(2, _REGISTER), _number(3, _PORT_IS_GIVEN)
    return [value, _expression("redir", *ports)]


def _reject(kind: int, code: int) -> list[bytes]:
    return [_expression("reject", _number(1, kind), attribute(2, bytes([code])))]


def gateway_rules(
    *, device: str, sandbox: str, identity: str, proxy_port: int, dns_port: int, identity_port: int, connections: int
) -> tuple[bytes, int]:
    """The batch, and how many acknowledgements it gets."""
    rules, table = _Rules(), "gateway"
    ipv4 = _meta_is(_META_PROTOCOL, struct.pack("!H", 0x0800))
    tcp = _meta_is(_META_L4PROTO, bytes([socket.IPPROTO_TCP]))
    udp = _meta_is(_META_L4PROTO, bytes([socket.IPPROTO_UDP]))
    dns, http = (_payload_is(_TRANSPORT_HEADER, 2, struct.pack("!H", port)) for port in (53, 80))
    source = _payload_is(_NETWORK_HEADER, 12, socket.inet_aton(sandbox))
    to_identity = _payload_is(_NETWORK_HEADER, 16, socket.inet_aton(identity))
    redirected = _ct_has(_CT_STATUS, _CT_IS_DNAT)

    rules.table(_NFPROTO_NETDEV, "guard")
    rules.chain(
        *(_NFPROTO_NETDEV, "guard", "arrivals"), kind="filter", hook=0, priority=0, policy=_NF_DROP, device=device
    )
    rules.rule(_NFPROTO_NETDEV, "guard", "arrivals", ipv4, source, _accept())

    def chain(name: str, hook: int, *lines: tuple[list[bytes], ...], kind: str = "filter", priority: int = 0) -> None:
        policy = _NF_ACCEPT if kind == "nat" else _NF_DROP
        rules.chain(_NFPROTO_IPV4, table, name, kind=kind, hook=hook, priority=priority, policy=policy)
        for line in lines:
            rules.rule(_NFPROTO_IPV4, table, name, *line)

    rules.table(_NFPROTO_IPV4, table)
    chain(
        *("redirected", 0),
        (tcp, dns, _redirect(dns_port)),
        (to_identity, tcp, http, _redirect(identity_port)),
        (tcp, _redirect(proxy_port)),
        (udp, dns, _redirect(dns_port)),
        kind="nat",
        priority=-100,
    )
    chain(
        *("others", 0),
        (
            _ct_has(_CT_STATE, _CT_IS_NEW),
            _more_connections_than(connections),
            _reject(_UNREACHABLE, _ADMIN_PROHIBITED),
        ),
        (redirected, _accept()),
        (tcp, _reject(_RESET, 0)),
        (_reject(_UNREACHABLE, _ADMIN_PROHIBITED),),
    )
    chain("inward", 1, (redirected, _accept()))
    chain("onward", 2)
    return bytes(rules), rules.count


def apply(rules: tuple[bytes, int]) -> None:
    """In this process's network namespace. Raises OSError."""
    batch, count = rules
    with open_socket(NETLINK_NETFILTER) as channel:
        request(channel, "nf_tables", batch, expected=count)
