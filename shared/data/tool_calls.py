"""Tool definitions and calls of a row, and its JSON text, where it can be written as JSON at all."""

import json
from typing import Any

from shared.data.jsonl import refuse_constant
from shared.data.refusal import RowRejected

MAX_DEPTH = 64  # readers further on take some 200 levels, the row's own ones included
ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


def read_tools(tools: Any) -> list[Any] | None:
    """Tool definitions, given as a list or as its JSON text; None where there are none.

    Raises:
        RowRejected
    """
    tools = _from_text(tools, "bad_tools", "the field tools")
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise RowRejected("bad_tools", "the field tools is not a list of objects")
    check_depth(tools)
    return tools or None


def read_tool_calls(calls: Any, number: int) -> list[dict[str, Any]]:
    """Calls of turn `number`, given as a list or as its JSON text; `arguments` becomes the JSON text of an object.

    Written as text or as an object, equal arguments become equal text: what a chat template prints of an object.

    Raises:
        RowRejected
    """
    where = f"turn {number}: tool_calls"
    calls = _from_text(calls, "bad_tool_call", where)
    if not isinstance(calls, list | None):
        raise RowRejected("bad_tool_call", f"{where} is not a list")
    return [_call(call, where) for call in calls or []]


def json_text(value: Any) -> str:
    """Write a value as JSON on one line; refuse what no file, no verifier or no later reader takes.

    JSON can spell half a character (`\\ud83d` alone), Parquet has dates and decimals, and numbers can be too large.

    Raises:
        RowRejected
    """
    try:
        text = ENCODER.encode(value)
        text.encode()
    except UnicodeEncodeError:
        raise RowRejected(
            "not_text", "holds half a character (a lone surrogate), or bytes that are not UTF-8"
        ) from None
    except RecursionError:
        raise RowRejected("not_json", "is nested too deeply") from None
    except (TypeError, ValueError) as error:
        raise RowRejected("bad_value", f"holds a value that JSON has not: {error}"[:200]) from None
    return text


def check_depth(value: Any, depth: int = 0) -> None:
    """Refuse what is nested deeper than `MAX_DEPTH`.

    Raises:
        RowRejected
    """
    if depth > MAX_DEPTH:
        raise RowRejected("not_json", f"is nested too deeply: more than {MAX_DEPTH} levels")
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            check_depth(item, depth + 1)


def _call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise RowRejected("bad_tool_call", f"{where} has an entry without a function")
    name = function.get("name")
    if not isinstance(name, str) or not name.strip():
        raise RowRejected("bad_tool_call", f"{where} has a function without a name")
    labels = {label: call[label] for label in ("id", "type") if call.get(label) is not None}
    if not all(isinstance(label, str) for label in labels.values()):
        raise RowRejected("bad_tool_call", f"{where} has an id or a type that is not text")
    arguments = _from_text(function.get("arguments"), "bad_tool_call", f"{where}: arguments of {name[:80]}")
    if not isinstance(arguments, dict | None):
        raise RowRejected("bad_tool_call", f"{where}: arguments of {name[:80]} are not a JSON object")
    check_depth(arguments)
    return {**labels, "function": {"name": name, "arguments": json_text(arguments or {})}}


def _from_text(value: Any, reason: str, where: str) -> Any:
    if not isinstance(value, str):
        return value
    if not value.strip():
        return None
    try:
        return json.loads(value, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        raise RowRejected(reason, f"{where} is text that is not JSON") from None
