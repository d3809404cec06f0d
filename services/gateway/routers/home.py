"""The page: `GET /`, and its files below `/page`. Plain HTML, CSS and ES modules, served as they lie in `page/`.

The policy sent with them lets a browser load and ask nothing but this gateway, and run no inline script.
"""

from pathlib import Path

from fastapi import APIRouter, FastAPI
from fastapi.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

PAGE = Path(__file__).resolve().parents[1] / "page"
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
    ),
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",  # an upgraded gateway's page is seen at once; unchanged files answer 304
}

router = APIRouter()


@router.get("/", include_in_schema=False)
def home() -> FileResponse:
    """The page."""
    return FileResponse(PAGE / "index.html", headers=HEADERS)


class PageFiles(StaticFiles):
    """Files of the page, with its headers."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(HEADERS)
        return response


def mount(app: FastAPI) -> None:
    """Serve the page's files."""
    app.mount("/page", PageFiles(directory=PAGE), name="page")
