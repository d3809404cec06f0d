"""A scripted stand-in for vLLM over HTTP: it answers by rule, keeps what it was asked, and fails when told to.

It serves `/v1/models`, `/health`, `/v1/chat/completions`, `/v1/completions`, `/tokenize`, `/detokenize` and `/metrics`.
Words are tokens, with ids below 512. Hidden states are written as vLLM does it: under the request's id, after the
answer, under an flock on a `.lock` that is there before it. An id's state depends on nothing but the id, its place and
the layer, so that captured and prefilled states of equal ids are equal.

    with VerifierStub(exchange) as stub:
        stub.plan("prompt 3", Script(status=503), Script(status=503))   # the first two times; then it answers
"""

import contextlib
import fcntl
import json
import os
import secrets
import threading
import time
import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

MODEL = "tiny-verifier"
FIRST_WORD, WORDS = 16, 400
USER, ASSISTANT, SYSTEM, TOOL, END, THINK, END_THINK = range(1, 8)
MARKERS = {"user": USER, "assistant": ASSISTANT, "system": SYSTEM, "tool": TOOL}
SPELT_MARKERS = ("<user>", "<assistant>", "<system>", "<tool>", "<end>", "<think>", "</think>")
_known = dict(enumerate(SPELT_MARKERS, start=1))


@dataclass(frozen=True)
class Script:
    """What happens to one request; all absent: it is answered.

    Attributes:
        delay_s: seconds before the answer.
        status, retry_after, error: an error response instead of the answer.
        drop: the connection is closed without a word.
        no_choices, content, reasoning, finish_reason, token_ids: parts of the answer that differ.
        tool_calls: what the answer calls, as OpenAI's API has it.
        states: `good`, or a fault of the file of hidden states: `nan`, `inf`, `zeros`, `zero_slot`, `other_ids`,
            `short`, `few_slots`, `narrow`, `float16`, `int32`, `missing`; or of what the answer says: `unnamed` (no
            file), `another_request` (its name), `no_ids` (no token ids).
    """

    delay_s: float = 0.0
    status: int | None = None
    retry_after: str | None = None
    error: str = "scripted"
    drop: bool = False
    no_choices: bool = False
    content: str | None = "as usual"
    reasoning: str | None = "as usual"
    finish_reason: str = "stop"
    token_ids: tuple[int, ...] | None = None
    tool_calls: tuple[dict[str, Any], ...] = ()
    states: str = "good"


@dataclass(frozen=True)
class Seen:
    """A request that arrived."""

    path: str
    request_id: str
    body: dict[str, Any]
    at: float

    @property
    def prompt(self) -> str:
        """The last user turn of a chat request."""
        return next(m["content"] for m in reversed(self.body["messages"]) if m["role"] == "user")


@dataclass
class VerifierStub:
    """The server; use it as a context manager.

    Attributes:
        exchange: where hidden states are left.
        gone: nobody answers any more, as if the process had ended.
        gone_after: become `gone` after so many chat answers.
        delay_s: seconds before every answer.
        write_delay_s: seconds between an answer and its file.
        metrics: the text of `/metrics`.
    """

    exchange: Path
    layers: int = 4
    hidden: int = 16
    model: str = MODEL
    delay_s: float = 0.0
    write_delay_s: float = 0.0
    gone: bool = False
    gone_after: int | None = None
    metrics: str = ""
    seen: list[Seen] = field(default_factory=list)
    answered: list[Seen] = field(default_factory=list)
    _plans: dict[str, list[Script]] = field(default_factory=lambda: defaultdict(list))
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> "VerifierStub":
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def plan(self, text: str, *scripts: Script) -> None:
        """Use these scripts, one after the other, for requests that hold `text` in their last user turn (chat) or
        whose ids hold those of `text` (completions, planned as `prefill TEXT`; `render TEXT`: for `/tokenize`)."""
        self._plans[text].extend(scripts)

    def chats(self) -> list[Seen]:
        """Chat requests that arrived."""
        return [seen for seen in self.seen if seen.path == "/v1/chat/completions"]

    def prefills(self) -> list[Seen]:
        """Completion requests that arrived."""
        return [seen for seen in self.seen if seen.path == "/v1/completions"]

    def states(self, ids: list[int]) -> "np.ndarray[Any, np.dtype[np.float32]]":
        """The hidden states of `ids`: [S, layers, hidden]."""
        place = np.arange(len(ids), dtype=np.float32)[:, None, None] / 100
        layer = np.arange(1, self.layers + 1, dtype=np.float32)[None, :, None]
        unit = np.arange(1, self.hidden + 1, dtype=np.float32)[None, None, :]
        return np.sin(np.asarray(ids, dtype=np.float32)[:, None, None] * layer + unit) + place

    def _next_script(self, seen: Seen) -> Script:
        with self._guard:
            self.seen.append(seen)
            for text, scripts in self._plans.items():
                if scripts and self._concerns(text, seen):
                    return scripts.pop(0)
        return Script()

    def _concerns(self, text: str, seen: Seen) -> bool:
        if seen.path == "/v1/chat/completions":
            return text in seen.prompt
        if seen.path == "/tokenize":
            return text.startswith("render ") and text.removeprefix("render ") in json.dumps(seen.body)
        ids = words(text.removeprefix("prefill "))
        asked = seen.body.get("prompt", [])
        return text.startswith("prefill ") and any(
            asked[i : i + len(ids)] == ids for i in range(len(asked) - len(ids) + 1)
        )

    def _count_answer(self, seen: Seen) -> None:
        with self._guard:
            self.answered.append(seen)
            chats = sum(known.path == "/v1/chat/completions" for known in self.answered)
            if self.gone_after is not None and chats >= self.gone_after:
                self.gone = True


