"""Debian's headless Chromium, driven over its debugging pipe: JSON messages that end with a zero byte."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PROGRAM = "chromium-headless-shell"
WAIT_S = 60.0
Event = dict[str, Any]


class Browser:
    """One Chromium. `trusted` are hashes of public keys (base64 of SHA-256) of servers whose certificates hold;
    names below `domains` are on this host."""

    def __init__(self, trusted: list[str], domains: list[str], *, third_party_cookies: bool = True) -> None:
        path = shutil.which(PROGRAM)
        assert path, f"{PROGRAM} is missing: make setup-test"
        self.profile = tempfile.mkdtemp(prefix="bellglass-browser-")
        rules = ", ".join(f"MAP *.{domain} 127.0.0.1" for domain in domains)
        arguments = [
            path, "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--no-proxy-server",
            "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe",
            f"--user-data-dir={self.profile}", f"--host-resolver-rules={rules}",
            f"--ignore-certificate-errors-spki-list={','.join(trusted)}",
        ]  # fmt: skip
        if not third_party_cookies:
            arguments.append("--test-third-party-cookie-phaseout")
        self._process, self._write, self._read = start(arguments)
        self._buffer = b""
        self._last_id = 0
        self._answers: dict[int, Event] = {}
        self.events: list[Event] = []

    def page(self) -> Page:
        """In a context of its own: no cookie, no storage of another page."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        return Page(self, context)

    def call(self, method: str, session: str | None = None, **params: Any) -> Any:
        self._last_id += 1
        message: Event = {"id": self._last_id, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        number = self._last_id
        self.until(lambda: number in self._answers, method)
        answer = self._answers.pop(number)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def until(self, holds: Callable[[], Any], what: str) -> Any:
        """Read messages until it does."""
        deadline = time.monotonic() + WAIT_S
        while not (found := holds()):
            ready, _, _ = select.select([self._read], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"no {what} within {WAIT_S} s; last events: {self.events[-3:]}"
            piece = os.read(self._read, 1 << 20)
            assert piece, "the browser has ended"
            *messages, self._buffer = (self._buffer + piece).split(b"\0")
            for message in map(json.loads, messages):
                if "id" in message:
                    self._answers[message["id"]] = message
                else:
                    self.events.append(message)
        return found

    def close(self) -> None:
        self.call("Browser.close")
        self._process.wait(WAIT_S)
        os.close(self._write)
        os.close(self._read)
        shutil.rmtree(self.profile, ignore_errors=True)


def start(arguments: list[str]) -> tuple[subprocess.Popen[bytes], int, int]:
    """With a pipe to its descriptor 3 and one from its 4; our ends of them."""
    to_browser, write = os.pipe()
    read, from_browser = os.pipe()
    # Above what the shell's redirections name.
    theirs = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (to_browser, from_browser)]
    moved = 'exec "$@" 3<&{} 4>&{}'.format(*theirs)
    process = subprocess.Popen(
        ["bash", "-c", moved, "bash", *arguments], pass_fds=theirs,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    for end in (to_browser, from_browser, *theirs):
        os.close(end)
    return process, write, read


class Page:
    """One tab. `visits` are the status and URL of each main document's answer, redirects among them."""

    def __init__(self, browser: Browser, context: str) -> None:
        self.browser = browser
        self.context = context
        target = browser.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        return self.browser.call(method, self.session, **params)

    def events(self, *methods: str) -> list[Event]:
        mine = [event for event in self.browser.events if event.get("sessionId") == self.session]
        return [event["params"] | {"method": event["method"]} for event in mine if event["method"] in methods]

    def goto(self, url: str) -> list[tuple[int, str]]:
        """Returns once it has loaded: the status and URL of each answer, redirects first."""
        seen = len(self.events("Page.loadEventFired"))
        started = len(self.browser.events)
        failed = self.call("Page.navigate", url=url).get("errorText")
        assert not failed or failed == "net::ERR_HTTP_RESPONSE_CODE_FAILURE", failed
        self.browser.until(lambda: len(self.events("Page.loadEventFired")) > seen, f"load of {url}")
        answers = []
        for event in self.browser.events[started:]:
            if event.get("sessionId") != self.session or event["params"].get("type") != "Document":
                continue
            answer = event["params"].get("redirectResponse") or event["params"].get("response")
            if answer:
                answers.append((int(answer["status"]), str(answer["url"])))
        return answers

    def evaluate(self, code: str) -> Any:
        """The value of an expression; of a promise, what it becomes."""
        done = self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def cookies(self) -> list[dict[str, Any]]:
        return list(self.browser.call("Storage.getCookies", browserContextId=self.context)["cookies"])


@contextmanager
def browser(*trusted: str, domains: list[str], **options: Any) -> Iterator[Browser]:
    started = Browser(list(trusted), domains, **options)
    try:
        yield started
    finally:
        started.close()
