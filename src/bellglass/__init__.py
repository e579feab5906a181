"""Bellglass: sandboxes for AI agents on your own machines.

    from bellglass import Sandbox

    with Sandbox("base", lifetime="15m") as box:
        box.files.write_text("hello.py", "print(6 * 7)")
        print(box.exec("python3 hello.py").stdout)

The names below are imported when they are first used, so that `import bellglass` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_ERRORS = (
    "AgentLost",
    "ArchiveRefused",
    "BellglassError",
    "ClientError",
    "Conflict",
    "ConnectionFailed",
    "DiskFull",
    "ExecutionFailed",
    "FileExists",
    "FileMissing",
    "FilePermission",
    "FileTypeMismatch",
    "Forbidden",
    "IdempotencyConflict",
    "InternalError",
    "InvalidCommand",
    "InvalidRequest",
    "KernelDied",
    "LimitExceeded",
    "MethodNotAllowed",
    "NoCapacity",
    "NodeUnavailable",
    "NotAcceptable",
    "NotFound",
    "NotSupported",
    "OutputInvalid",
    "PortUnreachable",
    "RangeNotSatisfiable",
    "RequestError",
    "SandboxFailed",
    "SandboxGone",
    "ServiceError",
    "StreamInterrupted",
    "TooLarge",
    "Unauthorized",
    "VersionMismatch",
)
_NAMES: dict[str, tuple[str, str]] = {
    "Sandbox": ("bellglass.sdk._face", "Sandbox"),
    "AsyncSandbox": ("bellglass.sdk._face", "AsyncSandbox"),
    "Execution": ("bellglass.sdk._sync.executions", "Execution"),
    "AsyncExecution": ("bellglass.sdk._async.executions", "AsyncExecution"),
    "ExecResult": ("bellglass.sdk._results", "ExecResult"),
    "OutputChunk": ("bellglass.sdk._results", "OutputChunk"),
    "Context": ("bellglass.sdk._sync.contexts", "Context"),
    "AsyncContext": ("bellglass.sdk._async.contexts", "AsyncContext"),
    "RunResult": ("bellglass.sdk._runs", "RunResult"),
    "Result": ("bellglass.sdk._runs", "Result"),
    "CodeError": ("bellglass.sdk._runs", "CodeError"),
    "WarmPools": ("bellglass.sdk._sync.pools", "WarmPools"),
    "AsyncWarmPools": ("bellglass.sdk._async.pools", "AsyncWarmPools"),
    "PoolInfo": ("bellglass.model", "Pool"),
    "Port": ("bellglass.sdk._sync.ports", "Port"),
    "AsyncPort": ("bellglass.sdk._async.ports", "AsyncPort"),
    "PortToken": ("bellglass.model", "PortToken"),
    "Network": ("bellglass.sdk._network", "Network"),
    "Rule": ("bellglass.sdk._network", "Rule"),
    "NetworkInfo": ("bellglass.model", "SandboxNetwork"),
    "SandboxInfo": ("bellglass.model", "Sandbox"),
    "Event": ("bellglass.model", "Event"),
    "LogLine": ("bellglass.model", "LogLine"),
    "SandboxMetrics": ("bellglass.model", "SandboxMetrics"),
    "ExecutionInfo": ("bellglass.model", "Execution"),
    "ContextInfo": ("bellglass.model", "Context"),
    "FileEvent": ("bellglass.model", "FileEvent"),
    "FileInfo": ("bellglass.model", "FileInfo"),
    **{name: ("bellglass.errors", name) for name in _ERRORS},
}
__all__ = ["__version__", *_NAMES]

if TYPE_CHECKING:
    from bellglass.errors import *  # noqa: F403
    from bellglass.model import Context as ContextInfo  # noqa: F401
    from bellglass.model import Event as Event
    from bellglass.model import Execution as ExecutionInfo  # noqa: F401
    from bellglass.model import FileEvent as FileEvent
    from bellglass.model import FileInfo as FileInfo
    from bellglass.model import LogLine as LogLine
    from bellglass.model import Pool as PoolInfo  # noqa: F401
    from bellglass.model import PortToken as PortToken
    from bellglass.model import Sandbox as SandboxInfo  # noqa: F401
    from bellglass.model import SandboxMetrics as SandboxMetrics
    from bellglass.model import SandboxNetwork as NetworkInfo  # noqa: F401
    from bellglass.sdk._async.contexts import AsyncContext as AsyncContext
    from bellglass.sdk._async.executions import AsyncExecution as AsyncExecution
    from bellglass.sdk._async.pools import AsyncWarmPools as AsyncWarmPools
    from bellglass.sdk._async.ports import AsyncPort as AsyncPort
    from bellglass.sdk._face import AsyncSandbox as AsyncSandbox
    from bellglass.sdk._face import Sandbox as Sandbox
    from bellglass.sdk._network import Network as Network
    from bellglass.sdk._network import Rule as Rule
    from bellglass.sdk._results import ExecResult as ExecResult
    from bellglass.sdk._results import OutputChunk as OutputChunk
    from bellglass.sdk._runs import CodeError as CodeError
    from bellglass.sdk._runs import Result as Result
    from bellglass.sdk._runs import RunResult as RunResult
    from bellglass.sdk._sync.contexts import Context as Context
    from bellglass.sdk._sync.executions import Execution as Execution
    from bellglass.sdk._sync.pools import WarmPools as WarmPools
    from bellglass.sdk._sync.ports import Port as Port


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'bellglass' has no attribute {name!r}")
    module, attribute = _NAMES[name]
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