def words(text: str) -> list[int]:
    """Token ids of a text: one a word."""
    ids = [FIRST_WORD + zlib.crc32(word.encode()) % WORDS for word in text.split()]
    _known.update(zip(ids, text.split(), strict=True))
    return ids


def spell(ids: list[int]) -> str:
    """Text of token ids; of words with one id, it is the last that was seen."""
    return " ".join(_known[token] for token in ids)


def render(messages: list[dict[str, Any]], *, thinking: bool = True, generation_prompt: bool = True) -> list[int]:
    """Token ids of a conversation. As with Kimi, the reasoning of all but a closing assistant turn is dropped."""
    ids: list[int] = []
    for place, message in enumerate(messages):
        ids.append(MARKERS[message["role"]])
        if message["role"] == "assistant":
            closing = place == len(messages) - 1 and not generation_prompt
            reasoning = message.get("reasoning") or message.get("reasoning_content") or ""
            ids += [THINK, *(words(reasoning) if closing else []), END_THINK]
        ids += [*words(message["content"] or ""), *words(_calls(message)), END]
    if generation_prompt:
        ids += [ASSISTANT, THINK] if thinking else [ASSISTANT, THINK, END_THINK]
    return ids


def _calls(message: dict[str, Any]) -> str:
    """The calls of tools of a message as text."""
    functions = [call["function"] for call in message.get("tool_calls") or []]
    return " ".join(f"call {function['name']} {function['arguments']}" for function in functions)


