"""The command line against the fake API: what it prints, where, and with which exit code."""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bellglass.cli import NOUNS, main
from bellglass.cli._words import end_options
from bellglass.cli.cp import Place, parse_place


class Done:
    def __init__(self, code: int, out: bytes, err: bytes) -> None:
        self.code, self.raw, self.out, self.err = code, out, out.decode(errors="replace"), err.decode()

    def documents(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def run(server: Any, capfdbinary: pytest.CaptureFixture[bytes]) -> Callable[..., Done]:
    """Run a command line in this process."""

    def call(*words: str) -> Done:
        code = main(words)
        sys.stdout.flush()
        sys.stderr.flush()
        out, err = capfdbinary.readouterr()
        return Done(code, out, err)

    return call


def start(*words: str, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "bellglass.cli", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
    )


def test_run_passes_output_and_exit_code_through(run: Callable[..., Done], fake: Any) -> None:
    done = run(
        "run", "--cpus", "1", "--memory", "512MiB", "--env", "A=1=2", "--", "sh", "-c", "echo $A; echo e >&2; exit 7"
    )
    assert (done.code, done.out, done.err) == (7, "1=2\n", "e\n")
    assert fake.boxes == {} and fake.bodies[0]["memory"] == "512MiB"


def test_bytes_are_exact(run: Callable[..., Done]) -> None:
    assert run("run", "--", "printf", r"a\n\nb\r\377\303").raw == b"a\n\nb\r\xff\xc3"


def test_run_as_json_is_one_document(run: Callable[..., Done]) -> None:
    done = run("run", "--json", "--timeout", "0.5", "--shell", "--", "echo hi; sleep 9")
    (document,) = done.documents()
    assert (document["exit_code"], document["timed_out"], document["stdout"]) == (137, True, "hi\n")
    assert done.code == 137
    assert "timeout" in run("run", "--timeout", "0.2", "--", "sleep", "9").err


def test_input_files(run: Callable[..., Done], fake: Any, tmp_path: Path) -> None:
    (tmp_path / "sales.csv").write_text("a,b\n")
    run("run", "--input", str(tmp_path / "sales.csv"), "--input", f"x={tmp_path / 'sales.csv'}", "--", "true")
    assert fake.bodies[0]["inputs"] == {"sales.csv": {"b64": "YSxiCg=="}, "x": {"b64": "YSxiCg=="}}
    done = run("run", "--input", str(tmp_path / "none"), "--", "true")
    assert done.code == 1 and "none: No such file" in done.err and fake.boxes == {}


def test_a_life(run: Callable[..., Done], fake: Any, tmp_path: Path) -> None:
    id = run("create", "--name", "one", "--label", "a=b", "--owner", "ann").out.strip()
    assert id in fake.boxes
    assert run("create", "--name", "one", "--get-or-create").out.strip() == id
    table = run("ls").out
    assert table.splitlines()[0].split()[:3] == ["ID", "NAME", "STATE"] and id in table and "running" in table
    (listed,) = run("ls", "--json", "--label", "a=b").documents()
    assert listed["id"] == id and listed["owner"] == "ann"
    assert run("ls", "--owner", "bob", "--json").out == ""
    assert run("exec", id, "--", "sh", "-c", "echo $X; exit 4", "-n").code == 4
    started = run("exec", "-d", id, "--", "sh", "-c", "echo out; echo err >&2").out.strip()
    time.sleep(0.2)
    logs = run("logs", id, "--follow")
    assert (logs.out, logs.err) == ("out\n", "err\n")
    assert {chunk["stream"]: chunk["text"] for chunk in run("logs", id, started, "--json").documents()} == {
        "stdout": "out\n",
        "stderr": "err\n",
    }
    assert started in run("logs", id, "--list").out
    assert run("rm", id, "--json").documents() == [{"id": id, "deleted": True}]
    gone = run("rm", id)
    assert gone.code == 1 and gone.err.startswith("error: ")
    assert fake.boxes == {}


def test_copies(run: Callable[..., Done], tmp_path: Path) -> None:
    id = run("create").out.strip()
    (tmp_path / "f.txt").write_text("content")
    (tmp_path / "d/sub").mkdir(parents=True)
    (tmp_path / "d/sub/g").write_text("deep")
    assert run("cp", str(tmp_path / "f.txt"), f"{id}:renamed.txt").code == 0
    done = run("cp", "--json", str(tmp_path / "f.txt"), f"{id}:.")
    assert done.documents()[0]["destination"] == f"{id}:f.txt"
    run("cp", str(tmp_path / "d"), f"{id}:.")
    run("cp", str(tmp_path / "d") + "/.", f"{id}:other")
    listed = run("exec", id, "--", "find", ".", "-type", "f").out.split()
    assert sorted(listed) == ["./d/sub/g", "./f.txt", "./other/sub/g", "./renamed.txt"]
    out = tmp_path / "out"
    out.mkdir()
    run("cp", f"{id}:renamed.txt", str(out))
    run("cp", f"{id}:d", str(out))
    run("cp", f"{id}:d", str(out / "as"))
    run("cp", f"{id}:f.txt", str(out / "new.txt"))
    names = sorted(path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file())
    assert names == ["as/sub/g", "d/sub/g", "new.txt", "renamed.txt"]
    for wrong in (("a", "b"), (f"{id}:a", f"{id}:b")):
        assert "in a sandbox" in run("cp", *wrong).err
    missing = run("cp", f"{id}:nope", str(out / "x"))
    assert missing.code == 1 and "no such file" in missing.err
    missing = run("cp", str(tmp_path / "nope"), f"{id}:x")
    assert missing.code == 1 and "nope" in missing.err
    run("rm", id)


def test_places() -> None:
    id = "sb" + "a" * 20
    assert parse_place(f"{id}:/a:b") == Place(id, "/a:b")
    assert parse_place(f"{id}:") == Place(id, ".")
    for here in ("a:b", "./x", "C:\\x", id, "sb:/x"):
        assert parse_place(here) == Place(None, here)


def test_keys(run: Callable[..., Done], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("BELLGLASS_API_KEY")
    monkeypatch.setenv("BELLGLASS_DATA_DIR", str(tmp_path))
    done = run("keys", "create", "--project", "two")
    assert done.code == 1 and "admin.key" in done.err and "--data-dir" in done.err
    (tmp_path / "admin.key").write_text("admin\n")
    assert run("keys", "create", "--project", "two").out.startswith("bg_")
    (key,) = run("keys", "create", "--project", "two", "--json").documents()
    assert key["project_name"] == "two" and key["secret"]
    monkeypatch.delenv("BELLGLASS_DATA_DIR")
    assert run("keys", "create", "--project", "two", "--data-dir", str(tmp_path)).code == 0
    monkeypatch.setenv("BELLGLASS_ADMIN_KEY", "admin")
    assert "one" in run("keys", "ls").out
    assert run("keys", "rm", "kyaaaaaaaaaaaaaaaa").code == 0
    assert run("keys").code == 2


def test_templates(run: Callable[..., Done]) -> None:
    assert "base" in run("templates", "ls").out
    assert run("templates", "ls", "--json").documents()[0]["name"] == "base"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["run", "--cpus", "x", "--", "true"], 2, "cpus"),
        (["run"], 2, "COMMAND"),
        (["nonsense"], 2, "nonsense"),
        (["exce"], 2, "exec"),
        (["ls", "--nope"], 2, "--nope"),
        (["run", "--env", "=x", "--", "true"], 1, "--env"),
        (["run", "--template", "nope", "--", "true"], 1, "nope"),
        (["run", "--timeout", "never", "--", "true"], 1, "timeout"),
        (["exec", "sbnope", "--", "true"], 1, "sbnope"),
        (["rm", "../x"], 1, "../x"),
        (["create", "--get-or-create"], 2, "--name"),
        (["run", "--env", "NOT_SET", "--", "true"], 1, "'NOT_SET' is not set"),
        (["create", "--label", "x"], 1, "KEY=VALUE"),
        (["keys", "create"], 2, "`bellglass keys create --help`"),
        (["cp", "a", "box:b"], 1, "'a' and 'box:b' are both on this machine"),
    ],
)
def test_errors_are_one_line_and_a_hint(
    run: Callable[..., Done], fake: Any, words: list[str], code: int, said: str
) -> None:
    done = run(*words)
    assert done.code == code and done.out == ""
    lines = done.err.splitlines()
    assert lines[0].startswith("error: ") and said in done.err
    assert all(line.startswith("hint: ") for line in lines[1:]) and "Traceback" not in done.err
    assert fake.boxes == {}


