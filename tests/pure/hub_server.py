"""A server with the hub's protocol for data sets and models, with the faults that real networks have.

    with Hub() as hub:
        hub.commit("owner/name", {"data/a.parquet": b"…"}, card={"license": "mit"})

What it answers: /api/datasets/NAME[/revision/REV], /api/datasets/NAME/tree/REV/PATH (in pages, with Link), and
/datasets/NAME/resolve/REV/PATH, which redirects to a content store that honours Range, as the hub's LFS does.
Uploads (repositories made, LFS objects, commits) are in hub_uploads.py.
"""

import hashlib
import json
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import hub_uploads

PAGE = 3  # entries in a page of the tree


class Hub:
    def __init__(self) -> None:
        self.commits: dict[tuple[str, str], dict[str, bytes]] = {}
        self.cards: dict[str, dict[str, Any]] = {}
        self.main: dict[str, str] = {}
        self.blobs: dict[str, bytes] = {}
        self.asked: list[str] = []  # method and path of every request
        self.sent = 0  # bytes of content
        self.private: dict[str, bool] = {}  # repositories that were made here
        self.uploads_refused = False
        self.fault: Callable[[str, str], Any] = lambda method, path: (
            None
        )  # what goes wrong with a request

    def commit(self, repo: str, files: dict[str, bytes], card: dict[str, Any] | None = None) -> str:
        sha = hashlib.sha1(
            json.dumps(
                [repo, sorted((p, hashlib.sha256(c).hexdigest()) for p, c in files.items())]
            ).encode()
        ).hexdigest()
        self.commits[repo, sha] = files
        self.main[repo] = sha
        self.cards[repo] = card or {}
        for content in files.values():
            self.blobs[hashlib.sha256(content).hexdigest()] = content
        return sha

    def __enter__(self) -> "Hub":
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub.answer(self)

            do_HEAD = do_GET

            def do_POST(self) -> None:
                hub_uploads.answer(hub, self)

            do_PUT = do_POST

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.store = self.url.replace(
            "127.0.0.1", "localhost"
        )  # another host, as the hub's content store is
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def downloads(self) -> list[str]:
        """The files whose content was asked for."""
        names = {
            hashlib.sha256(c).hexdigest(): p
            for files in self.commits.values()
            for p, c in files.items()
        }
        return [names[path.split("/")[-1]] for path in self.asked if path.startswith("GET /store/")]

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = unquote(urlsplit(request.path).path)
        self.asked.append(f"{request.command} {path}")
        fault = self.fault(request.command, path)
        if fault == 429:
            reply(request, 429, b"slow down", {"Retry-After": "1"})
        elif fault == 503:
            reply(request, 503, b"later")
        elif found := re.fullmatch(r"/store/(\w+)", path):
            self._content(request, found[1], fault)
        elif found := re.fullmatch(
            r"/api/(?:datasets|models)/([^/]+/[^/]+)(?:/revision/([^/]+))?", path
        ):
            self._info(request, found[1], found[2])
        elif found := re.fullmatch(
            r"/api/(?:datasets|models)/([^/]+/[^/]+)/tree/([^/]+)(?:/(.*))?", path
        ):
            self._tree(request, found[1], found[2], found[3] or "")
        elif found := re.fullmatch(r"/(?:datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.*)", path):
            self._resolve(request, *found.groups())
        else:
            reply(request, 404, b"{}")

    def _at(
        self, request: BaseHTTPRequestHandler, repo: str, revision: str | None
    ) -> tuple[str, dict[str, bytes]] | None:
        if repo not in self.main:
            reply(
                request, 401, b'{"error": "Repository not found"}', {"X-Error-Code": "RepoNotFound"}
            )
            return None
        sha = self.main[repo] if revision in (None, "main") else str(revision)
        if (repo, sha) not in self.commits:
            reply(request, 404, b'{"error": "Invalid rev"}', {"X-Error-Code": "RevisionNotFound"})
            return None
        return sha, self.commits[repo, sha]

    def _info(self, request: BaseHTTPRequestHandler, repo: str, revision: str | None) -> None:
        if at := self._at(request, repo, revision):
            body = {
                "id": repo,
                "sha": at[0],
                "cardData": self.cards[repo],
                "siblings": [{"rfilename": p} for p in at[1]],
                "private": False,
                "gated": False,
                "disabled": False,
                "downloads": 0,
                "likes": 0,
                "tags": [],
            }
            reply(request, 200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _tree(self, request: BaseHTTPRequestHandler, repo: str, revision: str, root: str) -> None:
        if not (at := self._at(request, repo, revision)):
            return
        entries = []
        for path, content in sorted(at[1].items()):
            if not root or path.startswith(root + "/"):
                digest = hashlib.sha256(content).hexdigest()
                entries.append(
                    {
                        "type": "file",
                        "path": path,
                        "size": len(content),
                        "oid": hashlib.sha1(content).hexdigest(),
                        "lfs": {"oid": digest, "size": len(content), "pointerSize": 134},
                    }
                )
        if not entries:
            reply(request, 404, b'{"error": "not found"}', {"X-Error-Code": "EntryNotFound"})
            return
        query = parse_qs(urlsplit(request.path).query)
        start = int(query.get("cursor", ["0"])[0])
        headers = {"Content-Type": "application/json"}
        if start + PAGE < len(entries):
            headers["Link"] = (
                f'<{self.url}{urlsplit(request.path).path}?recursive=true&cursor={start + PAGE}>; rel="next"'
            )
        reply(request, 200, json.dumps(entries[start : start + PAGE]).encode(), headers)

    def _resolve(
        self, request: BaseHTTPRequestHandler, repo: str, revision: str, path: str
    ) -> None:
        if not (at := self._at(request, repo, revision)):
            return
        if path not in at[1]:
            reply(request, 404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": at[0]})
            return
        digest = hashlib.sha256(at[1][path]).hexdigest()
        reply(
            request,
            302,
            b"",
            {
                "Location": f"{self.store}/store/{digest}",
                "X-Repo-Commit": at[0],
                "X-Linked-Size": str(len(at[1][path])),
                "X-Linked-ETag": f'"{digest}"',
            },
        )

    def _content(self, request: BaseHTTPRequestHandler, digest: str, fault: Any) -> None:
        content = self.blobs[digest]
        start = 0
        if found := re.fullmatch(r"bytes=(\d+)-", request.headers.get("Range", "")):
            start = int(found[1])
        body = content[start:]
        if fault == "short":  # a proxy that ends early and says so in the length
            body = body[: len(body) // 2]
        headers = {
            "ETag": f'"{digest}"',
            "Content-Length": str(len(body)),
            "Accept-Ranges": "bytes",
        }
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        request.send_response(206 if start else 200)
        for name, value in headers.items():
            request.send_header(name, value)
        request.end_headers()
        if request.command == "GET":
            if fault == "cut":
                request.wfile.write(body[: len(body) // 2])
                self.sent += len(body) // 2
                request.wfile.flush()
                request.connection.close()
                request.close_connection = True
                return
            request.wfile.write(body)
            self.sent += len(body)


def reply(
    request: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str] | None = None
) -> None:
    request.send_response(status)
    for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
        request.send_header(name, value)
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body)
