"""Where the server is: arguments, environment, profile, in this order, and no key for a stranger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bellglass import ClientError, InvalidRequest
from bellglass.sdk._config import profile_path, resolve, resolve_current


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({"api_url": "http://127.0.0.1:7300", "api_key": "bg_profile", "data_dir": "/d"}))
    return {"BELLGLASS_PROFILE": str(path)}


def test_order(environ: dict[str, str]) -> None:
    assert resolve(environ=environ).api_key == "bg_profile"
    environ |= {"BELLGLASS_API_URL": "https://env.example:8443/prefix/", "BELLGLASS_API_KEY": "bg_env"}
    found = resolve(environ=environ)
    assert (found.scheme, found.host, found.port, found.prefix, found.api_key) == (
        "https", "env.example", 8443, "/prefix", "bg_env",
    )  # fmt: skip
    assert found.api_url == "https://env.example:8443/prefix"
    assert resolve("http://[::1]:1", "bg_arg", environ).api_url == "http://[::1]:1"
    assert resolve(api_key="bg_arg", environ=environ).api_key == "bg_arg"


def test_the_profiles_key_goes_to_its_own_server_only(environ: dict[str, str]) -> None:
    assert resolve("http://127.0.0.1:7300/", environ=environ).api_key == "bg_profile"
    with pytest.raises(ClientError, match="no API key"):
        resolve("http://elsewhere:7300", environ=environ)
    assert resolve(api_key="bg_other", environ=environ).api_url == "http://127.0.0.1:7300"


def test_nothing_known_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ClientError, match="bellglass up"):
        resolve(environ={"BELLGLASS_PROFILE": str(tmp_path / "none")})


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"api_url": "x"}', "null"])
def test_a_broken_profile_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(content)
    with pytest.raises(ClientError, match=r"profile\.json"):
        resolve(environ={"BELLGLASS_PROFILE": str(path)})


@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:7300", "ftp://a", "http://", "http://a:99999", "http://u:p@a", "http://a/?q=1", "http://a/#f", "x"],
)
def test_addresses_that_are_none(url: str) -> None:
    assert resolve("http://a:1", "bg_k", {}).port == 1
    with pytest.raises(InvalidRequest, match="api_url"):
        resolve(url, "bg_k", {})


@pytest.mark.parametrize("key", ["a b", "a\nb", "a\r\nx: y", "ü"])
def test_keys_that_are_none_and_are_not_shown(key: str) -> None:
    with pytest.raises(InvalidRequest, match="api_key") as caught:
        resolve("http://a", key, {})
    assert key not in str(caught.value)


def test_where_the_profile_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    assert profile_path({"BELLGLASS_PROFILE": "/p"}) == Path("/p")
    assert profile_path({"XDG_CONFIG_HOME": "/x"}) == Path("/x/bellglass/profile.json")
    monkeypatch.setenv("HOME", "/h")
    assert profile_path({}) == Path("/h/.config/bellglass/profile.json")


def test_repr_has_no_key(environ: dict[str, str]) -> None:
    shown: Any = repr(resolve(environ=environ))
    assert "bg_profile" not in shown


INSIDE = {"BELLGLASS_API_URL": "http://198.18.0.1", "BELLGLASS_TOKEN": "this-sandbox", "BELLGLASS_SANDBOX_ID": "sb1"}


def test_inside_of_a_sandbox(environ: dict[str, str]) -> None:
    config, sandbox_id = resolve_current(INSIDE)
    assert (config.api_url, config.api_key, sandbox_id) == ("http://198.18.0.1", "this-sandbox", "sb1")
    assert resolve_current(INSIDE | {"BELLGLASS_API_KEY": "bg_env"})[0].api_key == "this-sandbox"
    assert resolve(environ=INSIDE).api_key == "this-sandbox"
    assert resolve(environ=INSIDE | {"BELLGLASS_API_KEY": "bg_env"}).api_key == "bg_env"
    with pytest.raises(ClientError, match="no API key"):
        resolve("http://elsewhere:7300", environ=environ | INSIDE)


@pytest.mark.parametrize("missing", INSIDE)
def test_outside_of_one(missing: str) -> None:
    with pytest.raises(ClientError, match=missing):
        resolve_current({name: value for name, value in INSIDE.items() if name != missing})
