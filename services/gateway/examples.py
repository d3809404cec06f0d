"""Request bodies as OpenAPI shows them, with examples that can be sent as they are."""

from typing import Any

from services.gateway.compose import Composition
from services.gateway.inspection.documents import InspectionBody
from shared.schemas.spec import JobSpec

JSONL_ROWS = '{"messages": [{"role": "user", "content": "Why is the sky blue?"}]}\n{"prompt": "Name three rivers."}\n'

DATASET_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        "application/x-ndjson": {
            "schema": {"type": "string", "description": "One JSON object a line; plain or gzip."},
            "example": JSONL_ROWS,
        },
        "application/vnd.apache.parquet": {
            "schema": {"type": "string", "format": "binary"},
            "example": "what pyarrow.parquet.write_table writes",
        },
        "application/json": {
            "schema": {"$ref": "#/components/schemas/Composition"},
            "example": {
                "name": "mixed",
                "sources": [
                    {"dataset": "ds_06f2k8m3q0000000000a", "name": "math", "weight": 2},
                    {"dataset": "ds_06f2k8m3q0000000000b", "name": "code", "weight": 1},
                ],
            },
        },
        "application/x-tar": {
            "schema": {"type": "string", "format": "binary", "description": "A folder of rows or of a vocabulary."},
            "example": "what `tar -C FOLDER -cf - .` writes",
        },
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["file"],
                "properties": {"file": {"type": "string", "format": "binary"}},
            },
            "example": {"file": JSONL_ROWS},
        },
    },
}

JOB_EXAMPLES: dict[str, Any] = {
    "small": {
        "summary": "The least that a job needs: a dataset; the preset kimi-k2.5 fills in the rest",
        "value": {"data": {"dataset": "ds_06f2k8m3q0000000000a"}},
    },
    "managed": {
        "summary": "One host with eight GPUs: the worker starts the verifier itself",
        "value": {
            "name": "chat drafts",
            "verifier": {
                "model": "moonshotai/Kimi-K2.5",
                "revision": "0123456789abcdef0123456789abcdef01234567",
                "managed": {"tensor_parallel_size": 8, "trust_remote_code": True},
            },
            "data": {"dataset": "ds_06f2k8m3q0000000000a", "max_seq_len": 4096},
            "train": {"epochs": 4, "lr": 5e-5, "gpus": 8},
            "evaluate": {"gate": {"min_acceptance_length": 2.2}},
            "metadata": {"team": "serving"},
        },
    },
    "tiny": {
        "summary": "A trial on any machine",
        "value": {"preset": "tiny", "data": {"dataset": "ds_06f2k8m3q0000000000a"}},
    },
}

JOB_BODY: dict[str, Any] = {
    "required": True,
    "description": "A job document; what it leaves out is filled in by its preset.",
    "content": {
        "application/json": {
            "schema": {"$ref": "#/components/schemas/JobDocument"},
            "examples": JOB_EXAMPLES,
        }
    },
}

METADATA_PARAMETER: dict[str, Any] = {
    "name": "metadata",
    "in": "query",
    "description": "Only jobs with these pairs of metadata: `metadata[team]=serving`, once for each key.",
    "style": "deepObject",
    "explode": True,
    "schema": {
        "type": "object",
        "maxProperties": 16,
        "propertyNames": {"minLength": 1, "maxLength": 64},
        "additionalProperties": {"type": "string", "maxLength": 512},
    },
    "example": {"team": "serving"},
}

INSPECTION_BODY: dict[str, Any] = {
    "required": False,
    "content": {
        "application/json": {
            "schema": {"$ref": "#/components/schemas/InspectionBody"},
            "examples": {
                "answers": {
                    "summary": "The answers of the file, as the tiny verifier renders them",
                    "value": {"preset": "tiny", "data": {"generate": False, "max_seq_len": 512}, "sample": 100},
                },
                "counts": {"summary": "Counts and rejects only", "value": {"sample": 0}},
            },
        }
    },
}


def document_schemas() -> dict[str, Any]:
    """Schemas of the documents that routes read by themselves, by name.

    A partial job document is `JobSpec` with everything optional but the dataset.
    """
    schema = JobSpec.model_json_schema(ref_template="#/components/schemas/{model}Part")
    parts = {f"{name}Part": part for name, part in schema.pop("$defs").items()}
    parts["VerifierSpecPart"].pop("required", None)
    schema["required"] = ["data"]
    schema["title"] = "JobDocument"
    documents = {"JobDocument": schema}
    for model in (InspectionBody, Composition):
        whole = model.model_json_schema(ref_template="#/components/schemas/{model}")
        documents |= whole.pop("$defs") | {model.__name__: whole}
    return parts | documents
