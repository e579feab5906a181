"""The program of the browser tests, run inside of sandboxes: a page that tells what it sees, and an echo by WebSocket.

`/` is the page; its script's findings are the promise `told`, and go to the page around it. `/seen` answers with the
heads of all requests so far. `/worker.js` is a service worker that fetches what it is told to, with cookies.
"""

import base64
import hashlib
import http.server
import json
import sys

PAGE = b"""<!doctype html><title>app</title><body><script>
let storage;
try { storage = localStorage.getItem("mine") } catch (error) { storage = error.name }
const told = new Promise((resolve, reject) => {
  const socket = new WebSocket(location.origin.replace(/^http/, "ws") + "/echo", "chat");
  socket.onopen = () => socket.send("through the preview");
  socket.onmessage = (message) => { resolve({
    echoed: message.data, protocol: socket.protocol, cookie: document.cookie, storage, origin: location.origin,
    href: location.href, referrer: document.referrer, framed: window.top !== window }); socket.close() };
  socket.onerror = () => reject(new Error("the socket failed"));
});
told.then((found) => parent.postMessage(found, "*"), (error) => parent.postMessage({error: error.message}, "*"));
</script>"""
WORKER = b"""addEventListener("message", (event) => event.waitUntil(
  fetch(event.data, {credentials: "include", mode: "no-cors"}).catch((error) => error).then(
    () => event.source.postMessage("fetched"))));
"""
heads = []


class App(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        heads.append(f"{self.requestline}\n{self.headers}")
        if self.path == "/echo":
            return self.echo()
        kind, body = {
            "/seen": ("application/json", json.dumps(heads).encode()),
            "/worker.js": ("text/javascript", WORKER),
        }.get(self.path, ("text/html", PAGE))
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Set-Cookie", "app=theirs; Path=/; HttpOnly")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def echo(self):
        """One short message and back."""
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.send_header("Sec-WebSocket-Protocol", "chat")
        self.end_headers()
        length = self.rfile.read(2)[1] & 127
        mask, data = self.rfile.read(4), self.rfile.read(length)
        text = bytes(byte ^ mask[index % 4] for index, byte in enumerate(data))
        self.wfile.write(bytes([0x81, len(text)]) + text)
        self.rfile.read(8)  # its close
        self.close_connection = True

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), App).serve_forever()
