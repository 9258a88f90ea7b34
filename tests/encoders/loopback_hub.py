"""A hub of models on the loopback address: enough of the hub's interface for unmodified `from_pretrained`."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """Serves `root/<owner>/<name>` as repositories with one commit, reachable as `main`, `v1` and by its hash.

    Attributes:
        url: Its address, for HF_ENDPOINT.
        cut: A file name whose download breaks off in the middle.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.cut = root, None
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_HEAD(self):
                hub.answer(self, body=False)

            def do_GET(self):
                hub.answer(self, body=True)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> Hub:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def answer(self, request, *, body):
        parts = unquote(request.path.split("?")[0]).strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            return self.describe(request, parts[2:], body)
        folder = self.root / "/".join(parts[:2])
        if not folder.is_dir():
            return self.send(request, 404, b"{}", body, {"X-Error-Code": "RepoNotFound"})
        if parts[2] != "resolve" or parts[3] not in ("main", "v1", COMMIT):
            return self.send(request, 404, b"{}", body, {"X-Error-Code": "RevisionNotFound"})
        path = folder / "/".join(parts[4:])
        headers = {"X-Repo-Commit": COMMIT}
        if not path.is_file():
            return self.send(request, 404, b"{}", body, headers | {"X-Error-Code": "EntryNotFound"})
        content = path.read_bytes()
        headers["ETag"] = f'"{hashlib.sha1(content).hexdigest()}"'
        return self.send(request, 200, content, body, headers, cut=path.name == self.cut)

    def describe(self, request, parts, body):
        folder = self.root / "/".join(parts[:2])
        if not folder.is_dir():
            return self.send(request, 404, b"{}", body, {"X-Error-Code": "RepoNotFound"})
        names = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file()]
        if parts[2:3] == ["tree"]:
            value = [{"type": "file", "path": name, "oid": "0" * 40, "size": 1} for name in names]
        else:
            value = {"id": "/".join(parts[:2]), "sha": COMMIT, "siblings": [{"rfilename": name} for name in names]}
        return self.send(request, 200, json.dumps(value).encode(), body, {})

    @staticmethod
    def send(request, status, content, body, headers, cut=False):
        request.send_response(status)
        for name, value in (
            {"Content-Length": str(len(content)), "Content-Type": "application/json"} | headers
        ).items():
            request.send_header(name, value)
        request.end_headers()
        if body:
            request.wfile.write(content[: len(content) // 2] if cut else content)
        if cut and body:
            request.wfile.flush()
            request.connection.shutdown(socket.SHUT_RDWR)
            request.close_connection = True