def test_no_server_says_how_to_get_one(run: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BELLGLASS_API_URL", "http://127.0.0.1:1")
    assert "bellglass up" in run("ls").err
    monkeypatch.delenv("BELLGLASS_API_URL")
    assert "bellglass up" in run("ls").err
    monkeypatch.setenv("BELLGLASS_API_KEY", "bg_wrong")


HOSTILE = "a\x1b[2J\x07\x9b2J\u202eb\ud800"
SHOWN = "a?[2J??2J?b?"


def test_what_sandboxes_wrote_moves_no_cursor(
    run: Callable[..., Done], fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it end in an error of encodings."""
    import bellglass.cli.ls
    from bellglass.cli import _common
    from bellglass.errors import KernelDied

    def fail(**_: Any) -> None:
        raise KernelDied(f"{HOSTILE}\n{HOSTILE}", hint=HOSTILE)

    monkeypatch.setattr(bellglass.cli.ls.Sandbox, "list", fail)

    def printed(value: Any) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            _common.print_json(value)
        return out.getvalue()

    shown = run("ls").err
    assert shown == f"error: {SHOWN}\n{SHOWN}\nhint: {SHOWN}\n"
    for value in ({"a": "é 日本 😀"}, {"a": [HOSTILE, HOSTILE.encode("utf-8", "replace").decode(), "\U000e0001"]}):
        line = printed(value)
        assert json.loads(line) == value and line.removesuffix("\n").isprintable() and line.encode()
    assert printed({"a": "é 😀"}) == '{"a": "é 😀"}\n'


def test_faults_of_ours_are_a_line_too(run: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> None:
    import bellglass.cli.ls

    monkeypatch.setattr(bellglass.cli.ls.Sandbox, "list", lambda **_: 1 / 0)
    done = run("ls")
    assert done.code == 1 and done.err.startswith("error: ZeroDivisionError") and "Traceback" not in done.err
    monkeypatch.setenv("BELLGLASS_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        run("ls")


def test_tables_are_harmless(run: Callable[..., Done], fake: Any) -> None:
    id = run("create", "--owner", "a\x1b[2Jb\nc").out.strip()
    table = run("ls").out
    assert "\x1b" not in table and len(table.splitlines()) == 2 and "a?[2Jb?c" in table
    run("rm", id)


def test_an_open_pipe_on_stdin_holds_nothing_up(server: Any) -> None:
    for options in ([], ["-i"]):
        reading, writing = os.pipe()
        begun = time.monotonic()
        process = start("run", *options, "--", "echo", "hi", stdin=reading)
        os.close(reading)
        out, err = process.communicate(timeout=30)
        os.close(writing)
        assert (out, err, process.returncode) == (b"hi\n", b"", 0)
        assert time.monotonic() - begun < 10


def test_stdin_is_passed_on_when_asked(server: Any) -> None:
    data = os.urandom(1_000_000)
    process = start("run", "-i", "--", "cat", stdin=subprocess.PIPE)
    assert process.communicate(data, timeout=60)[0] == data
    process = start("run", "--", "cat", stdin=subprocess.PIPE)
    assert process.communicate(b"not asked for", timeout=60)[0] == b""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_leaves_no_sandbox(server: Any, number: int, code: int) -> None:
    process = start("run", "--", "sh", "-c", "echo begun; sleep 60")
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (code, b"")
    assert server.app.boxes == {}
    deadline = time.monotonic() + 10
    while not all(run.done for run in server.app.runs.values()):  # killed, and told so a moment later
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_reader_that_goes_away_is_no_traceback(server: Any) -> None:
    process = start("run", "--", "sh", "-c", "yes | head -c 3000000")
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(30) in (1, 141) and err == b""
    assert server.app.boxes == {}


def test_a_reader_that_goes_away_ends_the_command(run: Callable[..., Done], server: Any) -> None:
    id = run("create").out.strip()
    process = start("exec", id, "--", "yes")
    assert process.stdout is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr is not None and process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(30) in (1, 141) and all(run.done for run in server.app.runs.values())
    run("rm", id)


def test_a_folder_that_is_missing_here_is_named(run: Callable[..., Done], tmp_path: Path) -> None:
    id = run("create").out.strip()
    (tmp_path / "a").write_text("a")
    assert run("cp", str(tmp_path / "a"), f"{id}:a").code == 0
    assert run("cp", f"{id}:a", str(tmp_path / "no/a")).err == f"error: {tmp_path}/no: No such file or directory\n"
    run("rm", id)


def test_network(run: Callable[..., Done], fake: Any) -> None:
    assert run("create").out and "identity" not in fake.bodies[-1]
    assert run("create", "--no-identity").out and fake.bodies[-1]["identity"] is False
    made = run("create", "--preset", "pip", "--allow", "api.example.com:443", "--allow", "*.example.org").out.strip()
    assert fake.bodies[-1]["network"] == {"presets": ["pip"], "allow": ["api.example.com:443", "*.example.org"]}
    shown = run("network", made)
    assert shown.out.splitlines()[0] == "rules" and "pip.test" in shown.out and "preset:pip" in shown.out
    assert run("network", made, "--network", "open").out == "open\n"
    assert fake.bodies[-1] == {"network": "open"}
    [document] = run("network", made, "--allow", "a.example", "--json").documents()
    assert document["generation"] == 3 and document["network"]["allow"] == ["a.example"]
    refused = run("network", made, "--network", "deny", "--preset", "pip")
    assert refused.code == 1 and refused.err.startswith("error: --network deny")
    assert run("network", made, "--allow", "*.com").code == 1
    but = run("network", made, "--network", "open", "--deny", "203.0.114.7/32", "--deny", "2a00::/16")
    assert fake.bodies[-1]["network"]["deny"] == ["203.0.114.7/32", "2a00::/16"]
    assert but.out.split() == ["open", "DENIED", "203.0.114.7/32", "2a00::/16"]
    for more in ((), ("--network", "deny"), ("--network", "open", "--allow", "a.example")):
        refused = run("network", made, "--deny", "203.0.114.7", *more)
        assert refused.code == 1 and refused.err.startswith("error: --deny 203.0.114.7")
    assert run("run", "--network", "open", "--", "true").code == 0 and fake.bodies[-2]["network"] == "open"


def test_help_of_every_noun(run: Callable[..., Done]) -> None:
    listed = run("--help")
    assert listed.code == 0
    for noun, (_, help) in NOUNS.items():
        assert noun in listed.out and help.split(":")[0][:30] in listed.out
        done = run(noun, "--help")
        assert (done.code == 0 and "--json" in done.out) or noun in (
            "compat",
            "keys",
            "limits",
            "pools",
            "presets",
            "previews",
            "quarantine",
            "shell",
            "templates",
        )
    assert run("--version").out.startswith("bellglass ")
    alone = run()
    assert alone.code == 2 and " doctor " in alone.out
    assert "create" in run("keys").out


def test_help_is_fast() -> None:
    """In CPU time, which a busy machine changes little: 0.2 s with nothing else to do."""
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "bellglass.cli", "--help"], check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(times) < 0.5, times


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["python3", "-c", "1"], ["--", "python3", "-c", "1"]),
        (["--", "python3", "-c", "1"], ["--", "python3", "-c", "1"]),
        (["--timeout", "3", "-ie", "A=b", "ls", "--x"], ["--timeout", "3", "-ie", "A=b", "--", "ls", "--x"]),
        (["--timeout=3", "-iuroot", "-c", "a | b"], ["--timeout=3", "-iuroot", "-c", "--", "a | b"]),
        (["-", "x"], ["--", "-", "x"]),
        (["--timeout"], ["--timeout"]),
    ],
)
def test_options_end_at_the_command(given: list[str], meant: list[str]) -> None:
    valued = {"--timeout", "--env", "-e", "--user", "-u"}
    assert end_options(given, before=0, valued=valued) == meant
    with_id = end_options(["sb1", *given], before=1, valued=valued)
    assert with_id == ["sb1", *meant] and end_options(with_id, before=1, valued=valued) == with_id


def test_a_command_keeps_its_options(run: Callable[..., Done], fake: Any) -> None:
    assert run("run", "sh", "-c", "echo $0 $1", "x", "--json").out == "x --json\n"
    id = run("create").out.strip()
    assert run("exec", id, "--env", "A=1", "sh", "-c", "echo $A").out == "1\n"
    assert run("exec", id, "-e", "A=1", "-c", "echo", "$A").out == "1\n"
    listed = run("logs", id, "--list").out
    assert "sh -c 'echo $A'" in listed
    run("rm", id)
