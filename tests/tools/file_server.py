"""A server of files on loopback, with the failures that downloads meet."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Files:
    """What is served, by path, and how it fails.

    `cut_after`: bytes after which a connection ends, for the first `cuts` answers. `ranges`: whether parts are served.
    `status`: answers by path instead of a file. `requests` keeps (path, Range header) of every GET.
    """

    content: dict[str, bytes] = field(default_factory=dict)
    cut_after: int = 0
    cuts: int = 0
    ranges: bool = True
    tag: str = '"1"'
    status: dict[str, list[int]] = field(default_factory=dict)
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    address: str = ""

    def url(self, path: str) -> str:
        """Address of a path."""
        return f"{self.address}{path}"


class _Handler(http.server.BaseHTTPRequestHandler):
    files: Files

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self.files.requests.append((self.path, self.headers.get("Range")))
        self._answer(with_body=True)

    def _answer(self, with_body: bool) -> None:
        files = self.files
        if files.status.get(self.path):
            self.send_error(files.status[self.path].pop(0))
            return
        data = files.content.get(self.path)
        if data is None:
            self.send_error(404)
            return
        start = 0
        wanted = self.headers.get("Range")
        if wanted and files.ranges and self.headers.get("If-Range") == files.tag:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start >= len(data):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(data)}")
                self.end_headers()
                return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start))
        self.send_header("ETag", files.tag)
        self.end_headers()
        if not with_body:
            return
        body = data[start:]
        if files.cuts:
            files.cuts -= 1
            body = body[: files.cut_after]
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(files: Files) -> Iterator[Files]:
    """The files served on a free port of loopback."""
    handler = type("Handler", (_Handler,), {"files": files})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    files.address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield files
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