def _handler(stub: VerifierStub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            if stub.gone:
                self.close_connection = True
                return
            models = {"data": [{"id": stub.model, "root": f"/models/{stub.model}"}]}
            bodies = {"/v1/models": json.dumps(models), "/health": "", "/metrics": stub.metrics}
            self._send(200 if self.path in bodies else 404, bodies.get(self.path, "{}"))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen = Seen(self.path, self.headers.get("X-Request-Id", ""), body, time.monotonic())
            script = stub._next_script(seen)
            time.sleep(script.delay_s or stub.delay_s)
            if stub.gone or script.drop:
                self.close_connection = True
                return
            if script.status is not None:
                extra = {"Retry-After": script.retry_after} if script.retry_after else {}
                self._send(script.status, json.dumps({"error": {"message": script.error}}), extra)
                return
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._answer(seen, script)

        def _answer(self, seen: Seen, script: Script) -> None:
            if seen.path == "/detokenize":
                self._send(200, json.dumps({"prompt": spell(seen.body["tokens"])}))
                return
            if seen.path == "/tokenize":
                options = seen.body.get("chat_template_kwargs") or {}
                ids = render(
                    seen.body["messages"],
                    thinking=options.get("thinking", True),
                    generation_prompt=seen.body["add_generation_prompt"],
                )
                self._send(200, json.dumps({"tokens": ids, "count": len(ids)}))
                return
            chat = seen.path == "/v1/chat/completions"
            answer, ids = _chat_answer(seen.body, script) if chat else _prefill_answer(seen.body)
            if script.states == "no_ids":
                answer.pop("prompt_token_ids", None)
                answer["choices"][0].pop("token_ids")
            captured = not chat or bool((seen.body.get("kv_transfer_params") or {}).get("include_output_tokens"))
            if not captured or script.states == "unnamed":
                stub._count_answer(seen)
                self._send(200, json.dumps(answer))
                return
            kind = "chatcmpl" if chat else "cmpl"
            path = stub.exchange / f"{kind}-{seen.request_id}-{secrets.token_hex(4)}.safetensors"
            lock = os.open(f"{path}.lock", os.O_CREAT | os.O_WRONLY, 0o644)
            fcntl.flock(lock, fcntl.LOCK_EX)
            stub._count_answer(seen)
            try:
                named = path.with_name("chatcmpl-other.safetensors") if script.states == "another_request" else path
                self._send(200, json.dumps({**answer, "kv_transfer_params": {"hidden_states_path": str(named)}}))
            finally:
                time.sleep(stub.write_delay_s)
                _write_states(stub, path, ids, script.states)
                os.close(lock)

        def _send(self, status: int, text: str, extra: dict[str, str] | None = None) -> None:
            content = text.encode()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **(extra or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)
            self.wfile.flush()

    return Handler


def _chat_answer(body: dict[str, Any], script: Script) -> tuple[dict[str, Any], list[int]]:
    """The response to a chat request, and the ids whose states are kept: all but the last."""
    thinking = bool((body.get("chat_template_kwargs") or {}).get("thinking", True))
    prompt = render(body["messages"], thinking=thinking)
    asked = body["messages"][-1]["content"].split()[-1]
    usual = f"we look at {asked}" if thinking else None
    reasoning = usual if script.reasoning == "as usual" else script.reasoning
    content = f"the answer to {asked}" if script.content == "as usual" else script.content
    message = {"role": "assistant", "content": content, "reasoning": reasoning, "tool_calls": list(script.tool_calls)}
    thought = [*words(reasoning), END_THINK] if reasoning else []
    written = [*thought, *words(content or ""), *words(_calls(message)), END]
    if script.token_ids is not None:
        written = list(script.token_ids)
    elif script.finish_reason == "length":
        written = written[:-1]
    choice = {"index": 0, "message": message, "finish_reason": script.finish_reason, "token_ids": written}
    choices = [] if script.no_choices else [choice]
    return {"prompt_token_ids": prompt, "choices": choices}, (prompt + written)[:-1]


def _prefill_answer(body: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
    ids = list(body["prompt"])
    choice = {"index": 0, "text": "", "finish_reason": "length", "prompt_token_ids": ids, "token_ids": [END]}
    return {"choices": [choice]}, ids


def _write_states(stub: VerifierStub, path: Path, ids: list[int], kind: str) -> None:
    if kind == "missing":
        return
    states = stub.states(ids)
    tensors = spoil({"hidden_states": states, "token_ids": np.asarray(ids, dtype=np.int64)}, kind)
    partial = path.with_name(f".{path.name}.partial")
    with contextlib.suppress(FileNotFoundError):  # the test's folder may be gone by now
        save_file(tensors, partial)
        partial.replace(path)


def spoil(tensors: dict[str, Any], kind: str) -> dict[str, Any]:
    """Put one of `Script.states`' faults into the tensors of a file of states."""
    states, ids = tensors["hidden_states"], tensors["token_ids"]
    match kind:
        case "nan" | "inf":
            states[len(ids) // 2, 0, 0] = np.nan if kind == "nan" else np.inf
        case "zeros":
            states[:] = 0
        case "zero_slot":
            states[:, 1] = 0
        case "other_ids":
            ids[-1] += 1
        case "short":
            states, ids = states[:-1], ids[:-1]
        case "few_slots":
            states = states[:, :-1]
        case "narrow":
            states = states[:, :, :-1]
        case "float16" | "int32":
            states = states.astype(kind)
    return {"hidden_states": np.ascontiguousarray(states), "token_ids": np.ascontiguousarray(ids)}
