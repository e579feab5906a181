"""/v1/sandboxes/{id}/executions."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response

from bellglass import faultpoints
from bellglass.errors import (
    AgentLost,
    Conflict,
    DiskFull,
    InvalidCommand,
    LimitExceeded,
    NodeUnavailable,
    NotAcceptable,
    NotFound,
    SandboxGone,
    TooLarge,
)
from bellglass.model import CreateExecution, Execution, ExecutionResult, Terminal
from bellglass.server.executions.attach import MESSAGES, relay
from bellglass.server.executions.bodies import SendSignal
from bellglass.server.executions.service import in_our_words
from bellglass.server.executions.validate import choose_format
from bellglass.server.http.actions import Routes
from bellglass.server.http.answers import answer, no_content
from bellglass.server.http.bodies import read_record, send_body
from bellglass.server.http.context import context_of
from bellglass.server.http.streams import LinkResponse
from bellglass.server.http.websockets import Socket
from bellglass.server.services import principal_of, project_of, services_of

routes = Routes("executions")
BASE = "/v1/sandboxes/{sandbox_id}/executions"
ONE = BASE + "/{execution_id}"
INSIDE = (NotFound, SandboxGone, Conflict, AgentLost, NodeUnavailable)
MISTAKEN = {
    "cmd": "command",
    "args": "command",
    "workdir": "cwd",
    "background": "detach",
    "pty": "terminal",
    "tty": "terminal",
}
SIZES = {"columns": "cols", "width": "cols", "lines": "rows", "height": "rows"}
EXAMPLE = {"command": ["python3", "-c", "print(42)"], "timeout": 20}
ACCEPT = "application/json (head and tail), application/x-ndjson or application/x-bellglass-frames (streamed)"


@routes.action(
    "POST", BASE, "exec.create", body=CreateExecution, answer=ExecutionResult, example=EXAMPLE,
    headers={"Accept": ACCEPT},
    errors=(*INSIDE, InvalidCommand, NotAcceptable, TooLarge, LimitExceeded, DiskFull),
)  # fmt: skip
async def create(request: Request, sandbox_id: str) -> Response:
    """Run a command. Waiting: 200 and its output in the format of `Accept`. `detach`: 201 and its record."""
    services, context = services_of(request), context_of(request)
    body = await read_record(request, CreateExecution, services.settings["server.max_body"], mistaken=MISTAKEN)
    accept = choose_format(request.headers.get("accept"))
    execution_id, stream = await services.executions.create(
        project_of(request), sandbox_id, body, accept, context.request_id
    )
    context.objects["execution_id"] = execution_id
    faultpoints.reach("server.exec.opened")
    if not body.detach:
        return LinkResponse(stream, principal_of(request).key)
    async with stream:
        record = (await stream.head())["result"]
    faultpoints.reach("server.exec.recorded")
    return answer(record, 201)


@routes.action("GET", BASE, "exec.list", answer="page:Execution", errors=INSIDE)
async def list_executions(
    request: Request,
    sandbox_id: str,
    state: Annotated[str | None, Query(description="running, exited or lost")] = None,
    tag: Annotated[str | None, Query(description="those with this tag")] = None,
    pid: Annotated[int | None, Query(ge=1, le=2**31, description="those whose first process has or had it")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: str | None = None,
) -> Response:
    """Executions of a sandbox, newest first."""
    result = await services_of(request).executions.list(
        project_of(request), sandbox_id, state, limit, cursor, context_of(request).request_id, tag=tag, pid=pid
    )
    return answer({"items": result["executions"], "cursor": result.get("cursor")})


@routes.action("GET", ONE, "exec.get", answer=Execution, errors=INSIDE)
async def get(request: Request, sandbox_id: str, execution_id: str) -> Response:
    """An execution's record, while it runs and after."""
    return answer(
        await services_of(request).executions.get(
            project_of(request), sandbox_id, execution_id, context_of(request).request_id
        )
    )


