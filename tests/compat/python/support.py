"""Calls every public method of the installed client once and prints what came of it, as JSON: method to
{"outcome": "works" | "refused" | "local", "note"}. Methods are found by reflection; one without a call is a failure.

`works` is a call that did what its name says, as far as one call can show; the suites beside test them closely.
`local` asks no server. `refused` came back as a typed "not supported".
"""

from __future__ import annotations

import inspect
import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

import e2b
from e2b import Git, Sandbox, SandboxQuery, Secret, Template, Volume

try:
    from e2b_code_interpreter import Sandbox as Interpreter
except ImportError:
    Interpreter = None  # type: ignore[assignment,misc]

REFUSED = ("501", "not supported by Bellglass")
BUILT = {"name": "x", "template_id": "base", "build_id": "00000000-0000-0000-0000-000000000000", "tags": []}


def works(check: bool) -> None:
    assert check, "it answered something else"


def git_calls(sandbox: Sandbox) -> dict[str, Callable[[], Any]]:
    """In an order in which each has what it needs. The remote is another folder of the sandbox."""
    git, at, remote = sandbox.git, "/home/user/repo", "/home/user/remote.git"

    def committed(text: str) -> None:
        sandbox.files.write(f"{at}/file.txt", text)
        git.add(at)
        git.commit(at, text, author_name="A", author_email="a@example.com")

    return {
        "init": lambda: (git.init(at, initial_branch="main"), git.init(remote, bare=True, initial_branch="main")),
        "configure_user": lambda: git.configure_user("A", "a@example.com"),
        "set_config": lambda: git.set_config("pull.rebase", "false"),
        "get_config": lambda: works(git.get_config("pull.rebase") == "false"),
        "status": lambda: works(git.status(at).current_branch == "main"),
        "add": lambda: (sandbox.files.write(f"{at}/file.txt", "one"), git.add(at)),
        "commit": lambda: git.commit(at, "one", author_name="A", author_email="a@example.com"),
        "remote_add": lambda: git.remote_add(at, "origin", remote),
        "remote_get": lambda: works(git.remote_get(at, "origin") == remote),
        "push": lambda: git.push(at, remote="origin", branch="main"),
        "pull": lambda: git.pull(at, remote="origin", branch="main"),
        "clone": lambda: git.clone(remote, path="/home/user/clone"),
        "create_branch": lambda: git.create_branch(at, "side"),
        "checkout_branch": lambda: git.checkout_branch(at, "main"),
        "branches": lambda: works(set(git.branches(at).branches) == {"main", "side"}),
        "delete_branch": lambda: git.delete_branch(at, "side", force=True),
        "restore": lambda: (sandbox.files.write(f"{at}/file.txt", "two"), git.restore(at, paths=["file.txt"])),
        "reset": lambda: (committed("three"), git.reset(at, mode="hard", target="HEAD~1")),
        "dangerously_authenticate": lambda: git.dangerously_authenticate("u", "p", host="git.example.com"),
    }


def command_calls(sandbox: Sandbox) -> dict[str, Callable[[], Any]]:
    commands = sandbox.commands
    cats = [commands.run("cat", background=True, stdin=True) for _ in range(2)]
    pids = [cat.pid for cat in cats]
    return {
        "run": lambda: works(commands.run("echo hello").stdout == "hello\n"),
        "list": lambda: works(set(pids) <= {info.pid for info in commands.list()}),
        "connect": lambda: works(commands.connect(pids[0]).pid == pids[0]),
        "send_stdin": lambda: commands.send_stdin(pids[0], "x\n"),
        "stream_input": lambda: commands.stream_input(pids[0], iter([b"y\n"])),
        "close_stdin": lambda: commands.close_stdin(pids[0]),
        "kill": lambda: works(commands.kill(pids[1])),
    }


def handle_calls(sandbox: Sandbox) -> dict[str, Callable[[], Any]]:
    one, two, three = (sandbox.commands.run("cat", background=True, stdin=True) for _ in range(3))
    return {
        "pid": lambda: works(one.pid > 0),
        "send_stdin": lambda: one.send_stdin("x\n"),
        "close_stdin": lambda: one.close_stdin(),
        "wait": lambda: works(one.wait().stdout == "x\n"),
        "disconnect": lambda: two.disconnect(),
        "kill": lambda: works(three.kill()),
    }


def pty_calls(sandbox: Sandbox) -> dict[str, Callable[[], Any]]:
    size, made = e2b.PtySize(rows=24, cols=80), []
    return {
        "create": lambda: made.append(sandbox.pty.create(size).pid),
        "connect": lambda: works(sandbox.pty.connect(made[0]).pid == made[0]),
        "resize": lambda: sandbox.pty.resize(made[0], size),
        "send_stdin": lambda: sandbox.pty.send_stdin(made[0], b"echo\n"),
        "stream_input": lambda: sandbox.pty.stream_input(made[0], iter([b"echo\n"])),
        "kill": lambda: works(sandbox.pty.kill(made[0])),
    }


