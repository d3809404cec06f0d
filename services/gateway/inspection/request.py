"""Makes a complete inspection request: body, preset, and the verifier as it is now."""

from functools import cache
from pathlib import Path
from typing import Any

from services.gateway.inspection.documents import InspectionBody, InspectionRequest
from services.gateway.inspection.verifier import find_verifier
from shared import data
from shared.artifact_store import file_sha256
from shared.errors import UserError
from shared.presets import resolve
from shared.schemas.manifest import canonical_digest
from shared.submission import FieldError, SubmissionError
from shared.verifier_config import find_model_folder

DECIDING_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
KEY_CHARACTERS = 32
NOTHING_ASKED = "the request asks for no samples (`sample` is 0)"


def complete_request(dataset: str, body: InspectionBody, fleet_url: str | None) -> InspectionRequest:
    """Resolve a body as a job document is resolved, and look for the verifier that shall render.

    Args:
        fleet_url: the fleet's own verifier.

    Raises:
        UserError, pydantic.ValidationError: a field is wrong.
    """
    given: dict[str, Any] = body.model_dump(exclude_unset=True, include={"preset", "data", "verifier"})
    given["data"] = {**given.get("data", {}), "dataset": dataset}
    spec = resolve({name: value for name, value in given.items() if value is not None})
    try:
        folder = find_model_folder(spec.verifier.model, spec.verifier.revision)
    except UserError as error:
        raise SubmissionError([FieldError("/verifier/model", str(error))]) from None
    served, why_not = find_verifier(spec.verifier, fleet_url) if body.sample else (None, NOTHING_ASKED)
    return InspectionRequest(
        dataset=dataset,
        spec=spec,
        sample=body.sample,
        verifier_folder=str(folder) if folder else None,
        verifier_files=_hashes(folder) if folder else {},
        served=served,
        why_not_rendered=why_not,
    )


def request_key(request: InspectionRequest) -> str:
    """Names everything that the answer depends on: what is asked, the verifier that is there, and this code."""
    asked = request.model_dump(
        mode="json", include={"dataset", "sample", "verifier_files", "served", "why_not_rendered"}
    )
    spec = request.spec.model_dump(mode="json", include={"data", "verifier"})
    return canonical_digest([_code_digest(), asked, spec])[:KEY_CHARACTERS]


def _hashes(folder: Path) -> dict[str, str]:
    return {name: file_sha256(folder / name) for name in DECIDING_FILES if (folder / name).is_file()}


@cache
def _code_digest() -> str:
    """Another release may read rows by other rules: its answers are not those that are stored."""
    folders = (Path(data.__file__).parent, Path(__file__).parent)
    return canonical_digest([file_sha256(path) for folder in folders for path in sorted(folder.glob("*.py"))])
