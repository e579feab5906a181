"""sandbox.logs: what its executions wrote, line by line in the order of time."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Any

from bellglass.errors import BellglassError, InvalidRequest
from bellglass.link import LinkStream
from bellglass.model import format_time
from bellglass.node.app import Node
from bellglass.node.executions import registry
from bellglass.node.executions.lines import Line, Lines, Selection
from bellglass.node.executions.log import ExecutionLog
from bellglass.node.guestlink.budget import CpuBudget
from bellglass.node.params import Params

MOST_LINES = 1000
MOST_BUDGETS = 1024
_BUDGETS: dict[str, CpuBudget] = {}
"""Of the sandboxes whose lines were read last."""


async def page(node: Node, params: Params, stream: LinkStream) -> None:
    """Of one that has ended too, while its records are kept."""
    sandbox_id = params.text("sandbox_id", limit=64)
    node.sandboxes.row(sandbox_id, params.integer("generation"))
    selection = Selection(
        params.seconds("start", 0.0),
        params.seconds("end", 1e12),
        params.text("search", None),
        params.text("execution_id", None, limit=64),
    )
    limit = params.integer("limit", 100, least=1, most=MOST_LINES)
    place = _place(params.raw("place", None))
    lines = Lines(node.sandboxes.log_folder(sandbox_id), partial(_view, node, sandbox_id), _budget(sandbox_id))
    read = lines.backward if params.flag("backward") else lines.forward
    found = await read(place, limit, selection)
    await lines.pay()
    result = {"lines": [_shown(line) for line in found.lines], "place": list(found.place), "more": found.more}
    await stream.send_head({"result": result}, end=True)


def _budget(sandbox_id: str) -> CpuBudget:
    """One for all readers of a sandbox's lines, also those who come again and again."""
    budget = _BUDGETS.pop(sandbox_id, None) or CpuBudget()
    _BUDGETS[sandbox_id] = budget
    if len(_BUDGETS) > MOST_BUDGETS:
        del _BUDGETS[next(iter(_BUDGETS))]
    return budget


def _view(node: Node, sandbox_id: str, execution_id: str) -> tuple[ExecutionLog, dict[str, Any]] | None:
    try:
        live = node.sandboxes.live_table.get(sandbox_id)
        if live is not None:
            view = live.executions.view(execution_id)
        else:
            folder = node.sandboxes.log_folder(sandbox_id)
            view = registry.finished(node.records, sandbox_id, folder, execution_id)
    except (BellglassError, OSError):
        return None  # pruned
    return view.log, view.record()


def _shown(line: Line) -> dict[str, Any]:
    return {
        "time": format_time(datetime.fromtimestamp(line.at, UTC)),
        "kind": line.kind,
        "execution_id": line.execution_id,
        "text": line.text,
        "truncated": line.truncated,
        "place": list(line.place),
    }


def _place(value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    match value:
        case [int(number), int(line)] if 0 <= number < 2**53 and 0 <= line < 2**53:
            return number, line
    raise InvalidRequest("place: not two whole numbers", details={"field": "place"})
