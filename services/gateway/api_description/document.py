"""Completes the OpenAPI document: summaries, tags, errors as problem+json, and an example of every answer.

In: what FastAPI makes of the routes. A route says what is special about it (`responses={409: {"description": ...}}`);
what holds for all routes of a kind is added here, so that no route can forget it.
"""

import re
from typing import Any

from fastapi.routing import APIRoute
from pydantic import TypeAdapter

from services.gateway.api_description.answers import ANSWERS
from services.gateway.api_description.examples import Examples
from services.gateway.api_description.tags import TAGS
from services.gateway.examples import document_schemas
from services.gateway.problems import MEDIA_TYPE, ProblemDocument, describe

JSON = "application/json"
REFERENCE = {"$ref": "#/components/schemas/ProblemDocument"}
WITHOUT_REDIS = frozenset({"/healthz"})
PARAMETERS = {
    "job_id": ("Id of a job.", "job_06f2k8m3q0000000000a"),
    "dataset_id": ("Id of a dataset.", "ds_06f2k8m3q0000000000a"),
    "draft_id": ("Id of a draft.", "draft_06f2k8m3q0000000000a"),
    "worker_id": ("Id as the list shows it.", "worker-1-4711"),
    "gpu_id": ("Id as the list shows it.", "GPU-8f3c1b52-6a0e-4d5b-9c1f-2f7f3b6f9d10"),
    "verifier_id": ("Id as the list shows it.", "verifier_06f2k8m3q0000000000a"),
    "key_id": ("Id of a key.", "key_06f2k8m3q0000000000a"),
    "webhook_id": ("Id of a webhook.", "wh_06f2k8m3q0000000000a"),
    "row_id": ("Id of a row, as the list has it.", "00000000-0"),
    "limit": ("Entries on one page.", 50),
}
TEXT, TEXT_EXAMPLE = "text/plain", "the first line\nthe second line\n"


def operation_id(route: APIRoute) -> str:
    """The name of the function that answers: `list_jobs`."""
    return route.name


def complete(document: dict[str, Any]) -> None:
    """Complete a document in place."""
    schemas = document["components"]["schemas"]
    problem = TypeAdapter(ProblemDocument).json_schema(
        ref_template="#/components/schemas/{model}", mode="serialization"
    )
    schemas |= problem.pop("$defs") | {"ProblemDocument": problem} | document_schemas()
    document["tags"] = [{"name": name, "description": text} for name, text in TAGS.items()]
    for path, operations in document["paths"].items():
        for operation in operations.values():
            _summarise(operation)
            _add_problems(path, operation, keys=bool(document.get("security")))
            _add_examples(operation, schemas)


def _summarise(operation: dict[str, Any]) -> None:
    """The first sentence of what a route says of itself is its summary."""
    text = operation.get("description", "")
    first = re.split(r"(?<=[.;:])\s|\n\n", text, maxsplit=1)[0]
    operation["summary"] = re.sub(r"\s+", " ", first).rstrip(".;:") or operation["summary"]


def _add_problems(path: str, operation: dict[str, Any], *, keys: bool) -> None:
    responses = operation["responses"]
    responses.pop("default", None)
    for status in _usual_problems(path, operation, keys=keys):
        responses.setdefault(str(status), {})
    for status, response in responses.items():
        if int(status) >= 400:
            title, example = describe(int(status))
            if response.get("description") in (None, "", "Error"):
                response["description"] = title
            response["content"] = {MEDIA_TYPE: {"schema": REFERENCE, "example": example}}
    operation["responses"] = dict(sorted(responses.items()))


def _usual_problems(path: str, operation: dict[str, Any], *, keys: bool) -> set[int]:
    """Statuses that every route with such parameters and such a body may answer."""
    found = {500}
    if path not in WITHOUT_REDIS:
        found.add(503)
    if keys and operation.get("security") != []:
        found |= {401, 403}
    if "{" in path:
        found.add(404)
    if operation.get("parameters") or "requestBody" in operation:
        found.add(422)
    if "requestBody" in operation:
        found |= {400, 413}
    return found


def _add_examples(operation: dict[str, Any], schemas: dict[str, Any]) -> None:
    for parameter in operation.get("parameters", ()):
        if parameter["name"] in PARAMETERS:
            description, example = PARAMETERS[parameter["name"]]
            parameter.setdefault("description", description)
            parameter.setdefault("example", example)
    for status, response in operation["responses"].items():
        for kind, content in response.get("content", {}).items():
            if int(status) >= 300 or "example" in content or "examples" in content:
                continue
            if kind == JSON and content.get("schema"):
                content["example"] = Examples(schemas, ANSWERS).of(content["schema"])
            elif kind == TEXT:
                content["example"] = TEXT_EXAMPLE
