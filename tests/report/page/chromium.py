"""A headless Chromium that tests drive over the DevTools protocol, through a pipe: no port, no driver, no package."""

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WAIT_MS = 30_000

# Chromium reads its commands from descriptor 3 and writes to 4.
LAUNCH = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execvp(sys.argv[3], sys.argv[3:])"
)
OPTIONS = (
    "--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
    "--no-first-run", "--no-default-browser-check", "--disable-background-networking", "--disable-component-update",
    "--disable-extensions", "--disable-sync", "--hide-scrollbars", "--force-color-profile=srgb", "about:blank",
)  # fmt: skip


class BrowserError(Exception):
    """The browser refused a command, or ended."""


def find_chromium() -> str | None:
    """The browser's executable; None where there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def take_picture(page: Path, to: Path, size: str) -> None:
    """What a window of that size (``width,height``) shows, with no more colours than a picture of text needs."""
    chromium = find_chromium() or "chromium"
    options = [
        "--headless",
        "--no-sandbox",
        "--hide-scrollbars",
        "--force-device-scale-factor=1",
        f"--window-size={size}",
    ]
    subprocess.run([chromium, *options, f"--screenshot={to}", page.as_uri()], check=True, capture_output=True)
    if pngquant := shutil.which("pngquant"):
        subprocess.run([pngquant, "--force", "--output", to, to], check=True)


@dataclass
class Browser:
    """A running browser."""

    commands: BinaryIO
    answers: BinaryIO
    events: list[dict[str, Any]] = field(default_factory=list)
    last: int = 0
    read: bytes = b""

    def send(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """One command of the protocol, and its result."""
        number = self.last = self.last + 1
        message = {"id": number, "method": method, "params": params}
        self.commands.write(json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        self.commands.flush()
        while True:
            answer = self.receive()
            if answer.get("id") != number:
                self.events.append(answer)
            elif "error" in answer:
                msg = f"{method}: {answer['error']}"
                raise BrowserError(msg)
            else:
                return dict(answer["result"])

    def wait(self, method: str, session: str) -> None:
        """Wait for an event."""
        while not any(event.get("method") == method and event.get("sessionId") == session for event in self.events):
            self.events.append(self.receive())

    def receive(self) -> dict[str, Any]:
        """The next answer or event."""
        while b"\0" not in self.read:
            if not (more := os.read(self.answers.fileno(), 1 << 16)):
                msg = "the browser has ended"
                raise BrowserError(msg)
            self.read += more
        answer, _, self.read = self.read.partition(b"\0")
        return dict(json.loads(answer))

    def page(self) -> "Page":
        """A new page, of which everything that it logs, requests or says in a dialog is kept."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, target)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.send(f"{domain}.enable")
        return page


@dataclass
class Page:
    """One page of the browser."""

    browser: Browser
    session: str
    target: str

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.send(method, self.session, **params)

    def open(self, path: Path, fragment: str = "") -> None:
        """Go to a report, and wait until its script is done."""
        self.go(path, fragment)
        self.until("document.documentElement.dataset.ready")

    def go(self, path: Path, fragment: str = "") -> None:
        """Go to a file, and wait until it is loaded."""
        self.browser.events.clear()
        if "loaderId" in self.send("Page.navigate", url=path.absolute().as_uri() + fragment):
            self.browser.wait("Page.loadEventFired", self.session)

    def run(self, expression: str) -> Any:
        """The value of an expression."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            msg = f"{expression}: {details.get('exception', {}).get('description', details)}"
            raise BrowserError(msg)
        return answer["result"].get("value")

    def until(self, condition: str) -> None:
        """Wait until an expression is true; the page itself looks again with each of its turns."""
        self.run(f"""new Promise((done, give_up) => {{
            const last = Date.now() + {WAIT_MS};
            const late = () => Date.now() > last ? give_up(Error('never true')) : setTimeout(look, 5);
            const look = () => ({condition}) ? done(true) : late();
            look();
        }})""")

    def text(self, selector: str) -> str:
        """What stands in the first element of this kind."""
        return str(self.run(f"document.querySelector({json.dumps(selector)}).innerText"))

    def texts(self, selector: str) -> list[str]:
        """What stands in each element of this kind."""
        return list(self.run(f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.innerText)"))

    def click(self, selector: str) -> None:
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def choose(self, selector: str, value: str) -> None:
        """Choose an option, or type a text, as a user would."""
        self.run(
            f"{{ const e = document.querySelector({json.dumps(selector)}); e.value = {json.dumps(value)};"
            " for (const kind of ['input', 'change']) e.dispatchEvent(new Event(kind, {bubbles: true})); }"
        )

    def press(self, key: str) -> None:
        """Press a key, wherever the focus is."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        number = {"windowsVirtualKeyCode": 27} if key == "Escape" else {}  # by which Chromium closes a dialog
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, **text, **number)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, **number)

    def size(self, width: int, height: int, *, scale: float = 1) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )

    def dark(self) -> None:
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])

    def without_script(self) -> None:
        self.send("Emulation.setScriptExecutionDisabled", value=True)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot")["data"]))

    def events(self, *methods: str) -> list[dict[str, Any]]:
        """What the browser reported of these kinds since the page was opened."""
        self.run("1")  # what comes before the answer has come
        return [
            e["params"]
            for e in self.browser.events
            if e.get("method") in methods and e.get("sessionId") == self.session
        ]

    @property
    def complaints(self) -> list[Any]:
        """Errors of the script, and everything on the console."""
        return self.events("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")

    @property
    def requests(self) -> list[str]:
        """The addresses that were asked for."""
        return [event["request"]["url"] for event in self.events("Network.requestWillBeSent")]

    def close(self) -> None:
        self.browser.send("Target.closeTarget", targetId=self.target)


@contextmanager
def chromium(executable: str) -> Iterator[Browser]:
    """A browser with a profile of its own, for as long as the block."""
    with tempfile.TemporaryDirectory(prefix="allranks-browser-", ignore_cleanup_errors=True) as profile:
        to_browser, from_browser = os.pipe(), os.pipe()
        inherited = (to_browser[0], from_browser[1])
        command = [
            sys.executable,
            "-c",
            LAUNCH,
            *map(str, inherited),
            executable,
            f"--user-data-dir={profile}",
            *OPTIONS,
        ]
        process = subprocess.Popen(
            command, pass_fds=inherited, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for descriptor in inherited:
            os.close(descriptor)
        try:
            with os.fdopen(to_browser[1], "wb") as commands, os.fdopen(from_browser[0], "rb") as answers:
                browser = Browser(commands, answers)
                yield browser
                with suppress(BrowserError, OSError):
                    browser.send("Browser.close")
        finally:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
