"""The public names: what `from bellglass import ...` offers is a promise."""

from __future__ import annotations

import inspect

import bellglass
from bellglass import errors

NAMES = {
    "AsyncContext", "CodeError", "Context", "ContextInfo", "KernelDied", "Result", "RunResult",
    "AgentLost", "ArchiveRefused", "AsyncExecution", "AsyncPort", "AsyncSandbox", "AsyncWarmPools", "BellglassError",
    "ClientError", "Conflict",
    "ConnectionFailed", "DiskFull", "Event", "ExecResult", "Execution", "ExecutionFailed", "ExecutionInfo",
    "FileEvent", "FileExists", "FileInfo", "FileMissing", "FilePermission", "FileTypeMismatch", "Forbidden",
    "IdempotencyConflict",
    "InternalError", "InvalidCommand", "InvalidRequest", "LimitExceeded", "MethodNotAllowed", "Network", "NetworkInfo",
    "NoCapacity",
    "NodeUnavailable", "NotAcceptable", "NotFound", "NotSupported", "OutputChunk", "OutputInvalid", "PoolInfo",
    "Port", "PortToken", "PortUnreachable", "RangeNotSatisfiable", "RequestError",
    "Rule", "Sandbox", "SandboxFailed", "SandboxGone", "SandboxInfo", "ServiceError", "StreamInterrupted", "TooLarge",
    "LogLine", "SandboxMetrics", "Unauthorized", "VersionMismatch", "WarmPools", "__version__",
}  # fmt: skip
BOX = {
    "close", "connect", "current", "delete", "events", "exec", "execution", "executions", "files", "get_or_create",
    "contexts", "id", "info", "logs", "metrics", "run_code",
    "labels", "list", "name", "network", "ports", "publish", "start", "state", "update", "workdir",
}  # fmt: skip
FILES = {
    "download", "download_dir", "exists", "list", "mkdir", "move", "read_bytes", "read_stream", "read_text", "remove",
    "sign", "stat", "upload", "upload_dir", "watch", "write_bytes", "write_text",
}  # fmt: skip
NETWORK = {"get", "set"}
PORT = {"info", "port", "revoke_tokens", "token", "token_url", "unpublish", "url", "visibility"}
CONTEXT = {"cwd", "delete", "id", "info", "interrupt", "language", "restart", "run"}
RUN_RESULT = {
    "chart", "context_id", "duration_s", "error", "execution_count", "interrupted", "main", "ok", "png", "results",
    "run_id", "state_lost", "stderr", "stdout", "text", "timed_out", "truncated",
}  # fmt: skip
SHOWN = {
    "chart", "data", "dropped", "frame", "html", "is_main", "javascript", "jpeg", "json", "latex", "markdown", "pdf",
    "png", "svg", "text",
}  # fmt: skip
EXECUTION = {
    "attach",
    "close_stdin",
    "id",
    "kill",
    "output",
    "resize",
    "sandbox_id",
    "signal",
    "status",
    "wait",
    "write_stdin",
}
RESULT = {
    "duration_s", "execution_id", "exit_code", "json", "ok", "oom_ambiguous", "oom_killed", "signal", "stderr",
    "stderr_cut", "stderr_raw", "stderr_total_bytes", "stdout", "stdout_cut", "stdout_raw", "stdout_total_bytes",
    "timed_out", "truncated",
}  # fmt: skip


def public(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


def test_names_are_pinned_and_there() -> None:
    assert set(bellglass.__all__) == NAMES
    for name in NAMES:
        assert getattr(bellglass, name) is not None
    assert set(dir(bellglass)) >= NAMES


def test_every_error_is_exported() -> None:
    tree = {
        name for name, value in vars(errors).items() if inspect.isclass(value) and value.__module__ == errors.__name__
    }
    assert tree <= NAMES


def test_members_are_pinned() -> None:
    from bellglass.sdk._async.files import AsyncFiles
    from bellglass.sdk._async.network import AsyncBoxNetwork
    from bellglass.sdk._sync.files import Files
    from bellglass.sdk._sync.network import BoxNetwork

    instance = {"contexts", "files", "network"}
    assert public(bellglass.Sandbox) | instance == BOX
    assert public(bellglass.AsyncSandbox) | instance == BOX - {"close"} | {"aclose"}
    assert public(Files) == public(AsyncFiles) == FILES
    assert public(BoxNetwork) == public(AsyncBoxNetwork) == NETWORK
    assert public(bellglass.Port) | {"info"} == public(bellglass.AsyncPort) | {"info"} == PORT
    on_instances = {"id", "sandbox_id"}
    assert public(bellglass.Execution) | on_instances == public(bellglass.AsyncExecution) | on_instances == EXECUTION
    assert public(bellglass.Context) | {"info"} == public(bellglass.AsyncContext) | {"info"} == CONTEXT
    pinned = ((bellglass.ExecResult, RESULT), (bellglass.RunResult, RUN_RESULT), (bellglass.Result, SHOWN))
    for kind, names in pinned:
        assert public(kind) | set(kind.__dataclass_fields__) == names


def test_both_faces_take_the_same_arguments() -> None:
    for name in BOX - {"close", "contexts", "files", "network"}:
        one, other = getattr(bellglass.Sandbox, name), getattr(bellglass.AsyncSandbox, name)
        if callable(one):
            assert list(inspect.signature(one).parameters) == list(inspect.signature(other).parameters), name


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert bellglass.Sandbox
    try:
        bellglass.Sandbax  # type: ignore[attr-defined]  # noqa: B018
    except AttributeError as error:
        assert "Sandbax" in str(error)
    else:
        raise AssertionError("Sandbax exists")
