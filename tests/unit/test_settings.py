"""Kinds of settings that are lists: from the file, from the environment, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from bellglass import settings
from bellglass.errors import InvalidRequest


def test_lists_come_from_the_file_and_from_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "bellglass.toml"
    file.write_text('[egress]\nexceptions = ["10.1.0.0/16", "192.0.2.7"]\nupstream_dns = ["10.1.0.53"]\n')
    assert settings.load(None, {})["egress.exceptions"] == ()
    found = settings.load(file, {"BELLGLASS_EGRESS_PRESETS_PIP": "https://pip.example/simple, http://files.example,"})
    assert found["egress.exceptions"] == ("10.1.0.0/16", "192.0.2.7/32")
    assert found["egress.upstream_dns"] == ("10.1.0.53",)
    assert found["egress.presets_pip"] == ("https://pip.example/simple", "http://files.example")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("egress.exceptions", "10.0.0.1/8"),
        ("egress.exceptions", "everything"),
        ("egress.exceptions", [10]),
        ("egress.upstream_dns", "10.0.0.0/8"),
        ("egress.presets_apt", "ftp://mirror.example"),
        ("egress.presets_apt", ["http://mirror.example/a b"]),
    ],
)
def test_what_is_no_such_list_is_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        settings.load(None, {}, {name: value})
    assert refusal.value.details == {"field": name}


def test_headers_of_sinks() -> None:
    found = settings.load(None, environ={"BELLGLASS_EVENTS_JSONL_HEADERS": "Authorization=Bearer a=b, X-Tenant=t"})
    assert found["events.jsonl_headers"] == (("Authorization", "Bearer a=b"), ("X-Tenant", "t"))
    for wrong in ("Authorization: Bearer s3cret", "A b=s3cret", "A=s3cret\r\nB=c"):
        with pytest.raises(InvalidRequest, match=r"events\.otlp_headers") as caught:
            settings.load(None, environ={"BELLGLASS_EVENTS_OTLP_HEADERS": wrong})
        assert "s3cret" not in str(caught.value)
    for wrong in ("ftp://host/", "host:4318", "http://a b/"):
        with pytest.raises(InvalidRequest, match=r"events\.otlp_endpoint"):
            settings.load(None, environ={"BELLGLASS_EVENTS_OTLP_ENDPOINT": wrong})
    assert settings.load(None, environ={"BELLGLASS_EVENTS_JSONL_URL": ""})["events.jsonl_url"] == ""


def test_a_setting_that_is_not_there_is_named_with_the_one_that_was_meant(tmp_path: Path) -> None:
    file = tmp_path / "bellglass.toml"
    file.write_text('[node]\ndisk_low_water = "2GiB"\n')
    right = {"BELLGLASS_SERVER_PORT": "7301", "BELLGLASS_API_URL": "http://127.0.0.1:1", "HOME": "/"}
    assert settings.load(file, right)["server.port"] == 7301
    with pytest.raises(InvalidRequest, match="BELLGLASS_SERVER_PROT in the environment: unknown") as refused:
        settings.load(file, right | {"BELLGLASS_SERVER_PROT": "7302"})
    assert refused.value.hint == "did you mean 'BELLGLASS_SERVER_PORT'?"
    file.write_text('[node]\ndisk_lowwater = "2GiB"\n')
    with pytest.raises(InvalidRequest, match=r"unknown setting 'node\.disk_lowwater'") as refused:
        settings.load(file, right)
    assert refused.value.hint == "did you mean 'node.disk_low_water'?"
    file.write_text("[node]\nxyzzy = 1\n")
    with pytest.raises(InvalidRequest, match="xyzzy") as refused:
        settings.load(file, right)
    assert "settings.md" in (refused.value.hint or "")
