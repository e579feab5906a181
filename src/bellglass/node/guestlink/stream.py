"""What a session needs of a stream: an execution or a file operation, by the agent's stream id."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bellglass.errors import BellglassError
from bellglass.wire.frames import Frame

if TYPE_CHECKING:
    from bellglass.node.guestlink.session import GuestSession


class GuestStream:
    """Base of the streams. `id` is 0 until `session.attach` gave it one; no id is used twice in a sandbox's life."""

    id: int = 0
    session: GuestSession

    def frame_received(self, frame: Frame) -> None:
        """A frame of this stream. Raises FrameError when the agent may not send it now: that ends the link."""
        raise NotImplementedError

    def link_restored(self, *, known: bool) -> None:
        """A link is up; `known`: the agent's HELLO listed this stream."""
        raise NotImplementedError

    def link_lost(self) -> None:
        """The link broke; the session is getting the next one."""
        raise NotImplementedError

    def session_closed(self, error: BellglassError) -> None:
        """The sandbox ended, or the node is stopping. No frame will come any more."""
        raise NotImplementedError
