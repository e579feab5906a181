"""Programs on a terminal: what a login would give them, sizes, keys that are signals, and how it all ends."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from bellglass.errors import Conflict, InvalidRequest
from tests.functional.terminals import Screen

PLAIN = ["/bin/bash", "--norc", "--noprofile", "-i"]
PROMPT = {"PS1": "$ "}


def shell(box: Any, **more: Any) -> Screen:
    """A shell that has said its prompt."""
    screen = Screen(box.start(PLAIN, terminal=(80, 24), env=PROMPT, **more))
    screen.until(b"$ ")
    screen.ask("bind 'set enable-bracketed-paste off'; echo rea''dy", b"ready\r\n")
    return screen


def test_a_terminal_as_a_login_has_it(shared_box: Any) -> None:
    screen = shell(shared_box)
    assert screen.ask("stty -a; echo E''ND", b"END\r\n").count(b"\r\n") > 5, "ends of lines as a terminal wants them"
    settings = screen.ask("stty -a | tr -s '; ' '\\n'; echo E''ND", b"END\r\n").decode().split()
    for wanted in ("icrnl", "ixon", "iutf8", "opost", "onlcr", "isig", "icanon", "echo", "echoe", "echok", "iexten"):
        assert wanted in settings, wanted
    who = screen.ask("stat -c '%U %a' $(tty); echo $TERM; ps -o tty=,sid= -p $$ | tr -s ' '; echo $$ E''ND", b"END\r\n")
    lines = [line.strip() for line in who.decode().splitlines()[1:]]
    assert lines[:2] == ["user 620", "xterm-256color"], "the terminal is the user's"
    tty, session = lines[2].split()
    assert tty.startswith("pts/") and session == lines[3].split()[0], "its own session"
    screen.type("exit 3\n")
    screen.rest()
    record = screen.execution.status()
    assert (record.exit_code, record.stderr_bytes) == (3, 0)
    assert (record.terminal.cols, record.terminal.rows) == (80, 24)


def test_sizes(shared_box: Any, api: httpx2.Client) -> None:
    screen = shell(shared_box)
    assert b"24 80" in screen.ask("stty size", b"80\r\n")
    screen.ask("trap 'echo chan''ged' WINCH; echo rea''dy", b"ready\r\n")
    screen.execution.resize(132, 43)
    screen.until(b"changed")
    assert b"43 132" in screen.ask("stty size", b"132\r\n")
    record = screen.execution.status()
    assert (record.terminal.cols, record.terminal.rows) == (132, 43)
    # A storm of sizes, absurd ones among them: the last one counts.
    for number in range(300):
        screen.execution.resize(1 + number * 219, 65535 - number)
    screen.execution.resize(100, 50)
    for _ in range(50):
        if b"50 100" in screen.ask("stty size; echo EN''D", b"END\r\n"):
            break
    else:
        raise AssertionError("the last size never came")
    path = f"/v1/sandboxes/{shared_box.id}/executions"
    for size in ((0, 24), (80, 0), (-1, 24), (65536, 24), (2**70, 1)):
        with pytest.raises(InvalidRequest):
            screen.execution.resize(*size)
        answer = api.post(path, json={"command": ["true"], "terminal": {"cols": size[0], "rows": size[1]}})
        assert answer.status_code == 422, answer.text
    with pytest.raises(InvalidRequest):
        shared_box.start(["true"], terminal=(80, 24), stdin="x")
    with pytest.raises(Conflict, match="no terminal"):
        shared_box.start(["sleep", "5"]).resize(80, 24)
    screen.execution.kill()
    screen.execution.wait()
    with pytest.raises(Conflict):
        screen.execution.resize(80, 24)


# It says when it is in the foreground: a key typed before that is the shell's own.
WAITS = """sh -c "trap 'echo resu''med' CONT; echo go''ing; while :; do sleep 0.1; done\""""


