"""What a verifier says it serves (`GET /v1/models`), and whether that is the model that a job wants."""

from typing import Any


def served_models(body: Any) -> dict[str, str]:
    """Names that requests can give, each with the folder or hub id it stands for, out of vLLM's answer."""
    data = body.get("data") if isinstance(body, dict) else None
    entries = [item for item in data if isinstance(item, dict)] if isinstance(data, list) else []
    return {str(item.get("id")): str(item.get("root")) for item in entries}


def name_of(served: dict[str, str], wanted: str | None) -> str | None:
    """The name under which `wanted` is served, or None where it is not; without a wish, the first.

    Folders differ between machines: the last part of a path or hub id decides.
    """
    for name, root in served.items():
        if wanted is None or _last(wanted) in (_last(name), _last(root)):
            return name
    return None


def _last(path: str) -> str:
    return path.rstrip("/").rsplit("/", 1)[-1]
