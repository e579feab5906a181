"""Runs inside of a sandbox: requests to the API, named by the test as JSON on standard input, answered as JSON.

A request is `{"method", "path", "body", "headers"}`, or `{"raw"}` with the very bytes (latin-1) of a connection.
"""

import json
import os
import socket
import sys
import time
import urllib.error
import urllib.request

URL = os.environ.get("BELLGLASS_API_URL", "http://198.18.0.1")
TOKEN = os.environ.get("BELLGLASS_TOKEN", "this-sandbox")
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ask(request):
    body = request.get("body")
    headers = {"Authorization": "Bearer " + TOKEN, "Content-Type": "application/json", **request.get("headers", {})}
    made = urllib.request.Request(
        URL + request["path"],
        method=request.get("method", "GET"),
        data=None if body is None else json.dumps(body).encode(),
        headers=headers,
    )
    try:
        with OPENER.open(made, timeout=30) as answer:
            return {"status": answer.status, "body": answer.read().decode()}
    except urllib.error.HTTPError as error:
        return {"status": error.code, "body": error.read().decode()}


def send_raw(raw):
    with socket.create_connection(("198.18.0.1", 80), timeout=30) as connection:
        connection.sendall(raw.encode("latin-1"))
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    return {"status": int(answer[9:12] or b"0"), "body": answer.decode("latin-1")}


def one(request):
    begun = time.monotonic()
    try:
        found = send_raw(request["raw"]) if "raw" in request else ask(request)
    except OSError as error:
        reason = getattr(error, "reason", error)
        found = {"status": 0, "error": type(reason).__name__, "body": ""}
    return found | {"took_s": time.monotonic() - begun}


print(json.dumps([one(request) for request in json.load(sys.stdin)]))
