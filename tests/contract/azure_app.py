"""The part of Azure Blob Storage's REST API that a storage uses, in memory.

Put Blob, its condition ``If-None-Match: *`` (409 BlobAlreadyExists if there is a blob), Put Block and
Put Block List, Get Blob, Get Blob Properties, Delete Blob, List Blobs by pages, and Copy Blob, which
stays pending for ``LOOKS`` looks at a blob of more than ``COPIED_AT_ONCE`` bytes, as the API's
reference documents them.
"""

from __future__ import annotations

import re
import zlib
from urllib.parse import unquote, urlsplit
from xml.sax.saxutils import escape

from werkzeug.wrappers import Request, Response

from tests.contract.gcs_app import BUCKET, PAGE, page_of

COPIED_AT_ONCE = 50_000  # bytes
LOOKS = 2
MODIFIED = "Thu, 01 Jan 2026 00:00:00 GMT"


class Copy:
    """A copy that has been asked for: what Get Blob Properties tells of it."""

    def __init__(self, number: int, source: str, *, looks: int) -> None:
        self.id = f"copy-{number}"
        self.source = source
        self.looks = looks
        self.status = "pending"
        self.why = ""

    def headers(self) -> dict[str, str]:
        told = {"x-ms-copy-id": self.id, "x-ms-copy-status": self.status}
        return told | ({"x-ms-copy-status-description": self.why} if self.why else {})


class App:
    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.blocks: dict[tuple[str, str], bytes] = {}
        self.copies: dict[str, Copy] = {}

    def __call__(self, environ, start_response):
        return self.answer(Request(environ))(environ, start_response)

    def answer(self, request: Request) -> Response:
        _, _, container, *rest = request.path.split("/", 3)
        name = rest[0] if rest else ""
        if container != BUCKET:
            return failure(404, "ContainerNotFound")
        if not name:
            return self.listed(request.args)
        if request.method == "PUT":
            return self.changed(request, name)
        if name not in self.blobs:
            return failure(404, "BlobNotFound")
        return self.of_blob(request, name)

    def of_blob(self, request: Request, name: str) -> Response:
        if request.method == "DELETE":
            if name in self.copies and self.copies[name].status == "pending":
                return failure(409, "PendingCopyOperation")
            self.copies.pop(name, None)
            del self.blobs[name]
            return Response(status=202)
        if request.method == "HEAD":
            return self.properties(name)
        return self.get(request, name)

    def changed(self, request: Request, name: str) -> Response:
        what = request.args.get("comp")
        if what == "copy":
            return self.abort(name)
        if name in self.copies and self.copies[name].status == "pending":
            return failure(409, "PendingCopyOperation")
        if "x-ms-copy-source" in request.headers:
            return self.copy(request, name)
        if what == "block":
            self.blocks[name, request.args["blockid"]] = request.get_data()
            return Response(status=201)
        if what == "blocklist":
            return self.commit(
                name, re.findall("<Latest>(.*?)</Latest>", request.get_data(as_text=True))
            )
        return self.put(request, name)

    def commit(self, name: str, ids: list[str]) -> Response:
        self.blobs[name] = b"".join(self.blocks.pop((name, block)) for block in ids)
        return Response(status=201, headers={"ETag": '"1"', "Last-Modified": MODIFIED})

    def copy(self, request: Request, name: str) -> Response:
        if request.headers.get("If-None-Match") == "*" and name in self.blobs:
            return failure(409, "BlobAlreadyExists")
        source = unquote(urlsplit(request.headers["x-ms-copy-source"]).path).split("/", 3)[3]
        if source not in self.blobs:
            return failure(404, "BlobNotFound")
        looks = LOOKS if len(self.blobs[source]) > COPIED_AT_ONCE else 0
        self.copies[name] = Copy(len(self.copies), source, looks=looks)
        self.blobs[name] = b""
        self.advance(name)
        headers = {"ETag": '"1"', "Last-Modified": MODIFIED, **self.copies[name].headers()}
        return Response(status=202, headers=headers)

    def advance(self, name: str) -> None:
        copy = self.copies.get(name)
        if copy is None or copy.status != "pending":
            return
        if copy.source not in self.blobs:
            copy.status = "failed"
            copy.why = '404 BlobNotFound "Copy failed when reading the source."'
        elif copy.looks == 0:
            copy.status = "success"
            self.blobs[name] = self.blobs[copy.source]
        else:
            copy.looks -= 1

    def abort(self, name: str) -> Response:
        copy = self.copies.get(name)
        if copy is None or copy.status != "pending":
            return failure(409, "NoPendingCopyOperation")
        copy.status = "aborted"
        return Response(status=204)

    def properties(self, name: str) -> Response:
        self.advance(name)
        headers = {"ETag": '"1"', "Last-Modified": MODIFIED, "x-ms-blob-type": "BlockBlob"}
        headers |= self.copies[name].headers() if name in self.copies else {}
        return Response(self.blobs[name], 200, headers)

    def put(self, request: Request, name: str) -> Response:
        if request.headers.get("If-None-Match") == "*" and name in self.blobs:
            return failure(409, "BlobAlreadyExists")
        self.copies.pop(name, None)
        self.blobs[name] = request.get_data()
        return Response(status=201, headers={"ETag": '"1"', "Last-Modified": MODIFIED})

    def get(self, request: Request, name: str) -> Response:
        data = self.blobs[name]
        headers = {"ETag": '"1"', "Last-Modified": MODIFIED, "x-ms-blob-type": "BlockBlob"}
        if "x-ms-range" not in request.headers:
            return Response(data, 200, headers)
        if not data:
            return failure(416, "InvalidRange")
        headers["Content-Range"] = f"bytes 0-{len(data) - 1}/{len(data)}"
        return Response(data, 206, headers)

    def listed(self, args) -> Response:
        prefix, delimiter = args.get("prefix", ""), args.get("delimiter")
        names = page_of(sorted(self.blobs), prefix, delimiter)
        start = int(args.get("marker") or 0)
        shown = "".join(
            self.shown(name, is_prefix=cut) for name, cut in names[start : start + PAGE]
        )
        following = str(start + PAGE) if start + PAGE < len(names) else ""
        body = (
            '<?xml version="1.0" encoding="utf-8"?><EnumerationResults ContainerName="x">'
            f"<Prefix>{escape(prefix)}</Prefix><Blobs>{shown}</Blobs><NextMarker>{following}</NextMarker></EnumerationResults>"
        )
        return Response(body, mimetype="application/xml")

    def shown(self, name: str, *, is_prefix: bool) -> str:
        if is_prefix:
            return f"<BlobPrefix><Name>{escape(name)}</Name></BlobPrefix>"
        facts = (
            f"<Last-Modified>{MODIFIED}</Last-Modified>"
            f"<Etag>{zlib.crc32(self.blobs[name])}</Etag>"
            f"<Content-Length>{len(self.blobs[name])}</Content-Length>"
            "<BlobType>BlockBlob</BlobType>"
        )
        return f"<Blob><Name>{escape(name)}</Name><Properties>{facts}</Properties></Blob>"


def failure(status: int, code: str) -> Response:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>"
    headers = {"x-ms-error-code": code}
    return Response(body, status, headers, mimetype="application/xml")
