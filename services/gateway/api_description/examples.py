"""Examples of answers, out of their schemas: what a field gives as its example, its default, or a value that fits."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

REFERENCE = "#/components/schemas/"
BY_FORMAT = {"date-time": "2026-01-31T12:00:00.000Z", "uri": "https://example.com/", "date": "2026-01-31"}
BY_NAME = {
    "sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "job_id": "job_06f2k8m3q0000000000a",
    "dataset": "ds_06f2k8m3q0000000000a",
    "draft": "draft_06f2k8m3q0000000000a",
}


@dataclass(frozen=True)
class Examples:
    """Makes examples.

    Args:
        schemas: by name, what references lead to.
        answers: examples by the name of their schema; they come first.
        above: schemas of which the example is a part; one that holds itself ends with an empty list.
    """

    schemas: Mapping[str, Any]
    answers: Mapping[str, Any]
    above: frozenset[str] = field(default_factory=frozenset)

    def of(self, schema: Mapping[str, Any], name: str = "") -> Any:
        """A value that the schema allows; `name` is that of the field."""
        if "$ref" in schema:
            target = schema["$ref"].removeprefix(REFERENCE)
            if target in self.answers:
                return self.answers[target]
            return Examples(self.schemas, self.answers, self.above | {target}).of(self.schemas[target], name)
        for key in ("example", "const", "default"):
            if key in schema:
                return schema[key]
        for key in ("examples", "enum"):
            if schema.get(key):
                return schema[key][0]
        for key in ("anyOf", "oneOf", "allOf"):
            if schema.get(key):
                return self.of(schema[key][0], name)
        return self._of_type(schema, name)

    def _of_type(self, schema: Mapping[str, Any], name: str) -> Any:
        match schema.get("type"):
            case "object":
                return {part: self.of(its, part) for part, its in schema.get("properties", {}).items()}
            case "array":
                items = schema.get("items", {})
                holds_itself = items.get("$ref", "").removeprefix(REFERENCE) in self.above
                return [] if holds_itself or not items else [self.of(items, name)]
            case "string":
                return BY_FORMAT.get(schema.get("format", "")) or BY_NAME.get(name) or name or "text"
            case "integer":
                return max(int(schema.get("minimum", 1)), 1)
            case "number":
                return max(float(schema.get("minimum", 1.0)), 1.0)
            case "boolean":
                return True
            case _:
                return None
