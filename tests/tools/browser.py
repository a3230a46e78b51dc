"""A headless Chromium driven through ChromeDriver's HTTP interface, without a client library.

References
----------
W3C, "WebDriver", the endpoints of section 6 onwards.
"""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

_CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--autoplay-policy=no-user-gesture-required",
    "--mute-audio",
)


def missing() -> str | None:
    """What a browser test lacks on this machine, None for nothing."""
    if not any(shutil.which(name) for name in _CHROMIUM):
        return "no Chromium on this machine; on Debian: apt install chromium chromium-driver"
    return (
        None
        if shutil.which("chromedriver")
        else "no ChromeDriver on this machine; on Debian: apt install chromium-driver"
    )


class NoBrowser(Exception):
    """Chromium is installed but does not start, as with a package that may not read temporary folders."""


class Browser:
    """One window; use it in a `with` statement. Downloads go to `folder`, which also holds its profile."""

    def __init__(self, folder: Path, size: tuple[int, int] = (1280, 900), dark: bool = False) -> None:
        self.downloads = folder / "downloads"
        self.downloads.mkdir()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._driver = subprocess.Popen(
            [shutil.which("chromedriver") or "", f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._root = f"http://127.0.0.1:{port}"
        binary = next(path for path in map(shutil.which, _CHROMIUM) if path)
        flags = [*_FLAGS, f"--user-data-dir={folder / 'profile'}", f"--window-size={size[0]},{size[1]}"]
        if dark:
            flags.append("--force-dark-mode")
        options = {
            "binary": binary,
            "args": flags,
            "prefs": {"download.default_directory": str(self.downloads), "download.prompt_for_download": False},
        }
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        try:
            self._wait_for_driver()
            session = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        except AssertionError as error:
            self._driver.kill()
            raise NoBrowser(f"Chromium does not start: {error}") from error
        except BaseException:
            self._driver.kill()
            raise
        self._session = f"/session/{session['sessionId']}"

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._call("DELETE", self._session)
        finally:
            self._driver.terminate()
            self._driver.wait(20)

    def open(self, path: Path) -> None:
        """Show the page at `path`."""
        self._call("POST", f"{self._session}/url", {"url": path.resolve().as_uri()})

    def run(self, script: str, *arguments: object) -> Any:
        """What the body of a function in the page returns."""
        return self._call("POST", f"{self._session}/execute/sync", {"script": script, "args": list(arguments)})

    def until(self, script: str, *arguments: object, seconds: float = 20) -> Any:
        """What the body of a function returns as soon as that is true."""
        end = time.monotonic() + seconds
        while True:
            value = self.run(script, *arguments)
            if value:
                return value
            assert time.monotonic() < end, f"not true after {seconds} s: {script}"
            time.sleep(0.05)

    def find(self, selector: str) -> str:
        """The element that a CSS selector names."""
        found = self._call("POST", f"{self._session}/element", {"using": "css selector", "value": selector})
        return str(next(iter(found.values())))

    def click(self, selector: str) -> None:
        """Click on an element as a user does."""
        self._call("POST", f"{self._session}/element/{self.find(selector)}/click", {})

    def write(self, selector: str, text: str) -> None:
        """Replace the text of a field."""
        element = f"{self._session}/element/{self.find(selector)}"
        # Control and A mark what is there; clearing the field would count as a change of its own.
        self._call("POST", f"{element}/value", {"text": "\ue009a\ue000" + text})

    def press(self, *keys: str) -> None:
        """Press keys one after another, wherever the focus is."""
        events = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        actions = [{"type": "key", "id": "keyboard", "actions": events}]
        self._call("POST", f"{self._session}/actions", {"actions": actions})

    def click_at(self, x: float, y: float) -> None:
        """Click at a point of the window, in pixels."""
        events: list[dict[str, object]] = [
            {"type": "pointerMove", "x": round(x), "y": round(y), "duration": 0},
            {"type": "pointerDown", "button": 0},
            {"type": "pointerUp", "button": 0},
        ]
        actions = [{"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": events}]
        self._call("POST", f"{self._session}/actions", {"actions": actions})

    def screenshot(self) -> bytes:
        """The window as PNG."""
        return base64.b64decode(self._call("GET", f"{self._session}/screenshot"))

    def complaints(self) -> list[str]:
        """What the page has written to the browser's console as an error or warning since the last call."""
        entries = self._call("POST", f"{self._session}/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]

    def downloaded(self, name: str) -> str:
        """Text of a download, as soon as it is whole."""
        end = time.monotonic() + 20
        while not (self.downloads / name).is_file():
            assert time.monotonic() < end, f"{name} was not saved; there are {list(self.downloads.iterdir())}"
            time.sleep(0.05)
        return (self.downloads / name).read_bytes().decode("utf-8")

    def _wait_for_driver(self) -> None:
        for _ in range(200):
            try:
                self._call("GET", "/status")
                return
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.05)
        raise AssertionError("ChromeDriver does not answer")

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._root + path, data, {"Content-Type": "application/json"}, method=method)
        # No proxy stands between two processes of one machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            value = json.load(error)["value"]
            raise AssertionError(f"{value['error']}: {value['message'].splitlines()[0]}") from error
