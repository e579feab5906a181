"""Published ports in a real browser: links and cookies, frames of another site, WebSocket, and what origins hide."""

from __future__ import annotations

import base64
import hashlib
import http.server
import ssl
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bellglass.datadir import DataDir
from bellglass.supervise import preview_ca
from bellglass.testing.stack import PARENT_DIR, Stack
from tests.functional import browsed_app
from tests.functional.browser import Browser, Page, browser
from tests.functional.own import own_installation

pytestmark = pytest.mark.root
DOMAIN, OTHER_SITE = "preview.test", "elsewhere.test"
APP = Path(browsed_app.__file__).read_text()
FRAME = """new Promise((resolve, reject) => {
  addEventListener("message", (event) => event.data.error ? reject(event.data.error) : resolve(event.data));
  const frame = document.createElement("iframe");
  frame.src = %r;
  document.body.append(frame);
})"""


def serve(box: Any, **options: Any) -> Any:
    box.start(["python3", "-c", APP, "8000"])
    return box.publish(8000, **options)


def seen(page: Page) -> str:
    """The heads of all requests that the program got."""
    return "\n".join(page.evaluate("fetch('/seen').then((answer) => answer.json())"))


def key_hash(certificate: Path) -> str:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = x509.load_pem_x509_certificate(certificate.read_bytes()).public_key()
    digest = hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()
    return base64.b64encode(digest).decode()


@contextmanager
def another_site(made: preview_ca.Made) -> Iterator[str]:
    """An empty page of another site over TLS. Its URL."""

    class Empty(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><body>")

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Empty)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.cert, made.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"https://www.{OTHER_SITE}:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Secure(NamedTuple):
    stack: Stack
    browser: Browser
    other_site: str


@pytest.fixture(scope="module")
def secure() -> Iterator[Secure]:
    """Published ports over TLS, a browser that takes no cookie of third parties unless it is partitioned."""
    with tempfile.TemporaryDirectory(dir=PARENT_DIR) as folder:
        root = Path(folder)
        root.chmod(0o755)
        ours, theirs = (preview_ca.make(DataDir(root), domain) for domain in (DOMAIN, OTHER_SITE))
        key = root / "server.key"  # the daemon's user is to read it
        key.write_bytes(ours.key.read_bytes())
        settings = {"previews.domain": DOMAIN, "previews.tls_cert": str(ours.cert), "previews.tls_key": str(key)}
        trusted = [key_hash(ours.cert), key_hash(theirs.cert)]
        with (
            own_installation(settings=settings) as running,
            another_site(theirs) as url,
            browser(*trusted, domains=[DOMAIN, OTHER_SITE], third_party_cookies=False) as started,
        ):
            yield Secure(running, started, url)


@pytest.fixture
def secure_box(secure: Secure) -> Iterator[Any]:
    with secure.stack.sandbox(cpus=1, memory="512MiB", disk="1GiB") as box:
        yield box


def test_a_link_and_its_cookie(secure: Secure, secure_box: Any) -> None:
    published = serve(secure_box)
    link = published.token_url("/?a=1")
    page = secure.browser.page()
    assert page.goto(published.url + "/") == [(401, published.url + "/")]
    assert page.goto(link) == [(302, link), (200, published.url + "/?a=1")]
    told = page.evaluate("told")
    assert told["echoed"] == "through the preview" and told["protocol"] == "chat"
    assert told["cookie"] == "" and told["href"] == published.url + "/?a=1" and told["origin"] == published.url
    (cookie,) = [each for each in page.cookies() if each["name"] == "__Host-bellglass"]
    assert cookie["httpOnly"] and cookie["secure"] and cookie["sameSite"] == "None"
    assert cookie["domain"] == published.url.removeprefix("https://").rpartition(":")[0]
    assert cookie["partitionKey"]["topLevelSite"] == f"https://{DOMAIN}"
    assert page.goto(published.url + "/again") == [(200, published.url + "/again")]
    heads = seen(page)
    assert "app=theirs" in heads and "GET /echo" in heads
    assert cookie["value"] not in heads and "ellglass" not in heads.replace(published.url, "")
    assert secure.browser.page().goto(published.url + "/") == [(401, published.url + "/")]
    published.revoke_tokens()
    assert page.goto(published.url + "/") == [(401, published.url + "/")]


