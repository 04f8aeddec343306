"""The part of Azure Blob Storage's REST API that a storage uses, in memory.

Put Blob, its condition ``If-None-Match: *`` (409 BlobAlreadyExists if there is a blob), Get Blob,
Delete Blob, and List Blobs by pages, as the API's reference documents them.
"""

from __future__ import annotations

from xml.sax.saxutils import escape

from werkzeug.wrappers import Request, Response

from tests.contract.gcs_app import BUCKET, PAGE, page_of

MODIFIED = "Thu, 01 Jan 2026 00:00:00 GMT"


class App:
    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}

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
            return self.put(request, name)
        if name not in self.blobs:
            return failure(404, "BlobNotFound")
        if request.method == "DELETE":
            del self.blobs[name]
            return Response(status=202)
        return self.get(request, name)

    def put(self, request: Request, name: str) -> Response:
        if request.headers.get("If-None-Match") == "*" and name in self.blobs:
            return failure(409, "BlobAlreadyExists")
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
            f"<Last-Modified>{MODIFIED}</Last-Modified><Etag>1</Etag>"
            f"<Content-Length>{len(self.blobs[name])}</Content-Length>"
            "<BlobType>BlockBlob</BlobType>"
        )
        return f"<Blob><Name>{escape(name)}</Name><Properties>{facts}</Properties></Blob>"


def failure(status: int, code: str) -> Response:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>"
    headers = {"x-ms-error-code": code}
    return Response(body, status, headers, mimetype="application/xml")
