"""A strict WebSocket server that sends back what it gets (RFC 6455, 7692): websocket_echo.py ADDRESS PORT.

Its first line tells the port. It needs Python alone, since it runs inside of sandboxes. What a peer does wrong is told
at the byte where it goes wrong: text is looked at as it comes, not when its frame or message is whole.
"""

import asyncio
import base64
import codecs
import hashlib
import sys
import zlib

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
PIECE_BYTES = 1 << 18
CLOSED_S = 10
SYNC_MARK = b"\x00\x00\xff\xff"
"""Ends a flushed block of deflate, and is left out on the wire."""


class Wrong(Exception):
    """What a peer is told with a close frame: code, reason."""


class Deflate:
    """permessage-deflate, as the parameters of an offer ask for it. Raises ValueError for those that can't be had."""

    def __init__(self, offer):
        self.answer = ["permessage-deflate"]
        self.bits = {"server": 15, "client": 15}
        self.keeps = {"server": True, "client": True}
        for name, given, value in (part.strip().partition("=") for part in offer):
            side, _, what = name.partition("_")
            if side not in self.bits or name in [told.partition("=")[0] for told in self.answer]:
                raise ValueError(name)
            if what == "no_context_takeover" and not given:
                self.keeps[side] = False
                self.answer.append(name)
            elif name == "client_max_window_bits" and not given:
                self.answer.append("client_max_window_bits=15")
            elif what == "max_window_bits" and value.strip('"') in map(str, range(9, 16)):  # zlib has no raw 8
                self.bits[side] = int(value.strip('"'))
                self.answer.append(f"{name}={self.bits[side]}")
            else:
                raise ValueError(name)
        self.deflate = self.inflate = None

    def begin(self):
        """A message comes."""
        if self.inflate is None or not self.keeps["client"]:
            self.inflate = zlib.decompressobj(wbits=-self.bits["client"])

    def more(self, data):
        try:
            return self.inflate.decompress(data)
        except zlib.error as error:
            raise Wrong(1007, f"no deflate: {error}") from None

    def packed(self, data):
        if self.deflate is None or not self.keeps["server"]:
            self.deflate = zlib.compressobj(wbits=-self.bits["server"])
        return (self.deflate.compress(data) + self.deflate.flush(zlib.Z_SYNC_FLUSH)).removesuffix(SYNC_MARK)


def negotiated(fields):
    for offer in fields.get("sec-websocket-extensions", "").split(","):
        name, *parameters = offer.split(";")
        if name.strip() == "permessage-deflate":
            try:
                return Deflate(parameters)
            except ValueError:
                continue
    return None