def test_in_a_frame_of_another_site(secure: Secure, secure_box: Any) -> None:
    published = serve(secure_box)
    page = secure.browser.page()
    page.goto(secure.other_site)
    told = page.evaluate(FRAME % published.token_url())
    assert told["framed"] and told["echoed"] == "through the preview" and told["cookie"] == ""
    assert told["href"] == published.url + "/"
    page.goto(secure.other_site)
    assert page.evaluate(FRAME % (published.url + "/later"))["framed"], "the cookie is kept for frames of this site"
    (cookie,) = [each for each in page.cookies() if each["name"] == "__Host-bellglass"]
    assert cookie["partitionKey"]["topLevelSite"] == f"https://{OTHER_SITE}"
    assert page.goto(published.url + "/") == [(401, published.url + "/")], "and for nothing else"


def test_frame_ancestors(secure: Secure, secure_box: Any) -> None:
    site = secure.other_site.rstrip("/")
    published = serve(secure_box, visibility="public", frame_ancestors=[site])
    page = secure.browser.page()
    page.goto(secure.other_site)
    assert page.evaluate(FRAME % (published.url + "/"))["framed"]
    secure_box.publish(8000, visibility="public", frame_ancestors=["https://another.test"])
    page.goto(secure.other_site)
    page.evaluate(f"""new Promise((resolve) => {{
        window.heard = [];
        addEventListener("message", (event) => heard.push(event.data));
        const frame = document.createElement("iframe");
        frame.onload = resolve;
        frame.src = "{published.url}/refused";
        document.body.append(frame);
    }})""")

    def refused() -> bool:
        told = [str(event) for event in page.events("Log.entryAdded", "Runtime.consoleAPICalled")]
        return any("frame-ancestors" in text and "another.test" in text for text in told)

    secure.browser.until(refused, "word that the frame was refused")
    assert page.evaluate("heard") == []


def test_sandboxes_are_strangers_to_each_other(secure: Secure, secure_box: Any) -> None:
    published = serve(secure_box)
    with secure.stack.sandbox(cpus=1, memory="512MiB", disk="1GiB") as other:
        foreign = serve(other)
        strangers(secure.browser.page(), published, foreign)


ATTEMPTS = """(async () => {
  const [there, tag] = [%r, %r];
  const loaded = (element, url) => new Promise((resolve) => {
    element.onload = element.onerror = resolve;
    element.src = url;
    document.body.append(element);
  });
  await fetch(`${there}/cors-${tag}`, {credentials: "include"}).catch(() => 0);
  await fetch(`${there}/no-cors-${tag}`, {credentials: "include", mode: "no-cors"}).catch(() => 0);
  await loaded(new Image(), `${there}/image-${tag}`);
  await loaded(document.createElement("script"), `${there}/script-${tag}`);
  await loaded(document.createElement("iframe"), `${there}/frame-${tag}`);
  await new Promise((resolve) => {
    const socket = new WebSocket(`${there}/socket-${tag}`.replace("http", "ws"));
    socket.onopen = socket.onerror = resolve;
  });
  const worker = (await navigator.serviceWorker.register("/worker.js"), (await navigator.serviceWorker.ready).active);
  await new Promise((resolve) => {
    navigator.serviceWorker.onmessage = resolve;
    worker.postMessage(`${there}/worker-${tag}`);
  });
})()"""
WAYS = ("cors", "no-cors", "image", "script", "frame", "socket", "worker")


