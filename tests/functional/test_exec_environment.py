"""What a command finds around itself: variables exact and secret, HOME for any user, a shell though /tmp is gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bellglass.errors import InvalidRequest

ODD = "a\nb\"c$d`e'f=é"


@pytest.mark.parametrize("value", [ODD, "x" * 120_000, "", " ", "\n", "trailing\n\n"], ids=lambda v: repr(v)[:12])
def test_values_round_trip(shared_box: Any, value: str) -> None:
    program = ["python3", "-c", "import os,sys; sys.stdout.write(os.environ['CANARY_VALUE'])"]
    assert shared_box.exec(program, env={"CANARY_VALUE": value}).stdout == value


def test_names(shared_box: Any) -> None:
    assert shared_box.exec(["printenv", "A-B"], env={"A-B": "dash"}).stdout == "dash\n", "passed on as it is"
    for name in ("A=B", "", "A\0B"):
        with pytest.raises(InvalidRequest):
            shared_box.exec(["true"], env={name: "x"})
    with pytest.raises(InvalidRequest):
        shared_box.exec(["true"], env={"A": "x\0y"})


def test_layers_of_the_environment(new_box: Callable[..., Any]) -> None:
    box = new_box(env={"FROM_SANDBOX": ODD, "BOTH": "sandbox"})
    assert box.exec(["printenv", "FROM_SANDBOX"]).stdout == ODD + "\n"
    assert box.exec(["printenv", "BOTH"], env={"BOTH": "call"}).stdout == "call\n"
    assert box.exec(["printenv", "BOTH"]).stdout == "sandbox\n", "one call's variables end with it"
    for wrong in ({"A=B": "x"}, {"": "x"}, {"A": "x\0"}):
        with pytest.raises(InvalidRequest):
            new_box(env=wrong)


def test_values_are_seen_by_no_other_process(new_box: Callable[..., Any]) -> None:
    secret = "canary-3f9a1c"
    box = new_box(env={"SECRET_VALUE": secret})
    look = "cat /proc/cmdline /proc/1/environ /proc/1/cmdline 2>/dev/null; ps -eo args"
    for user in (None, "root"):
        seen = box.exec(["env", "-u", "SECRET_VALUE", "sh", "-c", look], user=user)
        assert "sh -c cat" in seen.stdout, "it did look"
        assert secret not in seen.stdout + seen.stderr


def test_home_for_every_kind_of_user(shared_box: Any) -> None:
    assert shared_box.exec("echo $HOME; id -u; pwd").stdout == "/home/user\n1000\n/home/user\n"
    assert shared_box.exec("echo $HOME; id -u", user="root").stdout == "/root\n0\n"
    assert shared_box.exec("echo $HOME; id -u", user="1000").stdout == "/home/user\n1000\n"
    assert shared_box.exec("echo $HOME; id -u; id -g", user="4242", cwd="/").stdout == "/\n4242\n4242\n"
    assert shared_box.exec(["printenv", "LANG"]).stdout == "C.UTF-8\n"


def test_no_tmp_is_no_end(box: Any) -> None:
    assert box.exec("rm -rf /tmp", user="root").exit_code == 0
    assert box.exec("echo hi").stdout == "hi\n"
    assert box.exec(["echo", "hi"]).stdout == "hi\n"
    box.files.write_text("still", "works")
    assert box.files.read_text("still") == "works"


def test_sudo_and_root(shared_box: Any) -> None:
    assert shared_box.exec(["sudo", "-n", "id", "-u"]).stdout == "0\n"
    assert shared_box.exec("whoami").stdout == "user\n"
