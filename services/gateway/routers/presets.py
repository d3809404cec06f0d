"""Presets: `GET /v1/presets`. Order: by name. No filters, no paging: there are few."""

from fastapi import APIRouter

from services.gateway.wire import Page, PresetView
from shared.presets import DEFAULT_PRESET, PRESETS

router = APIRouter(prefix="/v1/presets", tags=["presets"])


@router.get("")
def list_presets() -> Page[PresetView]:
    """List the presets and what each fills in."""
    presets = [
        PresetView(name=name, default=name == DEFAULT_PRESET, document=PRESETS[name]) for name in sorted(PRESETS)
    ]
    return Page(data=presets, has_more=False)
