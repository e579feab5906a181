"""The link between server and node: one stream socket that carries many calls at once.

`LinkClient` (the server's side) opens streams by operation name, `LinkServer` (the node's) answers them. Both ends
authenticate by the kernel's word on the peer's uid and by a secret of the installation.
"""

from bellglass.link.client import LinkClient
from bellglass.link.server import LinkServer
from bellglass.link.stream import LinkStream

__all__ = ["LinkClient", "LinkServer", "LinkStream"]
