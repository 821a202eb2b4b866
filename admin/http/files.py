"""The dashboard's files: read once at the start and served with their hash; requests never name paths on disk."""

import hashlib
from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple

from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler

from admin.http.app import PUBLIC
from admin.http.problems import Problem

__all__ = ["file_handlers", "read_files"]

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


class File(NamedTuple):
    """One file with its media type and hash."""

    data: bytes
    media_type: str
    etag: str


def read_files() -> dict[str, File]:
    """Return the files by their path below ``static/``."""
    found: dict[str, File] = {}
    _collect(files("admin") / "static", "", found)
    return found


def _collect(folder: Traversable, prefix: str, found: dict[str, File]) -> None:
    for entry in folder.iterdir():
        if entry.is_dir():
            _collect(entry, f"{prefix}{entry.name}/", found)
            continue
        media_type = TYPES.get("." + entry.name.rpartition(".")[2])
        if media_type is not None:
            data = entry.read_bytes()
            found[prefix + entry.name] = File(data, media_type, f'"{hashlib.sha256(data).hexdigest()[:32]}"')


def file_handlers(known: Mapping[str, File]) -> list[HTTPRouteHandler]:
    """Return the handlers of the dashboard's files; every page is the same document."""

    @get(["/", "/static/{name:path}"], opt={"role": PUBLIC}, include_in_schema=False)
    async def serve(request: Request[Any, Any, Any], name: str = "index.html") -> Response[bytes]:
        file = known.get(str(name).lstrip("/"))
        if file is None:
            raise Problem(404, "not_found", "no such file")
        headers = {"ETag": file.etag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == file.etag:
            return Response(b"", status_code=304, headers=headers)
        return Response(file.data, media_type=file.media_type, headers=headers)

    return [serve]
