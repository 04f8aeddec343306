"""The part of Google Cloud Storage's JSON API that a storage uses, in memory.

Uploads in one piece and resumable ones, their condition ``ifGenerationMatch=0`` (412 if there is an
object), downloads, listings by pages, removal, and rewriting, which an object of more than
``REWRITTEN_AT_ONCE`` bytes needs several times, as the API's reference documents them.
"""

from __future__ import annotations

import json
import re
import zlib
from typing import Any
from urllib.parse import unquote

from werkzeug.wrappers import Request, Response

BUCKET = "bucket"
REWRITTEN_AT_ONCE = 50_000  # bytes
PAGE = 3  # names; a store may always return fewer than it was asked for


# /storage/v1/b/<bucket>/o/<object>/rewriteTo/b/<bucket>/o/<object>, or less of it
PATH = re.compile(
    r"(/upload|/download)?/storage/v1/b/([^/]+)/o(?:/([^/]+)(?:/rewriteTo/b/([^/]+)/o/([^/]+))?)?"
)


class App:
    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, tuple[str, bytes]] = {}  # names and what has come, by session
        self.rewritten: dict[str, int] = {}  # bytes, by token

    def __call__(self, environ, start_response):
        request = Request(environ)
        return self.answer(request, environ["RAW_URI"].partition("?")[0])(environ, start_response)

    def answer(self, request: Request, path: str) -> Response:
        found = PATH.fullmatch(path)
        if found is None or {found[2], found[4] or BUCKET} != {BUCKET}:
            return failure(404, "The specified bucket does not exist.")
        if found[1] == "/upload":
            return self.upload(request)
        if found[3] is None:
            return self.listed(request.args)
        return self.of_object(request, unquote(found[3]), target=found[5])

    def of_object(self, request: Request, key: str, *, target: str | None) -> Response:
        if key not in self.objects:
            return failure(404, f"No such object: {BUCKET}/{key}")
        if target is not None:
            return self.rewrite(request, key, unquote(target))
        if request.method == "DELETE":
            del self.objects[key]
            return Response(status=204)
        return Response(self.objects[key], mimetype="application/octet-stream")

    def rewrite(self, request: Request, source: str, target: str) -> Response:
        data = self.objects[source]
        if request.args.get("ifGenerationMatch") == "0" and target in self.objects:
            return failure(412, "At least one of the pre-conditions you specified did not hold.")
        done = self.rewritten.pop(request.args.get("rewriteToken", ""), 0) + REWRITTEN_AT_ONCE
        answer: dict[str, Any] = {
            "kind": "storage#rewriteResponse",
            "totalBytesRewritten": str(min(done, len(data))),
            "objectSize": str(len(data)),
            "done": done >= len(data),
        }
        if answer["done"]:
            self.objects[target] = data
            answer["resource"] = {"name": target, "bucket": BUCKET, "size": str(len(data))}
        else:
            answer["rewriteToken"] = f"{target} {done}"
            self.rewritten[answer["rewriteToken"]] = done
        return Response(json.dumps(answer), mimetype="application/json")

    def upload(self, request: Request) -> Response:
        if request.args.get("upload_id"):
            return self.resume(request, request.args["upload_id"])
        if request.args.get("uploadType") == "resumable":
            session = str(len(self.uploads))
            self.uploads[session] = (request.get_json()["name"], b"")
            return Response("", headers={"Location": f"{request.base_url}?upload_id={session}"})
        boundary = request.headers["Content-Type"].partition('boundary="')[2].rstrip('"').encode()
        _, described, content, _ = request.get_data().split(b"--" + boundary, 3)
        name = json.loads(described.split(b"\n\n", 1)[1])["name"]
        if request.args.get("ifGenerationMatch") == "0" and name in self.objects:
            return failure(412, "At least one of the pre-conditions you specified did not hold.")
        self.objects[name] = content.split(b"\n\n", 1)[1][:-1]
        return Response(json.dumps({"name": name, "bucket": BUCKET, "generation": "1"}))

    def resume(self, request: Request, session: str) -> Response:
        name, data = self.uploads.pop(session)
        if request.method == "DELETE":
            return Response(status=499)
        span, _, total = request.headers["Content-Range"].removeprefix("bytes ").partition("/")
        if int(span.partition("-")[0]) != len(data):
            return failure(503, "This is not the next byte.")
        data += request.get_data()
        if len(data) < int(total):
            self.uploads[session] = (name, data)
            return Response(status=308, headers={"Range": f"bytes=0-{len(data) - 1}"})
        self.objects[name] = data
        answer = {"name": name, "bucket": BUCKET, "generation": "1", "size": total}
        return Response(json.dumps(answer), mimetype="application/json")

    def listed(self, args) -> Response:
        prefix, delimiter = args.get("prefix", ""), args.get("delimiter")
        names = page_of(sorted(self.objects), prefix, delimiter)
        start = int(args.get("pageToken", 0))
        page = names[start : start + PAGE]
        answer = {
            "kind": "storage#objects",
            "items": [
                {
                    "name": name,
                    "size": str(len(self.objects[name])),
                    "generation": str(zlib.crc32(self.objects[name])),
                }
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
