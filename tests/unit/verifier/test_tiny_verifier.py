"""The tiny verifier is Kimi-K2.5 in small: names, ids, template and prompts are as the rest of the system expects."""

import json
import re
from pathlib import Path

import pytest
from safetensors import safe_open
from transformers import AutoTokenizer

from tools.tiny_text import held_out

ASSETS = Path(__file__).parents[3] / "assets"
FOLDER = ASSETS / "tiny-verifier"
OPENED = "<|im_assistant|>assistant<|im_middle|>"
USER = {"role": "user", "content": "Hi"}


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def render(tokenizer):
    def rendered(*messages, **options):
        return tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True, **options)

    return rendered


@pytest.fixture(scope="module")
def tensors():
    with safe_open(FOLDER / "model.safetensors", "pt") as file:
        return {name: (file.get_slice(name).get_dtype(), file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


def test_the_checkpoint_is_small():
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 8 * 1024**2


def test_weights_are_bfloat16_under_the_real_checkpoints_names(tensors):
    assert {dtype for dtype, _ in tensors.values()} == {"BF16"}
    layer = "language_model.model.layers"
    assert {
        "language_model.model.embed_tokens.weight",
        "language_model.lm_head.weight",
        "language_model.model.norm.weight",
        f"{layer}.0.mlp.gate_proj.weight",
        f"{layer}.1.mlp.gate.e_score_correction_bias",
        f"{layer}.1.mlp.experts.7.down_proj.weight",
        f"{layer}.1.mlp.shared_experts.up_proj.weight",
        f"{layer}.3.self_attn.kv_a_proj_with_mqa.weight",
        "vision_tower.encoder.blocks.0.wqkv.weight",
        "mm_projector.proj.2.weight",
    } <= set(tensors)
    assert tensors["language_model.lm_head.weight"][1] == [512, 128]


def test_the_tokenizer_has_fewer_ids_than_the_vocabulary(tokenizer):
    text = json.loads((FOLDER / "config.json").read_text())["text_config"]
    assert text["vocab_size"] == 512
    assert len(tokenizer) == 500


@pytest.mark.parametrize("text", ["plain", "naïve café", "日本語 😀", "\x00\x7f\t", "a  b\n\n c "])
def test_any_text_survives_encoding(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_thought_marks_are_single_ordinary_ids_and_turn_ends_are_special(tokenizer):
    for mark in ("<think>", "</think>", "<|im_end|>", "<|tool_calls_section_begin|>"):
        assert len(tokenizer.encode(mark, add_special_tokens=False)) == 1
    ids = tokenizer.encode("<think>1</think>2<|im_end|>", add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<think>1</think>2"


def test_generation_ends_with_the_turn(tokenizer):
    generation = json.loads((FOLDER / "generation_config.json").read_text())
    assert generation["eos_token_id"] == tokenizer.convert_tokens_to_ids("<|im_end|>")


def test_the_template_opens_the_thought(render):
    assert render(USER) == f"<|im_user|>user<|im_middle|>Hi<|im_end|>{OPENED}<think>"


def test_thinking_can_be_turned_off(render):
    assert render(USER, thinking=False).endswith(f"{OPENED}<think></think>")
    assert render(USER, thinking=True).endswith(f"{OPENED}<think>")


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_of_earlier_turns_is_dropped(render, field):
    text = render(USER, {"role": "assistant", "content": "Hello", field: "SECRET"}, USER)
    assert "SECRET" not in text
    assert f"{OPENED}<think></think>Hello<|im_end|>" in text


def test_reasoning_stays_inside_a_tool_loop_and_calls_are_rendered(render):
    call = {"id": "functions.add:0", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    asked = {"role": "assistant", "content": "", "reasoning": "I add.", "tool_calls": [call]}
    text = render(USER, asked, {"role": "tool", "tool_call_id": "functions.add:0", "content": "3"})
    assert f"{OPENED}<think>I add.</think><|tool_calls_section_begin|><|tool_call_begin|>functions.add:0" in text
    assert '<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|><|tool_calls_section_end|><|im_end|>' in text
    assert "<|im_system|>tool<|im_middle|>## Return of functions.add:0\n3<|im_end|>" in text


def test_content_parts_equal_the_string(render):
    parts = {"role": "user", "content": [{"type": "text", "text": "Hi"}]}
    assert render(parts) == render(USER)


@pytest.mark.parametrize("content", ["", None, []])
def test_empty_content_renders_nothing(render, content):
    assert "<|im_middle|><|im_end|>" in render({"role": "user", "content": content})


def test_system_text_and_tools_come_as_system_turns(render):
    text = render(
        {"role": "system", "content": "Be brief."}, USER, tools=[{"type": "function", "function": {"name": "f"}}]
    )
    assert re.match(
        r"<\|im_system\|>tool_declare<\|im_middle\|>\[.*\]<\|im_end\|><\|im_system\|>system<\|im_middle\|>Be", text
    )


def test_an_unknown_role_is_refused(render):
    with pytest.raises(Exception, match="role oracle is not supported"):
        render({"role": "oracle", "content": "?"})


def test_the_demo_prompts_were_never_trained_on():
    rows = [json.loads(line) for line in (ASSETS / "prompts" / "demo.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(rows) == len({row["prompt"] for row in rows}) == len({row["id"] for row in rows}) == 300
    assert all(held_out(row["prompt"]) for row in rows)
