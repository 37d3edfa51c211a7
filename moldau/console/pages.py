"""The page: `index.html`, and the assets that it names, as they were built into `page/`.

Must not let a request choose a file: only those that were found in the directory are served.
Invariant: the page may load nothing from another host.
"""

from __future__ import annotations

import asyncio
import gzip
import secrets
from functools import cached_property, partial
from pathlib import Path
from typing import Final, NamedTuple

from aiohttp import web

from moldau.console.calls import Reply
from moldau.console.guard import SAFE_METHODS, Target
from moldau.console.problems import Problem

PLACE: Final = "console"
"""The first segment of the page's paths."""
FOLDER: Final = Path(__file__).parent / "page"
NONCE: Final = b"{{nonce}}"
"""What `index.html` has where the nonce for styles goes that a script adds."""
INDEX: Final = "index.html"
ASSETS: Final = "assets"
"""Every file that the page names is below it, its name with a digest of its contents."""
_TYPES: Final = {
    ".css": "text/css",
    ".html": "text/html",
    ".ico": "image/x-icon",
    ".js": "text/javascript",
    ".json": "application/json",
    ".map": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
_TEXTS: Final = ("text/", "application/json", "image/svg+xml")
_ENCODINGS: Final = {".br": "br", ".gz": "gzip"}
_FOREVER: Final = "public, max-age=31536000, immutable"
_NOT_BUILT: Final = b"""<!doctype html><html lang="en"><meta charset="utf-8"><title>Moldau</title>
<p>The console's page is not part of this installation. Its API is: <a href="/openapi.json">the
OpenAPI document</a>.</p></html>
"""


def policy(nonce: str) -> str:
    """The Content-Security-Policy of the page: everything from this server alone."""
    return "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            f"style-src 'self' 'nonce-{nonce}'",
            "img-src 'self' data:",
            "font-src 'self'",
            "connect-src 'self'",
            "manifest-src 'self'",
            "worker-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )


class _Asset(NamedTuple):
    """A file, and its compressed forms by encoding."""

    path: Path
    content_type: str
    encoded: dict[str, Path]


class Pages:
    """What is below `/console/`."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder
        self._made: dict[Path, bytes] = {}

    @cached_property
    def _assets(self) -> dict[tuple[str, ...], _Asset]:
        """The files by the segments of their paths."""
        found: dict[tuple[str, ...], _Asset] = {}
        files = {each for each in self._folder.rglob("*") if each.is_file()}
        for path in files:
            content_type = _TYPES.get(path.suffix)
            if content_type is not None:
                encoded = {
                    name: twin
                    for suffix, name in _ENCODINGS.items()
                    if (twin := path.with_name(path.name + suffix)) in files
                }
                parts = path.relative_to(self._folder).parts
                found[parts] = _Asset(path, content_type, encoded)
        return found

    async def answer(self, request: web.BaseRequest, target: Target) -> web.Response:
        """The answer to a request for `/` or below `/console`. Raises: Problem."""
        if request.method not in SAFE_METHODS:
            raise Problem(405, "served here: GET, HEAD", ("Allow", "GET, HEAD"))
        if not target.segments or (len(target.segments) == 1 and not target.has_end):
            return Reply(status=308, headers={"Location": f"/{PLACE}/"}).response()
        below = target.segments[1:]
        assets = await asyncio.to_thread(lambda: self._assets)
        asset = None if target.has_end or below == (INDEX,) else assets.get(below)
        if asset is not None:
            return await self._file(request, asset)
        if below and below[0] == ASSETS:
            raise Problem(404, "no such file is a part of the page")
        return await self._index()  # the page routes by path: names of topics have dots, too

    async def _index(self) -> web.Response:
        assets = await asyncio.to_thread(lambda: self._assets)
        index, nonce = assets.get((INDEX,)), secrets.token_urlsafe(16)
        body = _NOT_BUILT if index is None else await asyncio.to_thread(index.path.read_bytes)
        headers = {
            "Cache-Control": "no-cache",
            "Content-Security-Policy": policy(nonce),
        }
        made = Reply(
            body.replace(NONCE, nonce.encode()), headers=headers, content_type="text/html"
        ).response()
        made.charset = "utf-8"
        return made

    def _compressed(self, path: Path) -> bytes:
        """A text's compressed form, made once where the build has made none."""
        if path not in self._made:
            self._made[path] = gzip.compress(path.read_bytes(), 9, mtime=0)
        return self._made[path]

    async def _file(self, request: web.BaseRequest, asset: _Asset) -> web.Response:
        is_named = asset.path.parent.name == ASSETS
        kept = _FOREVER if is_named else "no-cache"
        path, headers = asset.path, {"Cache-Control": kept, "Vary": "Accept-Encoding"}
        accepted = request.headers.get("Accept-Encoding", "")
        names = {each.split(";")[0].strip() for each in accepted.split(",") if "q=0" not in each}
        for encoding, twin in asset.encoded.items():
            if encoding in names:
                path = twin
                headers["Content-Encoding"] = encoding
                break
        is_text = asset.content_type.startswith(_TEXTS)
        read = path.read_bytes
        if is_text and path is asset.path and "gzip" in names:
            read = partial(self._compressed, path)
            headers["Content-Encoding"] = "gzip"
        body = await asyncio.to_thread(read)
        made = Reply(body, headers=headers, content_type=asset.content_type).response()
        if is_text:
            made.charset = "utf-8"
        return made