def file_calls(sandbox: Sandbox) -> dict[str, Callable[[], Any]]:
    files = sandbox.files
    return {
        "write": lambda: works(files.write("one.txt", "text").path == "/home/user/one.txt"),
        "write_files": lambda: works(len(files.write_files([{"path": "a.txt", "data": "a"}])) == 1),
        "read": lambda: works(files.read("one.txt") == "text"),
        "get_info": lambda: works(files.get_info("one.txt").size == 4),
        "exists": lambda: works(files.exists("one.txt") and not files.exists("none.txt")),
        "list": lambda: works("one.txt" in [entry.name for entry in files.list("/home/user")]),
        "make_dir": lambda: works(files.make_dir("folder")),
        "rename": lambda: works(files.rename("one.txt", "folder/two.txt").path == "/home/user/folder/two.txt"),
        "remove": lambda: files.remove("folder"),
        "watch_dir": lambda: files.watch_dir("/home/user").stop(),
    }


def watch_calls(sandbox: Sandbox) -> dict[str, Callable[[], Any]]:
    made: list[Any] = []

    def events() -> None:
        made.append(sandbox.files.watch_dir("/home/user"))
        sandbox.files.write("watched.txt", "x")
        works("watched.txt" in [event.name for event in made[0].get_new_events()])

    return {"get_new_events": events, "stop": lambda: made[0].stop()}


def sandbox_calls(sandbox: Sandbox) -> dict[str, Callable[[], Any]]:
    second = Sandbox.create(timeout=60)
    return {
        "create": lambda: works(Sandbox.create(timeout=30).kill()),
        "connect": lambda: works(Sandbox.connect(sandbox.sandbox_id).sandbox_id == sandbox.sandbox_id),
        "get_info": lambda: works(sandbox.get_info().template_id == "base"),
        "is_running": lambda: works(sandbox.is_running()),
        "set_timeout": lambda: sandbox.set_timeout(600),
        "list": lambda: works(bool(Sandbox.list(query=SandboxQuery(metadata={"of": "support"})).next_items())),
        "get_metrics": lambda: works(bool(sandbox.get_metrics())),
        "update_network": lambda: sandbox.update_network({}),
        "kill": lambda: works(second.kill()),
        "pause": sandbox.pause,
        "beta_pause": sandbox.beta_pause,
        "fork": sandbox.fork,
        "create_snapshot": sandbox.create_snapshot,
        "list_snapshots": lambda: sandbox.list_snapshots().next_items(),
        "delete_snapshot": lambda: Sandbox.delete_snapshot("base:x"),
        "get_host": lambda: works(sandbox.get_host(80).startswith(f"80-{sandbox.sandbox_id}.")),
        "download_url": lambda: works("signature=" in sandbox.download_url("one.txt")),
        "upload_url": lambda: works("signature=" in sandbox.upload_url("one.txt")),
        "get_mcp_token": lambda: Sandbox.create(mcp={"browserbase": {}}, timeout=30),
        "get_mcp_url": lambda: Sandbox.create(mcp={"browserbase": {}}, timeout=30),
    }


def template_calls() -> dict[str, Callable[[], Any]]:
    given: dict[str, tuple[Any, ...]] = {
        "from_dockerfile": ("FROM debian",), "from_image": ("debian",), "from_template": ("base",),
        "from_aws_registry": ("x.example/y", "a", "b", "c"), "from_gcp_registry": ("x.example/y", {}),
    }  # fmt: skip

    def builder(name: str) -> Callable[[], Any]:
        return lambda: getattr(Template(), name)(*given.get(name, ()))

    made = {name: builder(name) for name in dir(Template) if name.startswith("from_")}
    image = Template().from_image("debian")
    return made | {
        "skip_cache": lambda: Template().skip_cache(),
        "to_json": lambda: Template.to_json(image),
        "to_dockerfile": lambda: Template.to_dockerfile(image),
        "exists": lambda: works(Template.exists("base")),
        "alias_exists": lambda: works(Template.alias_exists("base")),
        "build": lambda: Template.build(image, "name"),
        "build_in_background": lambda: Template.build_in_background(image, "name"),
        "get_build_status": lambda: Template.get_build_status(_build_info()),
        "assign_tags": lambda: Template.assign_tags("base:x", "y"),
        "remove_tags": lambda: Template.remove_tags("base", "y"),
        "get_tags": lambda: Template.get_tags("base"),
    }


def _build_info() -> Any:
    known = inspect.signature(e2b.BuildInfo).parameters
    return e2b.BuildInfo(**{name: BUILT.get(name) for name in known})


