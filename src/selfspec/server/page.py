"""The page at ``/``: a chat that shows who wrote each token. The files in ``assets``, served as they are."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.routing import Route

if TYPE_CHECKING:
    from starlette.requests import Request

_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_ROOT = "page/"  # below which the files lie, seen from the page; relative, so that a proxy may add a path
_HEADERS = {
    # nothing from elsewhere, no script or style within the page, no frame around it
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


def page_routes() -> list[Route]:
    """Routes of the page and of what it loads."""
    return [_route(file.name, file.read_bytes()) for file in (files("selfspec.server") / "assets").iterdir()]


def is_of_the_page(path: str) -> bool:
    """Whether a path is one of these: they hold no secrets, and who has a key types it in there."""
    return path == "/" or path.startswith(f"/{_ROOT}")


def _route(name: str, content: bytes) -> Route:
    kind = _TYPES[name[name.rindex(".") :]]

    async def send(_: Request) -> Response:
        return Response(content, headers=_HEADERS, media_type=kind)

    return Route("/" if name == "index.html" else f"/{_ROOT}{name}", send)