class Peer:
    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self.extension = None
        self.kind = None
        """Of the message whose frames are coming."""

    async def shake_hands(self):
        _, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = {}
        for name, _, value in (line.partition(":") for line in lines if line):
            fields[name.lower()] = ", ".join(filter(None, [fields.get(name.lower()), value.strip()]))
        if fields.get("upgrade", "").lower() != "websocket" or fields.get("sec-websocket-version") != "13":
            self.writer.write(
                b"HTTP/1.1 426 Upgrade Required\r\nSec-WebSocket-Version: 13\r\nContent-Length: 0\r\n\r\n"
            )
            return False
        key = fields["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        answer = ["HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade"]
        answer.append(f"Sec-WebSocket-Accept: {accept}")
        self.extension = negotiated(fields)
        if self.extension is not None:
            answer.append("Sec-WebSocket-Extensions: " + "; ".join(self.extension.answer))
        self.writer.write("\r\n".join([*answer, "", ""]).encode())
        return True

    async def serve(self):
        if not await self.shake_hands():
            return
        try:
            while await self.one_frame():
                pass
        except Wrong as wrong:
            code, reason = wrong.args
            await self.send(CLOSE, code.to_bytes(2, "big") + reason.encode()[:123])

    async def one_frame(self):
        """False after a close."""
        first, second = await self.reader.readexactly(2)
        is_last, opcode, length = bool(first & 0x80), first & 15, second & 127
        if first & 0x30 or (first & 0x40 and (self.extension is None or opcode not in (TEXT, BINARY))):
            raise Wrong(1002, "reserved bits")
        if opcode not in (CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG):
            raise Wrong(1002, "reserved opcode")
        if not second & 0x80:
            raise Wrong(1002, "not masked")
        if opcode >= CLOSE and (length > 125 or not is_last):
            raise Wrong(1002, "a control frame that is long or in fragments")
        if length > 125:
            length = int.from_bytes(await self.reader.readexactly(2 if length == 126 else 8), "big")
            if length >> 63:
                raise Wrong(1002, "a length of 64 bits")
        mask = await self.reader.readexactly(4)
        if opcode < CLOSE:
            if (opcode == CONTINUATION) == (self.kind is None):
                raise Wrong(1002, "a continuation of nothing" if self.kind is None else "a message within another")
            if opcode != CONTINUATION:
                self.begin(opcode, bool(first & 0x40))
            async for piece in self.payload(length, mask):
                self.take(piece)
            if is_last:
                await self.send_back()
            return True
        data = b"".join([piece async for piece in self.payload(length, mask)])
        if opcode == PING:
            await self.send(PONG, data)
        elif opcode == CLOSE:
            await self.send(CLOSE, answer_to_close(data))
        return opcode != CLOSE

    async def payload(self, length, mask):
        """As it comes, unmasked."""
        done = 0
        while done < length:
            piece = await self.reader.read(min(length - done, PIECE_BYTES))
            if not piece:
                raise asyncio.IncompleteReadError(b"", length - done)
            size, turn = len(piece), done % 4
            pad = ((mask[turn:] + mask[:turn]) * (size // 4 + 1))[:size]
            yield (int.from_bytes(piece, "little") ^ int.from_bytes(pad, "little")).to_bytes(size, "little")
            done += size

    def begin(self, kind, is_packed):
        self.kind, self.pieces, self.is_packed = kind, [], is_packed
        self.decoder = codecs.getincrementaldecoder("utf-8")()
        if is_packed:
            self.extension.begin()

    def take(self, piece, *, final=False):
        if self.is_packed:
            piece = self.extension.more(piece + SYNC_MARK if final else piece)
        if self.kind == TEXT:
            try:
                self.decoder.decode(piece, final)
            except UnicodeDecodeError:
                raise Wrong(1007, "no UTF-8") from None
        self.pieces.append(piece)

    async def send_back(self):
        self.take(b"", final=True)
        kind, self.kind = self.kind, None
        message = b"".join(self.pieces)
        if self.extension is None:
            await self.send(kind, message)
        else:
            await self.send(kind, self.extension.packed(message), bits=0x40)

    async def send(self, opcode, data, *, bits=0):
        size = len(data)
        form, wide = (size, 0) if size < 126 else (126, 2) if size < 65536 else (127, 8)
        head = bytes([0x80 | bits | opcode, form]) + (size.to_bytes(wide, "big") if wide else b"")
        self.writer.write(head + data)
        await self.writer.drain()


def answer_to_close(data):
    """The payload of the answer. Raises Wrong."""
    code = int.from_bytes(data[:2], "big")
    if len(data) == 1 or (data and not (code in {*range(1000, 1015)} - {1004, 1005, 1006} or 3000 <= code < 5000)):
        raise Wrong(1002, "a bad close")
    try:
        data[2:].decode()
    except UnicodeDecodeError:
        raise Wrong(1007, "no UTF-8") from None
    return data[:2]


async def serve(reader, writer):
    try:
        await Peer(reader, writer).serve()
        # Who closes with bytes unread resets the connection, and the peer may lose the close frame.
        writer.write_eof()
        async with asyncio.timeout(CLOSED_S):
            while await reader.read(PIECE_BYTES):
                pass
    except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
        pass
    finally:
        writer.close()


async def main():
    async with await asyncio.start_server(serve, sys.argv[1], int(sys.argv[2]), limit=PIECE_BYTES) as server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
