"""What every driver must do alike, whatever its boundary: the exec table and the files table, through the public SDK.

    for name, check in CHECKS.items():
        check(box)                      # box: a fresh or reused bellglass.Sandbox

Each check raises AssertionError naming the difference, keeps to a folder of its own and leaves no process behind.
Nothing here may assume a tier: no root, no disk limit, no own process ids; those have tests of their own.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from typing import Any

from bellglass.errors import FileExists, FileMissing, FileTypeMismatch, InvalidCommand, InvalidRequest

Box = Any
CHECKS: dict[str, Callable[[Box], None]] = {}


def check(function: Callable[[Box], None]) -> Callable[[Box], None]:
    CHECKS[function.__name__] = function
    return function


def folder(box: Box) -> str:
    """A fresh folder below the working directory, relative to it."""
    name = f"check-{secrets.token_hex(6)}"
    box.files.mkdir(name)
    return name


def same(found: object, wanted: object, what: str) -> None:
    if found != wanted:
        raise AssertionError(f"{what}: {found!r} in place of {wanted!r}")


# --- the exec table ----------------------------------------------------------------------------------------


@check
def argv_goes_through_no_shell(box: Box) -> None:
    argv = ["printf", "%s|", "a b", "$HOME", "*", "'", '"', "\\", "", "é", "-n", "a\nb"]
    same(box.exec(argv).stdout, "a b|$HOME|*|'|\"|\\||é|-n|a\nb|", "arguments")


@check
def a_string_goes_through_a_shell(box: Box) -> None:
    same(box.exec("for i in 1 2 3; do printf $i; done; echo | wc -l").stdout.replace(" ", ""), "1231\n", "output")


@check
def streams_are_apart_and_exact(box: Box) -> None:
    result = box.exec("printf 'a\\n\\nb\\r\\n\\n\\nc'; printf 'e\\n\\n' >&2")
    same((result.stdout, result.stderr), ("a\n\nb\r\n\n\nc", "e\n\n"), "streams")


@check
def utf8_is_whole_over_chunks(box: Box) -> None:
    result = box.exec(["sh", "-c", "i=0; while [ $i -lt 20000 ]; do printf '☕☕☕☕☕'; i=$((i+1)); done"])
    same(result.stdout, "☕" * 100_000, "characters")
    same(box.exec("printf 'caf\\303'; sleep 0.3; printf '\\251'").stdout, "café", "a character cut by time")
    same(box.exec("printf 'caf\\303'").stdout, "caf\ufffd", "a character that never ends")


@check
def exit_codes_are_the_programs(box: Box) -> None:
    for code in (0, 1, 2, 77, 126, 127, 128, 255):
        result = box.exec(["sh", "-c", f"exit {code}"])
        same((result.exit_code, result.signal, result.ok), (code, None, code == 0), f"exit {code}")


@check
def signals_are_told(box: Box) -> None:
    for number, name in ((9, "SIGKILL"), (11, "SIGSEGV"), (15, "SIGTERM")):
        result = box.exec(["sh", "-c", f"kill -{number} $$"])
        same((result.exit_code, result.signal), (128 + number, name), f"signal {number}")
        same((result.timed_out, result.oom_killed), (False, False), f"verdicts of signal {number}")


@check
def missing_and_unusable_programs(box: Box) -> None:
    result = box.exec(["no-such-command-here"])
    same(result.exit_code, 127, "a missing program")
    assert "no-such-command-here" in result.stderr, result.stderr
    result = box.exec(["/etc/passwd"])
    same(result.exit_code, 126, "a file that is no program")
    assert "/etc/passwd" in result.stderr, result.stderr


@check
def empty_commands_are_refused(box: Box) -> None:
    same(box.exec(["true"]).exit_code, 0, "the allowed twin")
    for command in ("", [], ["tr\0ue"], [""]):
        try:
            box.exec(command)
        except InvalidRequest:
            continue
        raise AssertionError(f"the command {command!r} was not refused")


@check
def environment_is_exact(box: Box) -> None:
    value = "a\nb\"c$d`e'f=é  "
    same(box.exec(["printenv", "CHECK"], env={"CHECK": value}).stdout, value + "\n", "a value")
    same(box.exec(["printenv", "CHECK"]).exit_code, 1, "the value in the next call")
    long = "x" * 120_000
    same(box.exec(["printenv", "CHECK"], env={"CHECK": long}).stdout, long + "\n", "120 000 bytes")


@check
def working_directory(box: Box) -> None:
    here = folder(box)
    same(box.exec("pwd", cwd=here).stdout.rstrip().rpartition("/")[2], here, "relative cwd")
    absolute = box.exec("pwd", cwd=here).stdout.rstrip()
    same(box.exec("pwd", cwd=absolute).stdout.rstrip(), absolute, "absolute cwd")
    box.files.write_text(f"{here}/file", "")
    for wrong in ("/nope", f"{here}/file"):
        try:
            box.exec("pwd", cwd=wrong)
        except InvalidCommand as error:
            assert wrong in str(error), f"the error does not name {wrong}: {error}"
        else:
            raise AssertionError(f"cwd {wrong!r} was not refused")


@check
def standard_input(box: Box) -> None:
    same(box.exec(["cat"]).stdout, "", "without input")
    same(box.exec(["cat"], stdin="a\n\nb").stdout, "a\n\nb", "text")
    big = "0123456789abcdef" * 20_000
    same(
        box.exec(["sha256sum"], stdin=big).stdout.split()[0], hashlib.sha256(big.encode()).hexdigest(), "320 000 bytes"
    )


@check
def background_children_do_not_hold_the_answer(box: Box) -> None:
    started = time.monotonic()
    result = box.exec("sleep 30 & echo hi; echo $! > background-pid")
    same((result.stdout, result.exit_code), ("hi\n", 0), "result")
    assert time.monotonic() - started < 5, f"it took {time.monotonic() - started:.1f} s"
    same(box.exec("kill $(cat background-pid)").exit_code, 0, "the child is still there to be killed")


@check
def timeout_kills_the_tree(box: Box) -> None:
    here = folder(box)
    script = (
        "sleep 31337 & setsid nohup sleep 31338 >/dev/null 2>&1 & sh -c 'trap \"\" TERM; sleep 31339; :' & "
        "echo partial; touch started; wait"
    )
    started = time.monotonic()
    result = box.exec(script, cwd=here, timeout=1.5)
    took = time.monotonic() - started
    same((result.exit_code, result.timed_out, result.stdout), (137, True, "partial\n"), "result")
    assert 1.4 < took < 6, f"a timeout of 1.5 s took {took:.1f} s"
    same(box.files.exists(f"{here}/started"), True, "that the script had started its children")
    left = box.exec(["sh", "-c", "ps -eo args | grep -c '^sleep 3133[789]' || true"])
    same(left.stdout.strip(), "0", "sleepers that are left")


@check
def last_output_is_not_lost(box: Box) -> None:
    for _ in range(20):
        result = box.exec(["seq", "1", "20000"])
        same(result.stdout[-7:], "\n20000\n", "the last line")


@check
def detached_executions(box: Box) -> None:
    execution = box.start("echo one; sleep 0.3; echo two >&2; exit 3")
    result = execution.wait()
    same((result.stdout, result.stderr, result.exit_code), ("one\n", "two\n", 3), "result")


@check
def signals_to_the_tree(box: Box) -> None:
    execution = box.start("trap 'echo got; exit 7' TERM; touch trap-ready; while :; do sleep 0.05; done")
    deadline = time.monotonic() + 10
    while not box.files.exists("trap-ready"):
        assert time.monotonic() < deadline
    box.files.remove("trap-ready")
    execution.signal("SIGTERM")
    result = execution.wait()
    same((result.stdout, result.exit_code), ("got\n", 7), "a trapped signal")
    execution = box.start("sleep 300 & sleep 300")
    execution.signal("SIGKILL")
    same((execution.wait().signal), "SIGKILL", "a deadly signal")


# --- the files table ---------------------------------------------------------------------------------------


@check
def bytes_come_back_as_they_went(box: Box) -> None:
    here = folder(box)
    for data in (b"", b"\0", bytes(range(256)) * 5000, "é☕\r\n".encode()):
        box.files.write_bytes(f"{here}/f", data)
        same(box.files.read_bytes(f"{here}/f"), data, f"{len(data)} bytes")
    box.files.write_text(f"{here}/t", "é☕\r\n")
    same(box.files.read_text(f"{here}/t"), "é☕\r\n", "text")


@check
def overwriting_leaves_no_tail(box: Box) -> None:
    here = folder(box)
    box.files.write_bytes(f"{here}/f", b"x" * 10_000_000)
    box.files.write_bytes(f"{here}/f", b"y" * 1000)
    same(box.files.read_bytes(f"{here}/f"), b"y" * 1000, "contents")
    same(box.exec(["ls", "-A", here]).stdout, "f\n", "the folder")


@check
def a_write_is_seen_at_once(box: Box) -> None:
    here = folder(box)
    for number in range(20):
        box.files.write_text(f"{here}/n", f"{number}\n")
        same(box.exec(["cat", f"{here}/n"]).stdout, f"{number}\n", "what a program reads")


@check
def parents_are_made_and_left_alone(box: Box) -> None:
    here = folder(box)
    box.exec(["chmod", "0700", here])
    box.files.write_text(f"{here}/a/b/c.txt", "deep")
    same(box.files.read_text(f"{here}/a/b/c.txt"), "deep", "contents")
    same(box.files.stat(here).mode, "0700", "the mode of a folder that was there")


@check
def listing_and_stat(box: Box) -> None:
    here = folder(box)
    box.exec("echo abc > f; mkdir d; ln -s f l; mkfifo p; printf x > \"$(printf 'odd\\nname')\"", cwd=here)
    found = {entry.name: (entry.type, entry.size if entry.type == "file" else None) for entry in box.files.list(here)}
    wanted = {
        "f": ("file", 4),
        "d": ("dir", None),
        "l": ("symlink", None),
        "p": ("fifo", None),
        "odd\nname": ("file", 1),
    }
    same(found, wanted, "entries")
    same(box.files.stat(f"{here}/l").type, "file", "a link that is followed")
    same(box.files.exists(f"{here}/none"), False, "exists")


@check
def moving_and_removing(box: Box) -> None:
    here = folder(box)
    box.files.write_text(f"{here}/a", "a")
    box.files.move(f"{here}/a", f"{here}/b")
    same((box.files.exists(f"{here}/a"), box.files.read_text(f"{here}/b")), (False, "a"), "moved")
    box.files.remove(f"{here}/b")
    same(box.files.exists(f"{here}/b"), False, "removed")
    box.files.write_text(f"{here}/d/e/f", "f")
    box.files.remove(f"{here}/d", recursive=True)
    same(box.files.exists(f"{here}/d"), False, "removed with what was in it")


@check
def errors_of_files_are_typed(box: Box) -> None:
    here = folder(box)
    box.files.write_text(f"{here}/f", "")
    wrong: list[tuple[type[Exception], Callable[[], object]]] = [
        (FileMissing, lambda: box.files.read_bytes(f"{here}/none")),
        (FileTypeMismatch, lambda: box.files.read_bytes(here)),
        (FileTypeMismatch, lambda: box.files.write_text(here, "x")),
        (FileExists, lambda: box.files.mkdir(f"{here}/f", exist_ok=False)),
        (FileMissing, lambda: box.files.remove(f"{here}/none")),
        (InvalidRequest, lambda: box.files.read_bytes("a\0b")),
    ]
    for error, call in wrong:
        try:
            call()
        except error:
            continue
        raise AssertionError(f"no {error.__name__}")


@check
def special_files_do_not_hang(box: Box) -> None:
    here = folder(box)
    box.exec(["mkfifo", f"{here}/p"])
    started = time.monotonic()
    for call in (lambda: box.files.read_bytes(f"{here}/p"), lambda: box.files.read_bytes("/dev/zero")):
        try:
            call()
        except FileTypeMismatch:
            continue
        raise AssertionError("a special file was read")
    assert time.monotonic() - started < 5


@check
def folders_go_both_ways(box: Box) -> None:
    here = folder(box)
    box.exec("mkdir -p s/t; echo 1 > s/one; echo 2 > s/t/two; chmod 755 s/one", cwd=here)
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as local:
        box.files.download_dir(f"{here}/s", local)
        found = {str(path.relative_to(local)): path.read_text() for path in Path(local).rglob("*") if path.is_file()}
        same(found, {"one": "1\n", "t/two": "2\n"}, "downloaded")
        box.files.upload_dir(local, f"{here}/again")
    same(box.exec("cat again/one again/t/two", cwd=here).stdout, "1\n2\n", "uploaded")
