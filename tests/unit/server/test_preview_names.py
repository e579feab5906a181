"""Names and tokens of published ports by themselves: what a Host names, what a token is good for."""

from __future__ import annotations

import string
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bellglass import settings
from bellglass.errors import InvalidRequest
from bellglass.http1 import Request
from bellglass.server.ports import tokens
from bellglass.server.ports.tokens import Kind
from bellglass.server.previews import access
from bellglass.server.previews.origins import Named, Origins

BOX = "sb" + "a" * 20


def origins(**values: object) -> Origins:
    return Origins.of(settings.load(None, {}, {f"previews.{name}": value for name, value in values.items()}), 7380)


def test_urls_as_browsers_write_them() -> None:
    assert origins().origin(BOX, 80, None) == f"http://{BOX}-80.localhost:7380"
    assert origins().origin(BOX, 80, "127.1.2.3") == "http://127.1.2.3:7380"
    proxied = origins(domain="Preview.example.net", scheme="https", public_port=443)
    assert proxied.origin(BOX, 80, None) == f"https://{BOX}-80.preview.example.net"
    assert origins(scheme="http", public_port=80).origin(BOX, 80, None) == f"http://{BOX}-80.localhost"


@pytest.mark.parametrize("values", [{"domain": "a..b"}, {"domain": "-a"}, {"domain": "1.2.3.4"}, {"scheme": "ftp"}])
def test_settings_that_name_nothing(values: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest):
        origins(**values)


@given(st.integers(1, 65535), st.sampled_from(["", ":1", ":65535"]))
def test_what_is_published_is_found_by_its_name(port: int, listener: str) -> None:
    assert origins().parse(f"{BOX}-{port}.localhost{listener}") == Named(BOX, port, None)
    assert origins().parse(f"{port}-{BOX}.localhost{listener}") == Named(BOX, port, None, is_turned=True)


@given(st.text(string.printable, max_size=60))
def test_any_host_is_a_name_or_none(text: str) -> None:
    for host in (
        text,
        f"{BOX}-80.localhost{text}",
        f"{text}{BOX}-80.localhost",
        f"{BOX}-{text}.localhost",
        f"127.{text}",
    ):
        found = origins().parse(host)
        if found is not None and found.address is None:
            parts = (found.port, found.sandbox_id) if found.is_turned else (found.sandbox_id, found.port)
            assert host.lower().partition(":")[0] == "{}-{}.localhost".format(*parts)
        elif found is not None:
            assert found.address == host.partition(":")[0]


MAKER = "ky" + "a7" * 8


@given(st.binary(max_size=80), st.integers(0, 63), st.integers(0, 255))
def test_a_token_is_good_as_it_was_made_and_for_its_origin_alone(noise: bytes, at: int, value: int) -> None:
    key, other_key, now = "ab" * 32, "cd" * 32, time.time()
    made = tokens.make(key, "http://a", Kind.TOKEN, now + 60, MAKER)
    used = tokens.check(key, "http://a", made, now)
    assert (
        used is not None
        and used.kind is Kind.TOKEN
        and used.maker == MAKER
        and abs(used.expires_at_unix - now - 60) < 0.01
    )
    assert tokens.check(key, "http://b", made, now) is None and tokens.check(other_key, "http://a", made, now) is None
    assert tokens.check(key, "http://a", made, now + 61) is None
    assert tokens.check(key, "http://a", "bgp_" + noise.decode("latin-1"), now) is None
    changed = made[: 4 + at] + string.printable[value % 100] + made[5 + at :]
    again = tokens.check(key, "http://a", changed, now)
    assert again is None or changed == made


@given(
    st.lists(
        st.sampled_from(["a=1", " bellglass=x", "__Host-bellglass=y ", 'b="q"', "bellglass", " ", "c"]), max_size=6
    )
)
def test_no_cookie_of_ours_is_left(pairs: list[str]) -> None:
    value = ";".join(pairs).encode()
    shown = access.take(Request(b"GET", b"/", 1, [(b"Host", b"h"), (b"Cookie", value)]), "https")
    left = [value for name, value in shown.request.headers if name == b"Cookie"]
    names = [pair.partition(b"=")[0].strip() for value in left for pair in value.split(b";")]
    assert not {b"bellglass", b"__Host-bellglass"} & set(names)
    assert shown.in_cookies == ["y"] * sum("__Host" in pair for pair in pairs)
    if not any("bellglass" in pair for pair in pairs):
        assert left == [value]
    kept = [pair.strip() for pair in pairs if "bellglass" not in pair]
    assert [pair.strip() for value in left for pair in value.decode().split(";") if pair.strip()] == [
        k for k in kept if k
    ]


@given(st.lists(st.sampled_from(["a=1", "_bellglass_token=x", "%5Fbellglass_token=y", "b", "", "c=%20"]), max_size=6))
def test_no_token_is_left_in_the_query(pairs: list[str]) -> None:
    target = "/p?" + "&".join(pairs)
    shown = access.take(Request(b"GET", target.encode(), 1, [(b"Host", b"h")]), "http")
    kept = [pair for pair in pairs if "bellglass" not in pair]
    if kept == pairs:
        assert shown.request.target.decode() == target and shown.in_query == []
    else:
        assert shown.request.target.decode() == ("/p?" + "&".join(kept) if kept else "/p")
        assert len(shown.in_query) == len(pairs) - len(kept)
