"""Published ports behind nginx, with the configuration that the guide shows."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from preview_front_rig import TOOLS, Front, passes_streams, streaming
from preview_rig import program

NGINX = TOOLS / "nginx/usr/sbin/nginx"
AROUND = """
daemon off; master_process off; error_log stderr; pid {folder}/pid; worker_processes 1;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    {shown}
}}
"""


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    assert NGINX.exists(), "make setup-test"
    front = Front(tmp_path_factory.mktemp("nginx"))
    shown = front.block(
        "nginx",
        ("listen 443 ", f"listen 127.0.0.1:{front.port} "),
        ("/etc/nginx/preview.pem", str(front.cert)),
        ("/etc/nginx/preview.key", str(front.key)),
    )
    config = front.root / "nginx.conf"
    config.write_text(AROUND.format(folder=front.root, shown=shown))
    with front.proxy(NGINX, "-p", front.root, "-c", config):
        yield front
    front.harness.stop()


def test_a_link_a_cookie_and_who_visits(front: Front) -> None:
    with program() as shown:
        site = front.site(shown.port)
        with front.visitor(site) as visitor:
            assert visitor.ask("/").status == 401
            handed = visitor.ask(f"/a%2Fb//?x=%20&_bellglass_token={site.token()['token']}")
            assert handed.status == 302 and handed.header("location") == f"https://{site.host}/a%2Fb//?x=%20"
            cookie = (handed.header("set-cookie") or "").partition(";")[0]
            assert cookie.startswith("__Host-bellglass=")
            answered = visitor.ask("/a%2Fb//?x=%20", f"Cookie: {cookie}", "X-Forwarded-For: 6.6.6.6")
        assert answered.status == 200
        said = answered.body.decode()
        assert said.startswith("GET /a%2Fb//?x=%20 HTTP/1.1\r\n") and f"\r\nHost: {site.host}\r\n" in said
        assert "\r\nX-Forwarded-For: 127.0.0.1, 127.0.0.1\r\n" in said and "6.6.6.6" not in said
        assert "\r\nX-Forwarded-Proto: https\r\n" in said and "__Host-" not in said


def test_websocket_events_and_uploads_stream(front: Front) -> None:
    go = threading.Event()
    with program(streaming(go)) as shown:
        passes_streams(front, front.site(shown.port, visibility="public"), go)