def volume_calls() -> dict[str, Callable[[], Any]]:
    volume = Volume(volume_id="v", name="data", token="t")
    return {
        "create": lambda: Volume.create("data"),
        "connect": lambda: Volume.connect("v"),
        "destroy": lambda: Volume.destroy("v"),
        "list": Volume.list,
        "get_info": lambda: Volume.get_info("v"),
        "exists": lambda: volume.exists("x"),
        "make_dir": lambda: volume.make_dir("x"),
        "read_file": lambda: volume.read_file("x"),
        "write_file": lambda: volume.write_file("x", "y"),
        "remove": lambda: volume.remove("x"),
        "update_metadata": lambda: volume.update_metadata("x", mode=0o644),
    }


def secret_calls() -> dict[str, Callable[[], Any]]:
    return {
        "create": lambda: Secret.create("name", "value"),
        "update": lambda: Secret.update("name", "value"),
        "destroy": lambda: Secret.destroy("name"),
        "exists": lambda: Secret.exists("name"),
        "get_info": lambda: Secret.get_info("name"),
        "list": lambda: Secret.list().next_items(),
        "fill": lambda: Secret.fill("name"),
        "iam_token": lambda: Secret.iam_token(audience="a", token_type="JWT-SVID"),
    }


def interpreter_calls(sandbox: Any) -> dict[str, Callable[[], Any]]:
    made: list[Any] = []
    return {
        "run_code": lambda: works(sandbox.run_code("1+1").text == "2"),
        "create_code_context": lambda: made.append(sandbox.create_code_context(language="python")),
        "list_code_contexts": lambda: works(made[0].id in [context.id for context in sandbox.list_code_contexts()]),
        "restart_code_context": lambda: sandbox.restart_code_context(made[0]),
        "remove_code_context": lambda: sandbox.remove_code_context(made[0]),
    }


LOCAL = {
    "Sandbox": {"get_host", "download_url", "upload_url"},
    "Template": {"skip_cache", "to_json", "to_dockerfile"} | {name for name in dir(Template) if name[:5] == "from_"},
    "Secret": {"fill", "iam_token"},
}


def public(kind: Any, beside: Any = None) -> set[str]:
    """Methods, and what needs the server or a running program; plain values of the object are left out."""
    found = {name for name in dir(kind) if not name.startswith("_")} - (set(dir(beside)) if beside else set())
    values = {name for name in found if isinstance(inspect.getattr_static(kind, name), (property, str, int))}
    return found - values


def tried(call: Callable[[], Any]) -> dict[str, str]:
    try:
        call()
    except Exception as error:
        said = str(error)
        if all(part in said for part in REFUSED):
            return {"outcome": "refused", "note": said.partition(": ")[2].partition(" is not supported")[0]}
        trace = traceback.format_exc(limit=-3)
        return {"outcome": "failed", "note": f"{type(error).__name__}: {said[:300]}\n{trace}"}
    return {"outcome": "works", "note": ""}


def main() -> None:
    methods: dict[str, dict[str, str]] = {}

    def all_of(title: str, kind: Any, calls: dict[str, Callable[[], Any]], beside: Any = None) -> None:
        wanted = public(kind, beside)
        for name in [name for name in calls if name in wanted]:
            methods[f"{title}.{name}"] = tried(calls[name])
            if name in LOCAL.get(title, ()) and methods[f"{title}.{name}"]["outcome"] == "works":
                methods[f"{title}.{name}"]["outcome"] = "local"
        # Its watch calls back instead of being asked.
        other = getattr(e2b, f"Async{title}", None) if title != "WatchHandle" else None
        for name in public(other) ^ wanted if other is not None else ():
            methods[f"Async{title}.{name}"] = {"outcome": "failed", "note": "the asynchronous client has others"}
        for name in wanted - set(calls):
            methods[f"{title}.{name}"] = {"outcome": "failed", "note": "no call of it is written down in support.py"}

    sandbox = Sandbox.create(timeout=600, metadata={"of": "support"})
    try:
        all_of("Sandbox", Sandbox, sandbox_calls(sandbox))
        all_of("commands", type(sandbox.commands), command_calls(sandbox))
        all_of("CommandHandle", e2b.CommandHandle, handle_calls(sandbox))
        all_of("pty", type(sandbox.pty), pty_calls(sandbox))
        all_of("files", type(sandbox.files), file_calls(sandbox))
        all_of("WatchHandle", e2b.WatchHandle, watch_calls(sandbox))
        all_of("git", Git, git_calls(sandbox))
    finally:
        sandbox.kill()
    all_of("Template", Template, template_calls())
    all_of("Volume", Volume, volume_calls())
    all_of("Secret", Secret, secret_calls())
    if Interpreter is not None:
        interpreter = Interpreter.create(timeout=600)
        try:
            all_of("Interpreter", Interpreter, interpreter_calls(interpreter), beside=Sandbox)
        finally:
            interpreter.kill()
    json.dump(methods, sys.stdout)


if __name__ == "__main__":
    main()