def test_keys_that_are_signals(shared_box: Any) -> None:
    screen = shell(shared_box)
    screen.ask(WAITS, b"going\r\n")
    screen.type("\x03")
    screen.until(b"^C")
    assert b"code 130" in screen.ask('echo "code $?"', b"130\r\n"), "interrupted"
    screen.ask(WAITS, b"going\r\n")
    screen.type("\x1a")
    screen.until(b"Stopped")
    screen.ask("jobs", b"Stopped")
    screen.ask("fg", b"resumed\r\n")
    screen.type("\x1c")
    screen.until(b"Quit")
    screen.ask("cat", b"cat\r\n")
    screen.ask("twice", b"twice\r\ntwice\r\n")
    screen.type("\x04")
    assert b"code 0" in screen.ask('echo "code $?"', b"code 0\r\n"), "cat saw an end"
    with pytest.raises(Conflict, match="Ctrl-D"):
        screen.execution.close_stdin()
    screen.type("\x04")
    screen.rest()
    assert screen.execution.wait().exit_code == 0, "and so does the shell"


def test_the_background_loses_the_terminal_and_nobody_waits(shared_box: Any) -> None:
    """What is left in the background lives on, as after a login, but its terminal is gone."""
    screen = shell(shared_box)
    screen.ask("(trap '' HUP; sleep 1; echo late; echo $? > ~/told) & sleep 1001 & echo g''one", b"gone\r\n")
    screen.type("exit\n")
    screen.rest()
    assert screen.execution.status().exit_code == 0
    told = "for i in $(seq 200); do [ -s ~/told ] && break; sleep 0.05; done; cat ~/told"
    assert shared_box.exec(told).stdout.strip() not in ("", "0"), "its write failed"
    assert shared_box.exec(["pkill", "-x", "-f", "sleep 1001"]).ok, "it lives on"


def test_a_terminal_of_which_all_let_go_can_be_opened_again(shared_box: Any) -> None:
    script = 'exec </dev/null >/dev/null 2>&1; sleep 0.3; echo again > "$0"; sleep 0.1; exit 4'
    line = f"tty=$(tty); exec bash -c '{script}' \"$tty\""
    screen = Screen(shared_box.start(["bash", "-c", line], terminal=(80, 24)))
    assert screen.rest() == b"again\r\n"
    assert screen.execution.status().exit_code == 4


def test_a_flood_is_exact_and_can_be_interrupted(shared_box: Any) -> None:
    screen = Screen(
        shared_box.start(["sh", "-c", "stty -onlcr; head -c 20000000 /dev/zero | tr '\\0' x"], terminal=(80, 24))
    )
    assert len(screen.rest(120)) == 20_000_000
    endless = shell(shared_box)
    endless.type("yes\n")
    endless.until(b"y\r\n" * 10000)
    endless.type("\x03")
    endless.until(b"^C", 120)
    endless.ask("echo he''re", b"here\r\n")
    endless.execution.kill()
    assert endless.execution.wait().signal == "SIGKILL"


def test_sudo_finds_its_terminal(shared_box: Any) -> None:
    screen = shell(shared_box)
    screen.ask("sudo -k; sudo id -u; sudo tty", b"/dev/pts/")
    screen.until(b"$ ")  # sudo throws away what is typed ahead
    screen.ask("sudo sh -c 'id -un; stty size'", b"root\r\n24 80\r\n")
    screen.execution.kill()


def test_without_a_terminal_to_be_had(new_box: Any) -> None:
    box = new_box()
    good = Screen(box.start(["tty"], terminal=(80, 24)))
    assert b"/dev/pts/" in good.rest()
    assert box.exec(["sudo", "sh", "-c", "mv /dev/ptmx /dev/was && mkfifo /dev/ptmx && chmod 666 /dev/ptmx"]).ok
    with pytest.raises(Exception, match="gives no terminal"):
        box.start(["tty"], terminal=(80, 24))
    assert box.exec(["sudo", "sh", "-c", "rm /dev/ptmx; mv /dev/was /dev/ptmx"]).ok
    assert b"/dev/pts/" in Screen(box.start(["tty"], terminal=(80, 24))).rest()