@routes.action(
    "GET", ONE + "/output", "exec.output", answer=ExecutionResult, headers={"Accept": ACCEPT},
    errors=(*INSIDE, NotAcceptable),
)  # fmt: skip
async def output(
    request: Request,
    sandbox_id: str,
    execution_id: str,
    offset: Annotated[int, Query(ge=0, le=2**62, description="byte of the combined output to begin at")] = 0,
    follow: Annotated[bool, Query(description="go on until the execution has ended")] = False,
    resume: Annotated[
        bool,
        Query(
            description="go on for the stream that started a waiting execution, whose "
            "connection broke: every byte comes, and a slow reader blocks the program"
        ),
    ] = False,
    live: Annotated[
        bool, Query(description="only what comes from now on, whatever `offset` says; goes with `follow`")
    ] = False,
) -> Response:
    """The output from an offset, in the format of `Accept`."""
    accept = choose_format(request.headers.get("accept"))
    stream = await services_of(request).executions.output(
        project_of(request), sandbox_id, execution_id, accept, context_of(request).request_id,
        offset=offset, follow=follow, resume=resume, live=live,
    )  # fmt: skip
    return LinkResponse(stream, principal_of(request).key, in_our_words=in_our_words)


@routes.action(
    "POST", ONE + "/stdin", "exec.stdin", body="application/octet-stream", body_required=False,
    answer=dict, answer_example={"written": 6, "offset": 6}, errors=(*INSIDE, TooLarge),
)  # fmt: skip
async def stdin(
    request: Request,
    sandbox_id: str,
    execution_id: str,
    eof: Annotated[bool, Query(description="close standard input after these bytes")] = False,
    offset: Annotated[
        int | None,
        Query(
            ge=0,
            le=2**62,
            description="where in standard input the bytes begin; 409 with `details.received` if it stands elsewhere",
        ),
    ] = None,
) -> Response:
    """Bytes for the standard input of an execution with `stdin_open`; answers when they lie in the program's pipe.

    `offset` of the answer is where standard input stands. Whoever gives it can send again what a broken connection
    left unanswered."""
    services = services_of(request)
    stream = await services.executions.stdin(
        project_of(request), sandbox_id, execution_id, context_of(request).request_id, offset=offset, eof=eof
    )
    with in_our_words():
        result = await send_body(request, stream, principal_of(request).key, services.settings["server.max_file"])
    return answer(result)


@routes.socket(
    ONE + "/attach", "exec.attach", messages=MESSAGES,
    queries={
        "offset": "of the output from which it goes on; by default the beginning",
        "live": "`true`: only output that is yet to come",
        "client": "a name of the client's own: with it he learns how much of what he typed had been taken before",
    },
)  # fmt: skip
async def attach(socket: Socket, sandbox_id: str, execution_id: str) -> None:
    """A terminal, or another execution. A close with 1000 or 1001 by the client means that he leaves; a connection that
    breaks, that he may come back: his place is kept for a minute, and the program held back for him."""
    executions = socket.app.state.services.executions
    offset, live = socket.integer("offset", 0), socket.flag("live")
    stream = await executions.attach(
        socket.principal.project, sandbox_id, execution_id, socket.context.request_id,
        offset=offset, live=live, client=socket.text("client"),
    )  # fmt: skip
    await relay(socket, stream)


@routes.action(
    "POST", ONE + "/resize", "exec.resize", body=Terminal, status=204, errors=(*INSIDE, TooLarge),
    example={"cols": 120, "rows": 40},
)  # fmt: skip
async def resize(request: Request, sandbox_id: str, execution_id: str) -> Response:
    """Set the size of an execution's terminal; the program in its foreground gets SIGWINCH."""
    services = services_of(request)
    size = await read_record(request, Terminal, services.settings["server.max_body"], mistaken=SIZES)
    await services.executions.resize(
        project_of(request), sandbox_id, execution_id, size, context_of(request).request_id
    )
    return no_content()


@routes.action(
    "POST", ONE + "/signal", "exec.signal", body=SendSignal, status=204, errors=(*INSIDE, TooLarge),
    example={"signal": "SIGTERM", "scope": "tree"},
)  # fmt: skip
async def signal(request: Request, sandbox_id: str, execution_id: str) -> Response:
    """Send a signal to all processes of an execution, or to its command alone."""
    services = services_of(request)
    body = await read_record(request, SendSignal, services.settings["server.max_body"])
    await services.executions.signal(
        project_of(request), sandbox_id, execution_id, body.signal, body.scope, context_of(request).request_id
    )
    return no_content()
