"""/files by hand: ranges, packed bodies, forms, metadata."""

from __future__ import annotations

import gzip
from urllib.parse import quote

import pytest

from tests.compat.envd_wire import FORM, Answer, Wire, upload


def test_ranges_and_conditions(wire: Wire) -> None:
    assert upload(wire, "/tmp/ranged", b"0123456789").json == [
        {"name": "ranged", "path": "/tmp/ranged", "type": "file"}
    ]

    def get(**headers: str) -> Answer:
        return wire.ask("GET", "/files?path=/tmp/ranged", **headers)

    whole = get()
    assert (whole.status, whole.body, whole.headers["content-length"]) == (200, b"0123456789", "10")
    assert whole.headers["content-disposition"].startswith("attachment")
    assert whole.headers["x-content-type-options"] == "nosniff"
    part = get(Range="bytes=2-4")
    assert (part.status, part.body, part.headers["content-range"]) == (206, b"234", "bytes 2-4/10")
    assert get(Range="bytes=-3").body == b"789"
    assert get(Range="bytes=20-").status == 416
    changed = whole.headers["last-modified"]
    assert get(If_Modified_Since=changed).status == 304
    assert get(If_Unmodified_Since="Mon, 01 Jan 2001 00:00:00 GMT").status == 412
    for none in ("never", f"Mon, 01 Jan {'9' * 20} 00:00:00 GMT", f"Mon, 01 Jan 2001 00:00:00 +{'9' * 20}"):
        assert get(If_Modified_Since=none).body == b"0123456789", "what is no date means nothing"
    assert get(Range="bytes=2-4", If_Range=changed).status == 206
    assert get(Range="bytes=2-4", If_Range="Mon, 01 Jan 2001 00:00:00 GMT").body == b"0123456789"


def test_packed_answers_and_bodies(wire: Wire) -> None:
    content = b"again and again. " * 200_000
    assert upload(wire, "/tmp/packed", gzip.compress(content), Content_Encoding="gzip").status == 200
    packed = wire.ask("GET", "/files?path=/tmp/packed", Accept_Encoding="gzip")
    assert (packed.headers["content-encoding"], gzip.decompress(packed.body)) == ("gzip", content)
    assert len(packed.body) < len(content) / 20
    for accept in (None, "gzip, deflate", "identity", "br"):
        plain = wire.ask("GET", "/files?path=/tmp/packed", Accept_Encoding=accept)
        assert "content-encoding" not in plain.headers and plain.body == content
    assert wire.ask("GET", "/files?path=/tmp/packed", Accept_Encoding="identity;q=0, br").status == 406
    two = gzip.compress(b"one") + gzip.compress(b"two")
    assert upload(wire, "/tmp/packed", two, Content_Encoding="gzip").status == 200
    assert wire.ask("GET", "/files?path=/tmp/packed").body == b"onetwo"
    for broken in (b"", b"no gzip", gzip.compress(content)[:-5], gzip.compress(content)[:200]):
        assert upload(wire, "/tmp/broken", broken, Content_Encoding="gzip").status == 400
    assert upload(wire, "/tmp/broken", b"", Content_Encoding="br").status == 400


def form(*parts: tuple[str, bytes]) -> bytes:
    head = 'Content-Disposition: form-data; name="file"; filename="{}"\r\n\r\n'
    lines = [b"--xxBOUNDARYxx\r\n" + head.format(name).encode() + content + b"\r\n" for name, content in parts]
    return b"".join(lines) + b"--xxBOUNDARYxx--\r\n"


def test_forms(wire: Wire) -> None:
    names = ["/tmp/form/plain", "/tmp/form/with %22quotes%22", "/tmp/form/ü;=", "form relative"]
    body = form(*((name, f"of {name} \r\n--xxBOUNDARY".encode()) for name in names))
    answer = wire.ask("POST", "/files", body, Content_Type=FORM)
    assert [info["path"] for info in answer.json] == [
        "/tmp/form/plain", '/tmp/form/with "quotes"', "/tmp/form/ü;=", "/home/user/form relative",
    ]  # fmt: skip
    for info, name in zip(answer.json, names, strict=True):
        read = wire.ask("GET", f"/files?path={quote(info['path'])}")
        assert read.body == f"of {name} \r\n--xxBOUNDARY".encode()
    one = wire.ask("POST", "/files?path=/tmp/form/named", form(("ignored", b"x")), Content_Type=FORM)
    assert one.json[0]["path"] == "/tmp/form/named"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", FORM),
        (b"no form at all", FORM),
        (form(("/tmp/cut", b"x"))[:-6], FORM),
        (form(("", b"x")), FORM),
        (form(("/tmp/a", b"x")), "multipart/form-data"),
        (form(("/tmp/a", b"x")), f"multipart/form-data; boundary={'x' * 100}"),
        (form(("/tmp/a", b"x")).replace(b'"file"', b'"other"'), FORM),
        (form(("/tmp/" + "a" * 40_000, b"x")), FORM),
        (b"x", "text/plain"),
        (form(("/tmp/" + "n" * 300, b"x")), FORM),
    ],
)
def test_forms_that_are_none(wire: Wire, body: bytes, kind: str) -> None:
    assert wire.ask("POST", "/files", form(("/tmp/a", b"x")), Content_Type=FORM).status == 200
    answer = wire.ask("POST", "/files", body, Content_Type=kind)
    assert (answer.status, answer.json["code"]) == (400, 400), answer.body


def test_metadata_that_can_not_be_kept(wire: Wire) -> None:
    assert upload(wire, "/tmp/kept", b"x", X_Metadata_Good="value").json[0]["metadata"] == {"good": "value"}
    for headers in (
        {"X_Metadata_" + "k" * 247: "v"}, {"X_Metadata_Long": "v" * 4096},
        {"X_Metadata_Bad": "\u00fc"}, {"X_Metadata_": "v"},
    ):  # fmt: skip
        assert upload(wire, "/tmp/not-kept", b"x", **headers).status == 400
    assert wire.unary("filesystem.Filesystem/Stat", {"path": "/tmp/not-kept"}).status == 404


def test_files_that_can_not_be(wire: Wire) -> None:
    for path, status in (("/tmp", 400), ("/tmp/missing", 404), ("/etc/passwd/x", 400), ("/tmp/a%00b", 400)):
        assert wire.ask("GET", f"/files?path={path}").status == status, path
    assert upload(wire, "/tmp", b"x").status == 400
    assert wire.ask("GET", "/files?path=/etc/passwd&username=nobody-of-that-name").status == 401
    assert wire.ask("GET", "/files?path=/a&path=/b").status == 400
    assert wire.ask("GET", "/files?path=/etc/passwd&username=root").status == 200
