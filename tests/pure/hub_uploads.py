"""The hub's protocol for uploads: a repository made, large files through LFS, then one commit that names all files."""

import base64
import hashlib
import json
import re
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import unquote, urlsplit

LARGE = 1024  # bytes: from here on a file goes through LFS


def answer(hub: Any, request: BaseHTTPRequestHandler) -> None:
    path = unquote(urlsplit(request.path).path)
    hub.asked.append(f"{request.command} {path}")
    body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
    if hub.uploads_refused:
        _reply(request, {"error": "You have no rights here"}, status=403)
    elif path == "/api/validate-yaml":
        _reply(request, {"errors": [], "warnings": []})
    elif path == "/api/repos/create":
        _create(hub, request, json.loads(body))
    elif re.fullmatch(r"/api/models/[^/]+/[^/]+/preupload/[^/]+", path):
        files = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["size"] >= LARGE else "regular",
                "shouldIgnore": False,
            }
            for file in json.loads(body)["files"]
        ]
        _reply(request, {"files": files})
    elif path.endswith(".git/info/lfs/objects/batch"):
        objects = [
            {**one, "actions": {"upload": {"href": f"{hub.url}/lfs/{one['oid']}"}}}
            for one in json.loads(body)["objects"]
        ]
        _reply(request, {"transfer": "basic", "objects": objects})
    elif found := re.fullmatch(r"/lfs/(\w+)", path):
        assert hashlib.sha256(body).hexdigest() == found[1]
        hub.blobs[found[1]] = body
        _reply(request, {})
    elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/[^/]+", path):
        _commit(hub, request, found[1], body)
    else:
        _reply(request, {"error": path}, status=404)


def _create(hub: Any, request: BaseHTTPRequestHandler, wanted: dict[str, Any]) -> None:
    owner = wanted.get("organization") or "me"
    name = f"{owner}/{wanted['name']}"
    # huggingface_hub says it in one of two ways, by its version
    hub.private[name] = wanted.get("visibility") == "private" or bool(wanted.get("private"))
    hub.commit(name, {})
    _reply(request, {"url": f"{hub.url}/{name}", "name": name, "id": name})


def _commit(hub: Any, request: BaseHTTPRequestHandler, name: str, body: bytes) -> None:
    files = dict(hub.commits[name, hub.main[name]])
    for line in body.decode().splitlines():
        entry = json.loads(line)
        value = entry["value"]
        if entry["key"] == "file":
            files[value["path"]] = base64.b64decode(value["content"])
        elif entry["key"] == "lfsFile":
            files[value["path"]] = hub.blobs[value["oid"]]
    sha = hub.commit(name, files)
    url = f"{hub.url}/{name}/commit/{sha}"
    _reply(request, {"success": True, "commitOid": sha, "commitUrl": url, "hookOutput": ""})


def _reply(request: BaseHTTPRequestHandler, value: Any, status: int = 200) -> None:
    body = json.dumps(value).encode()
    request.send_response(status)
    request.send_header("Content-Type", "application/json")
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)
