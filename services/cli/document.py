"""Makes a job document out of a YAML or JSON file and the flags of `eyrie submit`."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from services.cli.errors import BadInput

TEXT_FIELDS = ("name", "preset", "metadata")
DATES = "tag:yaml.org,2002:timestamp"


class _Loader(yaml.SafeLoader):
    """YAML as the API takes JSON: without dates, which stay text, and with no name in one mapping twice."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set[str]()
        for name, _ in node.value:
            if not isinstance(name, yaml.ScalarNode):
                continue
            if name.value in seen:
                raise yaml.composer.ComposerError(None, None, f"{name.value} is there twice", name.start_mark)
            seen.add(name.value)
        return node


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != DATES]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load_document(path: Path) -> dict[str, Any]:
    """Read a job document.

    Raises:
        BadInput: it is not YAML or JSON, not a mapping, or holds what JSON cannot say.
        OSError: it cannot be read.
    """
    try:
        document = _load(path.read_text(encoding="utf-8-sig"))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise BadInput(f"{path}{where}: not YAML or JSON: {error.problem}") from None
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise BadInput(f"{path}: not YAML or JSON: {error}") from None
    if not isinstance(document, dict):
        raise BadInput(f"{path}: a job document is a mapping, such as `data: {{dataset: ds_...}}`")
    return document


def apply_overrides(document: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Apply `train.lr=1e-3` and the like; values are YAML, those of names and metadata are text.

    Raises:
        BadInput: an override is not `PATH=VALUE`, or its path leads through a value.
    """
    for override in overrides:
        path, equals, text = override.partition("=")
        parts = path.strip().split(".")
        if not equals or not all(parts):
            raise BadInput(f"--set {override}: write PATH=VALUE, such as train.lr=1e-3")
        document = set_value(document, parts, text if parts[0] in TEXT_FIELDS else _value(override, text))
    return document


def set_value(document: dict[str, Any], parts: Sequence[str], value: Any) -> dict[str, Any]:
    """A copy of the document with one value set; mappings on the way are made.

    Raises:
        BadInput: the path leads through a value.
    """
    name, *rest = parts
    if not rest:
        return {**document, name: value}
    inner = document.get(name)
    if inner is not None and not isinstance(inner, dict):
        raise BadInput(f"{'.'.join(parts)}: {name} is a value here, it has no fields")
    return {**document, name: set_value(inner or {}, rest, value)}


def _value(override: str, text: str) -> Any:
    try:
        value = _load(text)
    except yaml.YAMLError:
        raise BadInput(f"--set {override}: the value is not YAML; put text into quotes") from None
    except (ValueError, TypeError, RecursionError) as error:
        raise BadInput(f"--set {override}: JSON cannot say this value: {error}") from None
    if isinstance(value, str):
        try:
            number = float(value)  # YAML 1.1 takes 1e-3 for text
        except ValueError:
            return value
        return number if math.isfinite(number) else value
    return value


def _load(text: str) -> Any:
    """What YAML says, if JSON can say it, too.

    Raises:
        yaml.YAMLError, ValueError, TypeError, RecursionError
    """
    loader = _Loader(text)
    try:
        value = loader.get_single_data()
    finally:
        loader.dispose()
    json.dumps(value, allow_nan=False)
    return value
