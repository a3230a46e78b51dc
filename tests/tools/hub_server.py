"""A server on loopback that answers like the Hugging Face hub: HEAD and GET of `/REPO/resolve/REVISION/FILE`."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Hub:
    """What the server holds and what it has seen.

    `files` maps (repository, revision, name) to bytes, `gated` maps a repository to the only token it accepts.
    `cut` names a file whose connection breaks half-way through. `requests` has one line for each request and
    `tokens` the tokens that came with requests, by repository. `starts` has the first byte asked for of each file.
    """

    files: dict[tuple[str, str, str], bytes] = field(default_factory=dict)
    gated: dict[str, str] = field(default_factory=dict)
    cut: str = ""
    requests: list[str] = field(default_factory=list)
    tokens: dict[str, set[str]] = field(default_factory=dict)
    starts: dict[str, list[int]] = field(default_factory=dict)
    endpoint: str = ""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _answer(self, with_body: bool) -> None:
        hub = self.hub
        hub.requests.append(f"{self.command} {self.path}")
        repository, _, rest = self.path.lstrip("/").partition("/resolve/")
        revision, _, name = rest.partition("/")
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        hub.tokens.setdefault(repository, set()).add(token)
        if repository in hub.gated and token != hub.gated[repository]:
            self._refuse(403 if token else 401, "GatedRepo", f"Access to model {repository} is restricted.")
            return
        data = hub.files.get((repository, revision, name))
        if data is None:
            self._refuse(404, "EntryNotFound", "Entry not found")
            return
        start = 0
        if self.headers.get("Range", "").startswith("bytes="):
            start = int(self.headers["Range"].removeprefix("bytes=").split("-")[0])
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        # The real hub gives the full commit for any revision.
        self.send_header("X-Repo-Commit", revision)
        self.send_header("Content-Length", str(len(data) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if not with_body:
            return
        hub.starts.setdefault(name, []).append(start)
        if name == hub.cut:
            # No bytes at all after the first half, so that resuming makes no progress either.
            self.wfile.write(data[start : max(start, len(data) // 2)])
            self.wfile.flush()
            self.close_connection = True
            return
        self.wfile.write(data[start:])

    def _refuse(self, status: int, code: str, message: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", message)
        self.send_header("Content-Length", "0")
        self.end_headers()


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    """Serve `hub` on a free port of the loopback device; its `endpoint` is set meanwhile."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
