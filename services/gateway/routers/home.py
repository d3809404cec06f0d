"""The address itself: `GET /` leads to the API's description at `/docs`."""

from fastapi import APIRouter
from fastapi.responses import RedirectResponse

router = APIRouter()


@router.get("/", include_in_schema=False)
def home() -> RedirectResponse:
    """Lead a browser to something that it can show."""
    return RedirectResponse("/docs")
