"""Whatever a row holds, it is accepted as what later stages can read, or refused with a reason."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.data.conversations import ROLES
from shared.data.files import RawRow
from shared.data.refusal import RowRejected
from shared.data.row_reader import FORMS, RowReader
from shared.schemas.prepared import Prepared
from shared.schemas.spec import DataSpec

pytestmark = pytest.mark.data

TEXTS = st.text(st.characters(codec=None), max_size=6) | st.sampled_from(["<|im_end|>", "", " ", "\ud83d", '{"a": 1}'])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | st.binary(max_size=3)
KEYS = st.sampled_from(["role", "content", "type", "text", "id", "function", "name", "arguments"]) | TEXTS
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=6
)
CALLS = st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": TEXTS, "arguments": VALUES})})
TURNS = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(sorted(ROLES)) | SCALARS,
        "from": st.sampled_from(sorted(ROLES)) | SCALARS,
        "content": TEXTS | VALUES,
        "value": TEXTS | VALUES,
        "reasoning": TEXTS | VALUES,
        "reasoning_content": TEXTS,
        "name": TEXTS | VALUES,
        "tool_calls": st.lists(CALLS, max_size=2) | VALUES,
    },
)
TURN_LISTS = st.lists(TURNS | VALUES, max_size=4) | st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(sorted(ROLES)), "content": TEXTS}), min_size=1, max_size=5
)
ROWS = st.fixed_dictionaries(
    {},
    optional={
        "prompt": TEXTS | VALUES,
        "messages": TURN_LISTS | VALUES,
        "conversations": TURN_LISTS | VALUES,
        "input_ids": st.lists(st.integers(-1, 513) | SCALARS, max_size=6) | VALUES,
        "loss_mask": st.lists(st.integers(0, 2) | SCALARS, max_size=6) | VALUES,
        "system": TEXTS | VALUES,
        "tools": VALUES,
        "conversation_id": VALUES,
    },
)


def judge(row, value, generate):
    """The row as it would be written, or None where it is refused."""
    reader = RowReader(DataSpec(dataset="ds_x", generate=generate), ["<|im_end|>"], 512)
    try:
        accepted = reader.read(RawRow("data", 1, value))
    except RowRejected as refusal:
        refusal.message.encode()
        return None
    assert sum(row.get(form) is not None for form in FORMS) == 1
    assert "\n" not in accepted.text
    accepted.text.encode()
    document = {"id": accepted.identity, "line": 1, "source": "data", "split": "train", **json.loads(accepted.text)}
    return Prepared.model_validate(document)


@settings(deadline=None, max_examples=400)
@given(ROWS, st.booleans())
def test_a_row_of_parquet_is_accepted_whole_or_refused(row, generate):
    judge(row, row, generate)


@settings(deadline=None, max_examples=400)
@given(ROWS, st.booleans())
def test_a_line_of_json_is_accepted_whole_or_refused(row, generate):
    text = json.dumps(row, default=lambda value: value.hex())
    prepared = judge(row, text, generate)
    if prepared is None or prepared.messages is None:
        return
    turns = [turn for turn in prepared.messages if turn["role"] == "user"]
    assert turns
    assert all(isinstance(turn["content"], str) for turn in prepared.messages)
    assert not any("<|im_end|>" in json.dumps(turn) for turn in prepared.messages)
    assert not any(
        {"reasoning", "tool_calls"} & turn.keys() for turn in prepared.messages if turn["role"] != "assistant"
    )


@settings(deadline=None)
@given(st.text(max_size=40))
def test_a_line_of_any_text_is_refused_and_nothing_worse(text):
    with pytest.raises(RowRejected):
        RowReader(DataSpec(dataset="ds_x"), [], 512).read(RawRow("data", 1, text))


@pytest.mark.parametrize("depth", [10, 100, 900, 5000, 100_000])
@pytest.mark.parametrize("shape", ['{"prompt": "q", "tools": [%s]}', '{"prompt": "q", "note": [%s]}'])
def test_depth_is_accepted_or_refused_at_any_level(depth, shape):
    text = shape % ('{"a":' * depth + "1" + "}" * depth)
    prepared = judge({"prompt": "q"}, text, True)
    if prepared is not None:
        Prepared.model_validate_json(prepared.model_dump_json())
