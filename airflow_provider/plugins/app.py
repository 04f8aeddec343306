"""Application that Airflow's API server mounts: the API, its OpenAPI page, and the static files."""

from __future__ import annotations

import functools
import hashlib
import json
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fastapi import APIRouter, FastAPI, HTTPException, Response, status
from fastapi.responses import HTMLResponse, JSONResponse

from airflow_provider import __version__
from airflow_provider.plugins.access import MAY_SEE_PLUGINS
from airflow_provider.plugins.job_summaries import lost_job
from airflow_provider.plugins.routes import routers
from airflow_provider.plugins.service import StreamService
from airflow_provider.runtime.base.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterator

API: Final = "/api"


class AsciiResponse(JSONResponse):
    """JSON in ASCII: a document's text may have half of a character, which UTF-8 has not."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


_ROOT: Final = Path(__file__).with_name("static")
_TYPES: Final = {".js": "text/javascript", ".css": "text/css"}
_IMMUTABLE: Final = "public, max-age=31536000, immutable"


def make_app(service: StreamService | None = None) -> FastAPI:
    """Return the application.

    Airflow does not protect a mounted application: every route except the static files requires the
    permission to see plugins.
    """
    service = service or StreamService(SystemClock(), lost_job=lost_job)
    app = FastAPI(
        title="Spark Structured Streaming",
        version=__version__,
        description="What the page Streams shows, and what it asks drivers for.",
        openapi_url=None,  # Airflow would not protect it, nor the pages that show it
        docs_url=None,
        redoc_url=None,
        default_response_class=AsciiResponse,
    )
    safe = APIRouter(prefix=API, dependencies=[MAY_SEE_PLUGINS])
    for router in (*routers(service), _described(app)):
        safe.include_router(router)
    app.include_router(safe)
    app.include_router(_static())
    return app


@functools.cache
def static_files() -> dict[str, tuple[str, bytes]]:
    """Return the media type and the content of each file, by its path below ``static``."""
    files = sorted(path for path in _ROOT.rglob("*") if path.is_file())
    return {
        path.relative_to(_ROOT).as_posix(): (
            _TYPES.get(path.suffix, "text/plain"),
            path.read_bytes(),
        )
        for path in files
    }


@functools.cache
def content_version() -> str:
    """Return what changes with any of the files, so that browsers may keep them for ever."""
    digest = hashlib.sha256()
    for name, (_, content) in static_files().items():
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:12]


def _static() -> APIRouter:
    router = APIRouter()

    @router.get("/static/{version}/{name:path}", include_in_schema=False)
    async def static(version: str, name: str) -> Response:
        """Return a file of the page; only those that are there when the server starts."""
        found = static_files().get(name)
        if found is None:
            raise HTTPException(status.HTTP_404_NOT_FOUND, "there is no such file")
        kind, content = found
        kept = _IMMUTABLE if version == content_version() else "no-store"
        headers = {"Cache-Control": kept, "X-Content-Type-Options": "nosniff"}
        return Response(content, media_type=kind, headers=headers)

    return router


def _described(app: FastAPI) -> APIRouter:
    router = APIRouter(tags=["this page"])

    @router.get("/openapi.json", include_in_schema=False)
    async def openapi() -> dict[str, Any]:
        """Return the OpenAPI document."""
        return app.openapi()

    @router.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        """Return a page of all routes; nothing on it comes from elsewhere."""
        return HTMLResponse(_page(app.openapi()))

    return router


def _page(document: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{escape(method.upper())}</td><td><code>{escape(path)}</code></td>"
        f"<td>{escape(operation.get('description', ''))}</td><td>{escape(answer)}</td></tr>"
        for path, method, operation, answer in _operations(document)
    )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        "<title>Spark Structured Streaming: API</title>"
        "<style>body{font:15px system-ui;margin:2em;color-scheme:light dark}"
        "td,th{text-align:left;padding:.4em 1em .4em 0;vertical-align:top}</style>"
        f"<h1>Spark Structured Streaming: API</h1><p>{escape(document['info']['description'])} "
        "<a href=openapi.json>OpenAPI document</a></p>"
        f"<table><tr><th>Method<th>Path<th>What it does<th>Answer</tr>{rows}</table></html>"
    )


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any], str]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            content = operation["responses"].get("200", {}).get("content", {})
            reference = content.get("application/json", {}).get("schema", {}).get("$ref", "")
            yield path, method, operation, reference.rpartition("/")[2]
