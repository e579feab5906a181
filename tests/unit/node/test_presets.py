"""Presets: rules from URLs, and what the host's own tools say, asked for real against an index of this test's."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from bellglass import settings
from bellglass.egress.policy import Policy
from bellglass.model import NetworkPolicy, NetworkRule
from bellglass.node.net.presets import Presets, preset_of

PAGES = {
    "/simple/pip/": '<html><a href="http://files.test:8081/a.whl#sha256=00">a</a><a href="../../b.whl">b</a>'
    '<a href="https://FILES.test/c.whl">c</a><a href="mailto:x@y">d</a></html>',
    "/more/pip/": '<a href="http://more.test/d.whl">d</a>',
    "/npm/latest": json.dumps({"dist": {"tarball": "https://tarballs.test/npm.tgz"}}),
}


class Index(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/moved/pip/":
            self.send_response(302)
            self.send_header("Location", f"http://localhost:{self.server.server_address[1]}/simple/pip/")
            self.end_headers()
            return
        page = PAGES.get(self.path)
        self.send_response(200 if page else 404)
        self.end_headers()
        self.wfile.write((page or "").encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def index() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Index)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def discover(name: str) -> dict[str, Any]:
    argv = [sys.executable, "-m", "bellglass.node.net.discover", name]
    return dict(json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout))


def presets(remembered: dict[str, str] | None = None, **overrides: Any) -> Presets:
    kept = {} if remembered is None else remembered

    async def remember(key: str, value: str | None = None) -> str | None:
        if value is not None:
            kept[key] = value
        return kept.get(key)

    values = {f"egress.presets_{name}": value for name, value in overrides.items()}
    return Presets(settings.load(None, {}, values), remember)


def test_rules_of_urls() -> None:
    urls = (
        "https://me:secret@Pip.Example/simple",
        "http://files.example:8080/",
        "https://files.example",
        "http://1.2.3.4/",
    )
    found = preset_of("pip", urls)
    assert [(rule.get("host") or rule["cidr"], rule["ports"]) for rule in found.rules] == [
        ("pip.example", [443]), ("files.example", [443, 8080]), ("1.2.3.4/32", [80])
    ]  # fmt: skip
    assert found.variables["PIP_INDEX_URL"] == "https://Pip.Example/simple", "the password stays outside"
    Policy.parse({"mode": "rules", "rules": list(found.rules)})
    plain = preset_of("pip", ("http://me:secret@pip.example:8080/simple",), ["https://you:secret@more.example/simple"])
    assert plain.variables == {
        "PIP_INDEX_URL": "http://pip.example:8080/simple", "PIP_EXTRA_INDEX_URL": "https://more.example/simple",
        "PIP_TRUSTED_HOST": "pip.example:8080",
    }  # fmt: skip
    assert [rule["host"] for rule in plain.rules] == ["pip.example", "more.example"]
    assert preset_of("npm", urls[1:]).variables == {"npm_config_registry": "http://files.example:8080/"}
    assert preset_of("apt", urls[1:]).variables == {}
    for wrong in ("https:///simple", "https://a b/", "https://*.example/", "https://0x7f.1/", "ftp://a.example/"):
        with pytest.raises(ValueError, match="names no host"):
            preset_of("pip", (wrong,))


def test_pip_is_asked_and_its_index_is_read(index: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    hosts = ["http://files.test:8081/", "https://FILES.test/"]
    expected = {"urls": [f"{index}/simple", *hosts], "extra_indexes": []}
    monkeypatch.setenv("PIP_INDEX_URL", f"{index}/simple")
    assert discover("pip") == expected
    monkeypatch.delenv("PIP_INDEX_URL")
    (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = {index}/simple\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    assert discover("pip") == expected
    (tmp_path / "pip.conf").write_text(
        f"[global]\nindex-url = {index}/simple\nextra-index-url =\n    file:///opt/x\n    {index}/more\n"
    )
    assert discover("pip") == {
        "urls": [f"{index}/simple", *hosts, "http://more.test/"],
        "extra_indexes": [f"{index}/more"],
    }
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"{index}/empty")
    assert discover("pip")["extra_indexes"] == [f"{index}/empty"], "which has no page of pip"
    monkeypatch.setenv("PIP_INDEX_URL", f"{index}/moved")
    there = index.replace("127.0.0.1", "localhost")
    assert discover("pip")["urls"] == [f"{index}/moved", f"{there}/", *hosts]
    monkeypatch.setenv("PIP_INDEX_URL", f"{index}/elsewhere")
    assert "can't be read" in discover("pip")["problem"]
    monkeypatch.setenv("PIP_INDEX_URL", "file:///opt/simple")
    assert "is not on a host" in discover("pip")["problem"]


def test_npm_is_asked_if_it_is_there(index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("npm_config_registry", f"{index}/")
    if shutil.which("npm"):
        assert discover("npm") == {"urls": [f"{index}/", "https://tarballs.test/"]}
    python_alone = str(shutil.which("python3")).rpartition("/")[0]
    monkeypatch.setenv("PATH", "/nonexistent")
    assert python_alone and "npm is not installed" in discover("npm")["problem"]


def test_apt_tells_the_mirrors_that_templates_come_from() -> None:
    from bellglass.node.image import apt_sources

    found = discover("apt")
    assert found["urls"] == list(dict.fromkeys(line.split()[1] for line in apt_sources.host_sources("bookworm")))


def test_documents(run: Any) -> None:
    async def scenario() -> None:
        known = presets(pip="https://pip.example/simple")
        assert await known.document("deny") == {"mode": "deny", "rules": []}
        assert await known.document("open") == {"mode": "open", "rules": []}
        but = NetworkPolicy(mode="open", deny=["203.0.114.0/24", "2a00::/16"])
        assert Policy.parse(await known.document(but)).to_document() == await known.document(but)
        assert await known.document(but) == {"mode": "open", "rules": [], "deny": ["203.0.114.0/24", "2a00::/16"]}
        allow = [NetworkRule(host="a.example"), NetworkRule(cidr="203.0.114.0/24", ports=[22])]
        document = await known.document(NetworkPolicy(presets=["pip", "of-tomorrow"], allow=list(allow)))
        assert Policy.parse(document).to_document() == document
        assert [rule["origin"] for rule in document["rules"]] == ["allow", "allow", "preset:pip"], (
            "the unknown opens nothing"
        )
        assert await known.variables(NetworkPolicy(presets=["pip"])) == {"PIP_INDEX_URL": "https://pip.example/simple"}
        assert await known.variables("open") == {}

    run(scenario())


def test_one_with_a_problem_is_tried_again(run: Any, index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        kept: dict[str, str] = {}
        known, pip = presets(kept), NetworkPolicy(presets=["pip"])
        monkeypatch.setenv("PIP_INDEX_URL", f"{index}/nothing")
        found = (await known.find(["pip", "nonsense"]))["pip"]
        assert (await known.document(pip))["rules"] == []
        assert found.rules == () and "can't be read" in str(found.problem) and "egress.presets_pip" in str(found.hint)
        assert set(found.to_json()) == {"problem", "hint"}
        monkeypatch.setenv("PIP_INDEX_URL", f"{index}/simple")
        found = (await known.find(["pip"]))["pip"]
        assert found.problem is None
        assert found.to_json() == {"rules": list(found.rules)}
        monkeypatch.setenv("PIP_INDEX_URL", f"{index}/nothing")
        assert await known.find(["pip"]) == {"pip": found}, "asked once"

        # A node that starts again while the index does not answer goes on with what it knew, but tells who asks.
        later = presets(kept)
        assert (await later.document(pip))["rules"] == list(found.rules)
        assert await later.variables(pip) == found.variables
        assert (await later.find(["pip"]))["pip"].problem
        moved = presets(kept, pip="https://other.example/")
        assert [rule["host"] for rule in (await moved.document(pip))["rules"]] == ["other.example"]

    run(scenario())


def test_renewing_asks_again_and_keeps_what_there_was_in_trouble(
    run: Any, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = NetworkPolicy(presets=["pip"], allow=[])
    kept: dict[str, str] = {}

    async def scenario() -> None:
        made = presets(kept)
        monkeypatch.setenv("PIP_INDEX_URL", index + "/simple")
        first = await made.document(network)
        assert {rule.get("host") for rule in first["rules"]} >= {"files.test"}
        monkeypatch.setenv("PIP_INDEX_URL", index + "/more")
        assert await made.document(network) == first, "it is asked once"
        assert (await made.renew(["pip"]))["pip"].problem is None
        second = await made.document(network)
        assert {rule.get("host") for rule in second["rules"]} >= {"more.test"} and second != first
        assert (await made.variables(network))["PIP_INDEX_URL"] == index + "/more"
        monkeypatch.setenv("PIP_INDEX_URL", index + "/nowhere")
        assert (await made.renew(["pip"]))["pip"].problem is not None
        assert await made.document(network) == second
        assert await presets(kept).document(network) == second, "and a node that starts again has it too"

    run(scenario())
