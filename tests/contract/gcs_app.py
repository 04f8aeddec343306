"""The part of Google Cloud Storage's JSON API that a storage uses, in memory.

Uploads, their condition ``ifGenerationMatch=0`` (412 if there is an object), downloads, listings by
pages, and removal, as the API's reference documents them.
"""

from __future__ import annotations

import json
import re
from urllib.parse import unquote

from werkzeug.wrappers import Request, Response

BUCKET = "bucket"
PAGE = 3  # names; a store may always return fewer than it was asked for


class App:
    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def __call__(self, environ, start_response):
        request = Request(environ)
        return self.answer(request, environ["RAW_URI"].partition("?")[0])(environ, start_response)

    def answer(self, request: Request, path: str) -> Response:
        found = re.fullmatch(r"(/upload|/download)?/storage/v1/b/([^/]+)/o(?:/([^/]+))?", path)
        if found is None or found[2] != BUCKET:
            return failure(404, "The specified bucket does not exist.")
        if found[1] == "/upload":
            return self.upload(request)
        key = unquote(found[3]) if found[3] else None
        if key is None:
            return self.listed(request.args)
        if key not in self.objects:
            return failure(404, f"No such object: {BUCKET}/{key}")
        if request.method == "DELETE":
            del self.objects[key]
            return Response(status=204)
        return Response(self.objects[key], mimetype="application/octet-stream")

    def upload(self, request: Request) -> Response:
        boundary = request.headers["Content-Type"].partition('boundary="')[2].rstrip('"').encode()
        _, described, content, _ = request.get_data().split(b"--" + boundary, 3)
        name = json.loads(described.split(b"\n\n", 1)[1])["name"]
        if request.args.get("ifGenerationMatch") == "0" and name in self.objects:
            return failure(412, "At least one of the pre-conditions you specified did not hold.")
        self.objects[name] = content.split(b"\n\n", 1)[1][:-1]
        return Response(json.dumps({"name": name, "bucket": BUCKET, "generation": "1"}))

    def listed(self, args) -> Response:
        prefix, delimiter = args.get("prefix", ""), args.get("delimiter")
        names = page_of(sorted(self.objects), prefix, delimiter)
        start = int(args.get("pageToken", 0))
        page = names[start : start + PAGE]
        answer = {
            "kind": "storage#objects",
            "items": [
                {"name": name, "size": str(len(self.objects[name]))}
                for name, is_prefix in page
                if not is_prefix
            ],
            "prefixes": [name for name, is_prefix in page if is_prefix],
        }
        if start + PAGE < len(names):
            answer["nextPageToken"] = str(start + PAGE)
        return Response(json.dumps(answer), mimetype="application/json")


def page_of(names: list[str], prefix: str, delimiter: str | None) -> list[tuple[str, bool]]:
    """Return the names that begin with *prefix*, cut after *delimiter*, and which were cut."""
    found = {}
    for name in names:
        if name.startswith(prefix):
            rest = name[len(prefix) :]
            head, cut, _ = rest.partition(delimiter) if delimiter else (rest, "", "")
            found[prefix + head + cut] = bool(cut)
    return sorted(found.items())


def failure(status: int, message: str) -> Response:
    error = {"error": {"code": status, "message": message}}
    return Response(json.dumps(error), status, mimetype="application/json")
