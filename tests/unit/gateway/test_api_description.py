"""The OpenAPI document is complete: a route that says too little about itself fails here."""

import re
from collections import Counter
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from services.gateway.api_description.tags import TAGS
from services.gateway.app import create_app
from shared.settings import Settings


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return create_app(Settings(store_root=tmp_path_factory.mktemp("store"))).openapi()


@pytest.fixture(scope="module")
def operations(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        f"{method.upper()} {path}": operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


def references(part: Any) -> set[str]:
    if isinstance(part, dict):
        named = {part["$ref"]} if isinstance(part.get("$ref"), str) else set()
        return named.union(*(references(value) for value in part.values()))
    return set().union(*(references(value) for value in part)) if isinstance(part, list) else set()


def problems_of(example: Any, schema: dict[str, Any], document: dict[str, Any]) -> list[str]:
    whole = {"components": document["components"], **schema}
    return [error.message for error in Draft202012Validator(whole).iter_errors(example)]


def test_every_route_has_a_name_a_summary_and_a_known_tag(operations: dict[str, dict[str, Any]]) -> None:
    names = Counter(operation["operationId"] for operation in operations.values())
    assert [name for name, count in names.items() if count > 1] == []
    assert [name for name in names if not re.fullmatch(r"[a-z]+(_[a-z]+)+", name)] == []
    for where, operation in operations.items():
        assert operation.get("description"), where
        assert 3 < len(operation["summary"]) <= 120, where
        assert operation["summary"][-1] not in ".:;", where
        assert operation.get("tags"), where
        assert set(operation["tags"]) <= TAGS.keys(), where


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert references(document) <= known


def test_every_parameter_is_described(operations: dict[str, dict[str, Any]]) -> None:
    silent = [
        f"{where}: {parameter['name']}"
        for where, operation in operations.items()
        for parameter in operation.get("parameters", ())
        if not parameter.get("description")
    ]
    assert silent == []


def test_every_place_in_a_path_has_an_example(operations: dict[str, dict[str, Any]]) -> None:
    silent = [
        f"{where}: {parameter['name']}"
        for where, operation in operations.items()
        for parameter in operation.get("parameters", ())
        if parameter["in"] == "path" and not {"example", "examples"} & {*parameter, *parameter["schema"]}
    ]
    assert silent == []


def test_every_body_and_every_answer_has_an_example_that_fits(
    document: dict[str, Any], operations: dict[str, dict[str, Any]]
) -> None:
    missing, wrong = [], []
    for where, operation in operations.items():
        parts = {"body": operation.get("requestBody", {})} | operation["responses"]
        for name, part in parts.items():
            for kind, content in part.get("content", {}).items():
                named = content.get("examples", {})
                examples = [content["example"]] if "example" in content else [e["value"] for e in named.values()]
                if not examples:
                    missing.append(f"{where} {name} {kind}")
                if kind.endswith("json"):
                    for example in examples:
                        wrong += [f"{where} {name}: {p}" for p in problems_of(example, content["schema"], document)]
    assert missing == []
    assert wrong == []


def test_every_error_is_problem_json_and_says_when_it_comes(operations: dict[str, dict[str, Any]]) -> None:
    for where, operation in operations.items():
        statuses = {int(status) for status in operation["responses"]}
        assert 500 in statuses, where
        assert ("{" not in where) or 404 in statuses, where
        assert not operation.get("parameters") or 422 in statuses, where
        for status, response in operation["responses"].items():
            assert response["description"], (where, status)
            if int(status) >= 400:
                assert list(response["content"]) == ["application/problem+json"], (where, status)
                assert response["content"]["application/problem+json"]["example"]["status"] == int(status)
