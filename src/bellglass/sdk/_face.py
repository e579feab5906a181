"""`Sandbox` and `AsyncSandbox`: how one is created, found and given up. What is done to one is in `box.py`.

The sync one exists once its constructor returns; the async one once it was awaited or entered.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from types import TracebackType
from typing import Any, Self, Unpack

from bellglass.errors import BellglassError, NotFound, SandboxGone
from bellglass.model import Sandbox as SandboxInfo
from bellglass.sdk._async import box as _async_box
from bellglass.sdk._async.transport import AsyncTransport
from bellglass.sdk._config import Config, resolve, resolve_current
from bellglass.sdk._http import sandbox_path
from bellglass.sdk._options import SandboxOptions, refuse_unknown
from bellglass.sdk._sync import box as _sync_box
from bellglass.sdk._sync.transport import Transport


def _query(
    state: str | None, owner: str | None, name: str | None, labels: Mapping[str, str] | None
) -> list[tuple[str, Any]]:
    label_pairs = [("label", f"{key}={value}") for key, value in (labels or {}).items()]
    return [("state", state), ("owner", owner), ("name", name), *label_pairs]


class Sandbox(_sync_box.Box):
    """`Sandbox("base", cpus=2, memory="4GiB", lifetime="15m", ...)` creates a sandbox and returns once it runs.

    Options, all with the server's defaults: `name owner labels env inputs user workdir cpus memory disk pids lifetime
    idle_timeout isolation at_least network identity`, and `api_url api_key`. Sizes are bytes or "512MiB", times seconds
    or "15m". `inputs` maps names to text, bytes or Paths that appear read-only under /inputs. As a context manager it
    is deleted at the end of the block.

    Raises TypeError for an unknown option, InvalidRequest, NotFound (template), NoCapacity, SandboxFailed, Conflict
    (the name is taken), Unauthorized, ConnectionFailed."""

    def __init__(self, template: str = "base", **options: Unpack[SandboxOptions]) -> None:
        refuse_unknown("Sandbox()", options, SandboxOptions.__annotations__)
        self._start(template, options)

    def _start(self, template: str, options: Mapping[str, Any], *, get_or_create: bool = False) -> None:
        self._pid = os.getpid()
        transport = Transport(resolve(options.get("api_url"), options.get("api_key")))
        try:
            self._create(transport, template, options, get_or_create=get_or_create)
        except BaseException:
            transport.close()
            raise

    @classmethod
    def _of(cls, transport: Transport, info: SandboxInfo) -> Self:
        box = cls.__new__(cls)
        box._pid = os.getpid()
        box._attach(transport, info)
        return box

    @classmethod
    def connect(cls, id: str, *, api_url: str | None = None, api_key: str | None = None) -> Self:
        """The sandbox with that id. Raises NotFound."""
        return cls._found(resolve(api_url, api_key), id)

    @classmethod
    def current(cls) -> Self:
        """The sandbox that this program runs in. It may do little with itself: `info()`, and `publish()` its ports as
        private. Raises ClientError outside of one, or in one without an identity."""
        return cls._found(*resolve_current())

    @classmethod
    def _found(cls, config: Config, id: str) -> Self:
        transport = Transport(config)
        try:
            answer = transport.request("GET", sandbox_path(id), idempotent=True)
            return cls._of(transport, SandboxInfo.from_json(answer.json()))
        except BaseException:
            transport.close()
            raise

    @classmethod
    def get_or_create(cls, template: str = "base", *, name: str, **options: Unpack[SandboxOptions]) -> Self:  # type: ignore[misc]
        """The running sandbox of that name, or a new one with these options."""
        refuse_unknown("Sandbox.get_or_create()", options, SandboxOptions.__annotations__)
        box = cls.__new__(cls)
        box._start(template, {**options, "name": name}, get_or_create=True)
        return box

    @classmethod
    def list(
        cls,
        *,
        state: str | None = None,
        owner: str | None = None,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        api_url: str | None = None,
        api_key: str | None = None,
    ) -> Iterator[Self]:
        """The project's sandboxes that have not ended, or those in a `state` ("all" for every one)."""
        transport = Transport(resolve(api_url, api_key))
        for info in _sync_box.list_sandboxes(transport, _query(state, owner, name, labels)):
            yield cls._of(transport, info)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if os.getpid() != self._pid:  # a child forked inside the block: the sandbox is its parent's
            self.close()
            return
        try:
            self.delete()
        except (NotFound, SandboxGone):
            self.close()
        except BellglassError as failure:
            self.close()
            if error is None:
                raise
            error.add_note(f"and sandbox {self.id} could not be deleted: {failure}")


class AsyncSandbox(_async_box.AsyncBox):
    """`Sandbox` for asyncio: `box = await AsyncSandbox("base", ...)`, or `async with AsyncSandbox("base", ...) as box`.

    The options and errors are those of `Sandbox`; every method is awaited."""

    def __init__(self, template: str = "base", **options: Unpack[SandboxOptions]) -> None:
        refuse_unknown("AsyncSandbox()", options, SandboxOptions.__annotations__)
        self._wanted: tuple[str, Mapping[str, Any], bool] | None = (template, options, False)
        self._pid = os.getpid()

    async def _start(self) -> Self:
        if self._wanted is not None:
            template, options, get_or_create = self._wanted
            transport = AsyncTransport(resolve(options.get("api_url"), options.get("api_key")))
            try:
                await self._create(transport, template, options, get_or_create=get_or_create)
            except BaseException:
                await transport.aclose()
                raise
            self._wanted = None
        return self

    def __await__(self) -> Generator[Any, None, Self]:
        return self._start().__await__()

    @classmethod
    def _of(cls, transport: AsyncTransport, info: SandboxInfo) -> Self:
        box = cls.__new__(cls)
        box._wanted = None
        box._pid = os.getpid()
        box._attach(transport, info)
        return box

    @classmethod
    async def connect(cls, id: str, *, api_url: str | None = None, api_key: str | None = None) -> Self:
        """The sandbox with that id. Raises NotFound."""
        return await cls._found(resolve(api_url, api_key), id)

    @classmethod
    async def current(cls) -> Self:
        """The sandbox that this program runs in. It may do little with itself: `info()`, and `publish()` its ports as
        private. Raises ClientError outside of one, or in one without an identity."""
        return await cls._found(*resolve_current())

    @classmethod
    async def _found(cls, config: Config, id: str) -> Self:
        transport = AsyncTransport(config)
        try:
            answer = await transport.request("GET", sandbox_path(id), idempotent=True)
            return cls._of(transport, SandboxInfo.from_json(answer.json()))
        except BaseException:
            await transport.aclose()
            raise

    @classmethod
    async def get_or_create(cls, template: str = "base", *, name: str, **options: Unpack[SandboxOptions]) -> Self:  # type: ignore[misc]
        """The running sandbox of that name, or a new one with these options."""
        refuse_unknown("AsyncSandbox.get_or_create()", options, SandboxOptions.__annotations__)
        box = cls.__new__(cls)
        box._wanted = (template, {**options, "name": name}, True)
        box._pid = os.getpid()
        return await box._start()

    @classmethod
    async def list(
        cls,
        *,
        state: str | None = None,
        owner: str | None = None,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        api_url: str | None = None,
        api_key: str | None = None,
    ) -> AsyncIterator[Self]:
        """The project's sandboxes that have not ended, or those in a `state` ("all" for every one)."""
        transport = AsyncTransport(resolve(api_url, api_key))
        async for info in _async_box.list_sandboxes(transport, _query(state, owner, name, labels)):
            yield cls._of(transport, info)

    async def __aenter__(self) -> Self:
        return await self._start()

    async def __aexit__(
        self, type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if os.getpid() != self._pid:
            await self.aclose()
            return
        try:
            await self.delete()
        except (NotFound, SandboxGone):
            await self.aclose()
        except BellglassError as failure:
            await self.aclose()
            if error is None:
                raise
            error.add_note(f"and sandbox {self.id} could not be deleted: {failure}")
