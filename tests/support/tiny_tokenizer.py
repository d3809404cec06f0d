"""The tiny verifier's own tokenizer and chat template in the test's process, as vLLM's `/tokenize` answers with them.

`spelt_out` is a second, independent writing of the same template, for tests that must not trust the first.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from shared.presets import TINY_VERIFIER

Message = dict[str, Any]


class TinyTokenizer:
    """Renders, encodes and decodes as the tiny verifier does."""

    def __init__(self, folder: Path = TINY_VERIFIER) -> None:
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        environment.globals["raise_exception"] = _refuse
        self._template = environment.from_string((folder / "chat_template.jinja").read_text(encoding="utf-8"))

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    def render(self, messages: list[Message], tools: list[Any] | None, *, generation_prompt: bool, **more: Any) -> str:
        """A conversation as text; arguments of calls are parsed and reasoning has both its names, as in vLLM."""
        return self._template.render(
            messages=[_as_vllm_has_it(message) for message in messages],
            tools=tools,
            add_generation_prompt=generation_prompt,
            **more,
        )

    async def tokenize(self, body: dict[str, Any]) -> list[int]:
        """What `/tokenize` answers."""
        if "prompt" in body:
            return self.encode(body["prompt"])
        text = self.render(
            body["messages"],
            body.get("tools"),
            generation_prompt=body["add_generation_prompt"],
            **body.get("chat_template_kwargs", {}),
        )
        return self.encode(text)


def spelt_out(messages: list[Message], tools: list[Any] | None, *, thinking: bool) -> str:
    """What the verifier reads before it answers `messages`, written without the template."""
    answered = max(
        (n for n, m in enumerate(messages) if m["role"] == "assistant" and not m.get("tool_calls")), default=-1
    )
    text = f"<|im_system|>tool_declare<|im_middle|>{json.dumps(tools, ensure_ascii=False)}<|im_end|>" if tools else ""
    for number, message in enumerate(messages):
        role, content = message["role"], message["content"]
        name = message.get("name") or role
        match role:
            case "assistant":
                reasoning = message.get("reasoning", "") if number > answered else ""
                content = f"<think>{reasoning}</think>{content}{calls_spelt_out(message)}"
                text += f"<|im_assistant|>assistant<|im_middle|>{content}<|im_end|>"
            case "tool":
                title = f"## Return of {message.get('tool_call_id', '')}"
                text += f"<|im_system|>{name}<|im_middle|>{title}\n{content}<|im_end|>"
            case _:
                text += f"<|im_{role}|>{name}<|im_middle|>{content}<|im_end|>"
    return text + "<|im_assistant|>assistant<|im_middle|><think>" + ("" if thinking else "</think>")


def calls_spelt_out(message: Message) -> str:
    """The part of an assistant turn that calls tools."""
    calls = message.get("tool_calls") or []
    text = "".join(
        f"<|tool_call_begin|>{call['id']}<|tool_call_argument_begin|>{call['function']['arguments']}<|tool_call_end|>"
        for call in calls
    )
    return f"<|tool_calls_section_begin|>{text}<|tool_calls_section_end|>" if calls else ""


def _as_vllm_has_it(message: Message) -> Message:
    message = {**message}
    if message.get("reasoning"):
        message["reasoning_content"] = message["reasoning"]
    if message.get("tool_calls"):
        message["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
            for call in message["tool_calls"]
        ]
    return message


def _refuse(message: str) -> None:
    raise ValueError(message)