def test_a_sibling_can_not_use_the_cookie(secure: Secure, secure_box: Any) -> None:
    """To the browser both are one site, so it sends the cookie along."""
    published = serve(secure_box)
    with secure.stack.sandbox(cpus=1, memory="512MiB", disk="1GiB") as other:
        foreign = serve(other)
        page = secure.browser.page()
        page.goto(published.token_url())
        page.evaluate("told")
        page.evaluate(ATTEMPTS % (published.url, "own"))
        page.goto(foreign.token_url())
        page.evaluate("told")
        page.evaluate(ATTEMPTS % (published.url, "sibling"))
        # What a sibling can do: set cookies of its own for all names below the domain, never the one that lets in.
        for name in ("planted", "bellglass", "__Host-bellglass"):
            page.evaluate(f"document.cookie = '{name}=bad; Domain={DOMAIN}; Path=/; Secure; SameSite=None'")
        taken = f"navigator.serviceWorker.register('{published.url}/worker.js').catch((error) => error.name)"
        assert page.evaluate(taken) == "SecurityError"
        # And link there.
        page.evaluate(f"location.href = '{published.url}/followed'")
        arrived = f"location.href === '{published.url}/followed' && document.readyState === 'complete'"
        secure.browser.until(lambda: page.evaluate(arrived), "the page that the link leads to")
        heads = seen(page)
        assert [way for way in WAYS if f"GET /{way}-own " not in heads] == []
        assert [way for way in WAYS if f"GET /{way}-sibling " in heads] == []
        followed = next(head for head in heads.split("GET /") if head.startswith("followed "))
        assert "planted=bad" in followed and "ellglass=" not in followed


def strangers(page: Page, published: Any, foreign: Any) -> None:
    """What a page of one sandbox reads and sets is not the other's."""
    page.goto(published.token_url())
    page.evaluate("told")
    page.evaluate("localStorage.setItem('mine', 'secret'); document.cookie = 'script=1; Path=/'")
    page.goto(published.url + "/")
    told = page.evaluate("told")
    assert told["storage"] == "secret" and told["cookie"] == "script=1"
    assert [status for status, _ in page.goto(foreign.url + "/")] == [401]
    page.goto(foreign.token_url())
    told = page.evaluate("told")
    assert told["storage"] is None and told["cookie"] == ""
    # Cookies of the name that lets visitors in can't be planted for a sibling.
    name = "__Host-bellglass" if foreign.url.startswith("https") else "bellglass"
    page.evaluate(f"document.cookie = '{name}=bad; Path=/; Secure; Domain={foreign.url.split('.', 1)[1]}'")
    assert [status for status, _ in page.goto(published.url + "/")] == [200]
    read = f"fetch('{foreign.url}/', {{credentials: 'include'}}).then(() => 'read', (error) => error.name)"
    assert page.evaluate("fetch('/').then(() => 'read')") == "read" and page.evaluate(read) == "TypeError"
    heads = seen(page)
    assert "script=1" in heads and "script=1" not in seen_at(foreign, page)


def seen_at(published: Any, page: Page) -> str:
    page.goto(published.url + "/")
    return seen(page)


@pytest.mark.parametrize("own_address", [False, True])
def test_on_a_laptop_without_tls(new_box: Any, own_address: bool) -> None:
    """Names below localhost, and addresses: cookies take no notice of ports, so each sandbox has one of its own."""
    published, foreign = (serve(new_box(), own_address=own_address) for _ in range(2))
    assert published.url.startswith("http://127." if own_address else "http://sb")
    with browser(domains=["invalid"]) as started:
        page = started.page()
        link = published.token_url()
        assert page.goto(published.url + "/") == [(401, published.url + "/")]
        assert page.goto(link) == [(302, link), (200, published.url + "/")]
        told = page.evaluate("told")
        assert told["echoed"] == "through the preview" and told["cookie"] == ""
        strangers(started.page(), published, foreign)
