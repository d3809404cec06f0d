"""Whatever is sent, by the OpenAPI document or against it: no 5xx, errors are problem+json, answers are as declared.

Schemathesis makes the requests; half of those that name a job, a dataset or a draft are given one that exists. Not
checked: that every request which fits the document is accepted (it may name what is not there, or what the state does
not allow), nor what methods a path without the method in question answers with.
"""

import copy
import tempfile
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings

from services.gateway.app import create_app
from shared.settings import Settings
from tests.api.seeds import Seeds

pytestmark = pytest.mark.api
DOCUMENT = create_app(Settings(store_root=Path(tempfile.gettempdir()) / "eyrie-schema")).openapi()
schema = schemathesis.openapi.from_dict(copy.deepcopy(DOCUMENT))  # `use_what_exists` writes into its examples
CHECKS = [
    schemathesis.checks.not_a_server_error,
    schemathesis.specs.openapi.checks.status_code_conformance,
    schemathesis.specs.openapi.checks.content_type_conformance,
    schemathesis.specs.openapi.checks.response_headers_conformance,
    schemathesis.specs.openapi.checks.response_schema_conformance,
    schemathesis.specs.openapi.checks.negative_data_rejection,
]
# The answer of `plan_job` is the list of problems; a document may have numbers as text: YAML 1.1 takes 3e-5 for one.
LENIENT = frozenset({"plan_job", "create_job", "inspect_dataset"})
EXAMPLES = 30
TIMEOUT_S = 60


@schemathesis.serializer("application/x-tar", "application/vnd.apache.parquet", "application/x-ndjson")
def as_bytes(_: schemathesis.SerializationContext, value: Any) -> bytes:
    """A body that is a file, whatever is in it."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_a_route_keeps_to_its_description(case: schemathesis.Case, seeds: Seeds) -> None:
    use_what_exists(case, seeds)
    response = case.call(base_url=seeds.gateway.url, timeout=TIMEOUT_S)
    name = case.operation.definition.raw["operationId"]
    case.validate_response(response, checks=CHECKS[: -1 if name in LENIENT else None])
    if response.status_code >= 400 and case.method != "HEAD":
        assert_problem(response)


def test_the_gateway_serves_the_document_that_was_checked(seeds: Seeds) -> None:
    assert seeds.http.get("/openapi.json").json() == DOCUMENT


def use_what_exists(case: schemathesis.Case, seeds: Seeds) -> None:
    """Every other value that would name nothing names something; which one, the value itself decides."""
    for name, value in dict(case.path_parameters or {}).items():
        known = seeds.of(name, case.method) if sum(map(ord, str(value))) % 2 else None
        if known is not None:
            case.path_parameters[name] = known
    body: Any = case.body
    if isinstance(body, dict) and isinstance(body.get("data"), dict) and "dataset" in body["data"]:
        body["data"]["dataset"] = seeds.kept["dataset_id"]


def assert_problem(response: schemathesis.Response) -> None:
    """An error as RFC 9457 has it, with the status that it came with."""
    assert response.headers["content-type"] == ["application/problem+json"]
    problem = response.json()
    assert problem["status"] == response.status_code
    assert problem["type"].startswith("urn:eyrie:problem:")
    assert problem["detail"]
    for error in problem["errors"]:
        assert error["pointer"] == "" or error["pointer"].startswith("/")
