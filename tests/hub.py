"""A hub on the loopback address, for tests of unmodified hub clients.

It serves a folder: `<root>/datasets/<owner>/<name>/...` and `<root>/models/<owner>/<name>/...`, each at one commit, or, where
that is asked for, at any commit: then `<name>@<commit>` is served if it is there, else the same files whatever the commit. It
answers what huggingface_hub and datasets ask: HEAD and GET with ranges on files, repository information and trees.
The endpoint must be in the environment before the first import of a client, so tests run a script in a new process:

    with serve_hub(root) as hub:
        finished = hub.run_python("from datasets import load_dataset; ...")
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "5c0ffee5" * 5
"""The commit that `main` stands for."""

_FILE = re.compile(r"^/(?P<kind>datasets/)?(?P<repo>[^/]+/[^/]+)/resolve/(?P<rev>[^/]+)/(?P<path>.+)$")
_API = re.compile(
    r"^/api/(?P<kind>datasets|models)/(?P<repo>[^/]+/[^/]+)"
    r"(?:/(?P<verb>revision|tree)/(?P<rev>[^/]+)(?:/(?P<path>.*))?)?$"
)


@dataclass
class Hub:
    """A running hub.

    Attributes:
        root: The folder that is served.
        home: A fresh cache folder for clients (`HF_HOME`).
        endpoint: Its address.
        any_commit: Whether every 40-digit revision exists.
        cut: Files (by the end of their path) whose connection breaks in the middle, every time.
        requests: Method and path of everything asked so far.
    """

    root: Path
    home: Path
    endpoint: str
    any_commit: bool = False
    cut: set[str] = field(default_factory=set)
    requests: list[str] = field(default_factory=list)

    def environment(self, home: Path | None = None) -> dict[str, str]:
        """The variables that make a client use this hub, over the current environment, which names no other hub."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
        tree = str(Path(__file__).resolve().parent.parent)
        return kept | {
            "HF_ENDPOINT": self.endpoint,
            "HF_HOME": str(home or self.home),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_XET": "1",
            "NO_PROXY": "127.0.0.1",
            "PYTHONPATH": os.pathsep.join(filter(None, (tree, os.environ.get("PYTHONPATH", "")))),
            "OMP_NUM_THREADS": "1",
        }

    def run_python(
        self, script: str, *, timeout: float = 120, home: Path | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs a script in a new process that knows only this hub; a hanging client fails by the timeout."""
        return subprocess.run(
            [sys.executable, "-c", script],
            env=self.environment(home) | dict(env or {}),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )


@contextmanager
def serve_hub(root: Path, *, any_commit: bool = False) -> Iterator[Hub]:
    """Serves `root` until the block ends."""
    with tempfile.TemporaryDirectory() as home, ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        hub = Hub(root=root, home=Path(home), endpoint=endpoint, any_commit=any_commit)
        server.hub = hub
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def hub(self) -> Hub:
        return self.server.hub

    def log_message(self, format: str, *args: object) -> None:
        """Keeps the test output quiet."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        if match := _FILE.match(path):
            folder = self._repository("datasets" if match["kind"] else "models", match["repo"], match["rev"], body)
            if folder is not None:
                self._send_file(folder / match["path"], match["rev"], body)
        elif match := _API.match(path):
            folder = self._repository(match["kind"], match["repo"], match["rev"] or "main", body)
            if folder is not None:
                self._send_api(folder, match, body)
        else:
            self._send(404, b"{}", body, {"X-Error-Message": "no such page"})

    def _repository(self, kind: str, repo: str, revision: str, body: bool) -> Path | None:
        """The folder of a repository, or None after answering that it, or its revision, is missing."""
        folder = self.hub.root / kind / repo
        asked = self.hub.any_commit and re.fullmatch(r"[0-9a-f]{40}", revision)
        self._commit = revision if asked else COMMIT
        if asked and (pinned := folder.with_name(f"{folder.name}@{revision}")).is_dir():
            return pinned
        if not folder.is_dir():
            self._send(404, b"{}", body, {"X-Error-Code": "RepoNotFound"})
        elif not asked and revision not in ("main", COMMIT):
            self._send(404, b"{}", body, {"X-Error-Code": "RevisionNotFound"})
        else:
            return folder
        return None

    def _send_file(self, file: Path, revision: str, body: bool) -> None:
        if not file.is_file():
            self._send(404, b"", body, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": self._commit})
            return
        content = file.read_bytes()
        headers = {"X-Repo-Commit": self._commit, "ETag": f'"{_digest(content)}"', "Accept-Ranges": "bytes"}
        status, start, end = 200, 0, len(content)
        if wanted := re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            start, end = int(wanted[1]), min(int(wanted[2] or end - 1) + 1, end)
            status = 206
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(content)}"
        if body and any(str(file).endswith(suffix) for suffix in self.hub.cut):
            # The full length is promised, the first half of the file is sent, and the line goes dead.
            self._send(status, content[start : min(end, len(content) // 2)], body, headers, length=end - start)
            self.close_connection = True
            return
        self._send(status, content[start:end], body, headers)

    def _send_api(self, folder: Path, match: re.Match[str], body: bool) -> None:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        if match["verb"] == "tree":
            below = folder / (match["path"] or "")
            if not below.is_dir():
                self._send(404, b"{}", body, {"X-Error-Code": "EntryNotFound"})
                return
            recursive = parse_qs(urlsplit(self.path).query).get("recursive", ["false"])[0].lower() in ("true", "1")
            paths = sorted(below.rglob("*") if recursive else below.iterdir())
            self._send_json([_entry(path, folder) for path in paths], body)
            return
        siblings = [{"rfilename": str(path.relative_to(folder))} for path in files]
        information = {"_id": "0" * 24, "id": match["repo"], "sha": self._commit, "siblings": siblings, "tags": []}
        self._send_json(information | {"private": False, "gated": False, "disabled": False}, body)

    def _send_json(self, value: object, body: bool) -> None:
        self._send(200, json.dumps(value).encode(), body, {"Content-Type": "application/json"})

    def _send(
        self, status: int, content: bytes, body: bool, headers: Mapping[str, str], length: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content) if length is None else length))
        self.end_headers()
        if body:
            self.wfile.write(content)


def _digest(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


def _entry(path: Path, folder: Path) -> dict[str, object]:
    content = path.read_bytes() if path.is_file() else b""
    kind = "file" if path.is_file() else "directory"
    return {"type": kind, "path": str(path.relative_to(folder)), "size": len(content), "oid": _digest(content)}
