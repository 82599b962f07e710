"""Headless Chromium, driven by the DevTools protocol over two pipes: no driver, no port.

`--remote-debugging-pipe` reads commands from descriptor 3 and writes answers to 4, JSON that ends
with a NUL byte each (Chromium's content/browser/devtools/devtools_pipe_handler.cc).
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import queue
import shutil
import subprocess
import threading
import time
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
    "--disable-dev-shm-usage", "--disable-background-networking", "--remote-debugging-pipe",
    "--no-startup-window", "--disable-extensions", "--disable-component-update",
)  # fmt: skip


class Navigated(Exception):
    """The page that was asked went away before it answered."""


class Browser:
    """A Chromium with a profile in `directory`; `page` opens tabs."""

    def __init__(self, directory: Path) -> None:
        assert CHROMIUM, "the tests of the page need Chromium: `make packages` installs it"
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        command = [CHROMIUM, *_FLAGS, f"--user-data-dir={directory}"]
        ends = f'exec 3<&{theirs_in} 4>&{theirs_out}; exec "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", ends, "chromium", *command],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._out, self._in = os.fdopen(ours_out, "wb", 0), os.fdopen(ours_in, "rb")
        self._answers: dict[int, queue.Queue] = {}
        self._pages: dict[str, Page] = {}
        self._number = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_) -> None:
        self.call("Browser.close")
        self._out.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(60)
        self._in.close()

    def call(self, method: str, session: str | None = None, **params):
        """The command's result.

        Raises:
            Navigated: the tab went to another page meanwhile.
        """
        self._number += 1
        number, answers = self._number, queue.Queue()
        self._answers[number] = answers
        message = {"id": number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        self._out.write(json.dumps(message).encode() + b"\0")
        answer = answers.get(timeout=60)
        if "navigated or closed" in answer.get("error", {}).get("message", ""):
            raise Navigated(method)
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def page(self, width: int, height: int, dark: bool = False) -> Page:
        """A tab of a browser without history, of this size."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)
        session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        page = self._pages[session["sessionId"]] = Page(self, session["sessionId"])
        page.prepare(width, height, dark)
        return page

    def _read(self) -> None:
        rest = b""
        while chunk := self._in.read1(1 << 16):
            *messages, rest = (rest + chunk).split(b"\0")
            for message in map(json.loads, messages):
                if "id" in message:
                    self._answers.pop(message["id"]).put(message)
                elif page := self._pages.get(message.get("sessionId", "")):
                    page.note(message["method"], message["params"])


class Page:
    """A tab.  `complaints` are its console's errors and exceptions, `requests` all it asked for."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session
        self.complaints: list[str] = []
        self.requests: list[str] = []

    def call(self, method: str, **params):
        """The result of a command to this tab."""
        return self._browser.call(method, self._session, **params)

    def prepare(self, width: int, height: int, dark: bool) -> None:
        """Set size and colour scheme, and subscribe to all events."""
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=2 if width < 500 else 1, mobile=width < 500)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def note(self, method: str, params: dict) -> None:
        """Something that the tab tells."""
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.complaints.append(json.dumps(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(json.dumps(params["entry"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def open(self, url: str) -> None:
        """Go there."""
        told = self.call("Page.navigate", url=url)
        assert not told.get("errorText"), told
        self.until("document.readyState == 'complete'")

    def reload(self) -> None:
        """Reload the page. A question lost with the old page is asked again."""
        self.ask("window.before = true")
        self.call("Page.reload")
        self.until("!window.before && document.readyState == 'complete'")

    def ask(self, expression: str):
        """The value of a JavaScript expression; an element is true."""
        value = f"((found) => found instanceof Node || found)({expression})"
        told = self.call("Runtime.evaluate", expression=value, returnByValue=True,
                         awaitPromise=True)  # fmt: skip
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def until(self, expression: str, seconds: float = 180.0):
        """Wait until the expression is true; returns its value."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with contextlib.suppress(Navigated):
                if value := self.ask(expression):
                    return value
            time.sleep(0.1)
        raise AssertionError((expression, self.complaints))

    def picture(self, path: Path, whole: bool = True) -> None:
        """A PNG of the page, as long as it is."""
        told = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(told["data"]))
