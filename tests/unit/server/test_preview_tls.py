"""Published ports over TLS with the installation's own CA: names, cookies, what is refused."""

from __future__ import annotations

import socket
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from preview_rig import Answer, Site, Visitor, program
from server_harness import Harness, error_of, make_data_dir

from bellglass.errors import InvalidRequest
from bellglass.supervise import preview_ca

DOMAIN = "preview.localhost"


class TlsVisitor(Visitor):
    def __init__(self, port: int, host: str, ca: Path, **more: Any) -> None:
        super().__init__(port, host)
        context = ssl.create_default_context(cafile=ca)
        context.set_alpn_protocols(["h2", "http/1.1"])
        try:
            self.connection = context.wrap_socket(self.connection, server_hostname=more.get("name", host))
        except BaseException:
            self.connection.close()
            raise
        self.file = self.connection.makefile("rb")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Harness, preview_ca.Made]]:
    root = tmp_path_factory.mktemp("tls")
    certificate = preview_ca.make(make_data_dir(root), DOMAIN)
    options = {
        "previews.domain": DOMAIN, "previews.tls_cert": str(certificate.cert), "previews.tls_key": str(certificate.key),
    }  # fmt: skip
    harness = Harness(root, options).start()
    yield harness, certificate
    harness.stop()


def visit(harness: Harness, ca: Path, site: Site, target: str, *headers: str, **more: Any) -> Answer:
    with TlsVisitor(harness.previews_port, site.host, ca, **more) as visitor:
        assert visitor.connection.selected_alpn_protocol() == "http/1.1"
        return visitor.ask(target, *headers)


def test_a_private_port_over_tls(made: tuple[Harness, preview_ca.Made]) -> None:
    harness, certificate = made
    with program() as shown:
        site = Site(harness, harness.project("p1"), shown.port)
        site.host = f"{site.sandbox_id}-{shown.port}.{DOMAIN}"
        assert site.record["url"] == f"https://{site.host}:{harness.previews_port}"
        assert visit(harness, certificate.ca, site, "/").status == 401
        token = site.token()["token"]
        handed = visit(harness, certificate.ca, site, f"/a?_bellglass_token={token}")
        assert handed.status == 302 and handed.header("location") == site.record["url"] + "/a"
        cookie, *attributes = (handed.header("set-cookie") or "").split("; ")
        assert cookie.startswith("__Host-bellglass=bgp_")
        assert {"Path=/", "Secure", "HttpOnly", "SameSite=None", "Partitioned"} < set(attributes)
        assert "Domain" not in handed.header("set-cookie")
        answered = visit(harness, certificate.ca, site, "/a", f"Cookie: {cookie}")
        assert answered.status == 200 and b"X-Forwarded-Proto: https\r\n" in answered.body
        assert b"ellglass" not in answered.body.replace(site.host.encode(), b"")
        # The plain name is not the secure one: a sibling may have set it.
        value = cookie.partition("=")[2]
        assert visit(harness, certificate.ca, site, "/a", f"Cookie: bellglass={value}").status == 401
        error_of(site.api.put(site.path, json={"own_address": True}), 422)


def test_the_ca_is_for_its_domain_alone(made: tuple[Harness, preview_ca.Made]) -> None:
    harness, certificate = made
    with pytest.raises(ssl.SSLCertVerificationError):
        TlsVisitor(harness.previews_port, "x", certificate.ca, name="example.com")
    from cryptography import x509

    ca = x509.load_pem_x509_certificate(certificate.ca.read_bytes())
    names = ca.extensions.get_extension_for_class(x509.NameConstraints).value
    assert [name.value for name in names.permitted_subtrees] == [DOMAIN]


def test_without_tls_on_the_port_of_tls(made: tuple[Harness, preview_ca.Made]) -> None:
    harness, certificate = made
    with socket.create_connection(("127.0.0.1", harness.previews_port), timeout=15) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        try:
            assert plain.recv(100) == b""
        except ConnectionResetError:
            pass
    with program() as shown:
        site = Site(harness, harness.project("p1"), shown.port, visibility="public")
        site.host = f"{site.sandbox_id}-{shown.port}.{DOMAIN}"
        assert visit(harness, certificate.ca, site, "/").status == 200


def test_making_it_again_renews_the_certificate_and_keeps_the_ca(tmp_path: Path) -> None:
    data = make_data_dir(tmp_path / "data")
    first = preview_ca.make(data, DOMAIN)
    ca, cert = first.ca.read_bytes(), first.cert.read_bytes()
    again = preview_ca.make(data, DOMAIN)
    assert first.new_ca and not again.new_ca
    assert again.ca.read_bytes() == ca and again.cert.read_bytes() != cert
    for path in (again.key, again.ca.with_suffix(".key")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(InvalidRequest, match=r"localhost"):
        preview_ca.make(data, "localhost")


def test_a_certificate_that_can_not_be_read(tmp_path: Path) -> None:
    from bellglass import settings
    from bellglass.server.previews.listener import tls_context

    for values in ({"previews.tls_cert": str(tmp_path / "none.pem")}, {"previews.tls_key": str(tmp_path / "none.pem")}):
        with pytest.raises(InvalidRequest, match=r"previews\.tls_cert"):
            tls_context(settings.load(None, {}, values))
    assert tls_context(settings.load(None, {}, {})) is None
