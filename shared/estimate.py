"""What a job will need: token ids, bytes in the artifact store, optimizer steps, draft parameters.

In: the job document, the verifier's dimensions, and what is known of the data: the dataset's size, or the counts of
earlier stages. Out: figures with a lower bound (`least`), at which a stage that cannot fit is refused before it starts,
a best guess (`likely`) for people, and an upper bound (`most`).
"""

import math
from collections.abc import Collection, Mapping
from typing import Any

from shared.draft_shape import draft_shape
from shared.schemas.job import Stage
from shared.schemas.manifest import Manifest
from shared.schemas.plan import Amount, DraftParameters, TokenEstimate
from shared.schemas.registry import DatasetRecord
from shared.schemas.spec import DraftSpec, JobSpec
from shared.verifier_config import VerifierConfig, capture_layer_ids

BYTES_PER_TOKEN = 4  # of text, in English and with a large vocabulary; other languages and code need more tokens
FEWEST_TOKENS_PER_BYTE = 1 / 16
TEMPLATE_TOKENS = 8  # that a chat template puts around a prompt
LIKELY_ANSWER = 0.5  # of sampling.max_tokens
ID_AND_MASK_BYTES = 16  # two int64 columns a token, in the dataset
ROW_TEXT_BYTES = 12  # an id, its mask and its text, a token, as JSON
WIDTHS = {"float32": 4, "bfloat16": 2}
FLOAT32 = 4
# Vectors of the hidden size that a layer keeps of a token for its backward pass. Measured at Kimi-K2.5's shape with
# three TTT steps in bfloat16 on an H200: 10.3 GiB between packs of 2,048 and of 8,192 tokens.
ACTIVATIONS_PER_LAYER = 24
CUDA_CONTEXT_BYTES = 512 * 1024**2
MOMENTS = {"adamw": 2, "muon": 1}  # tensors of a weight's size that the optimizer keeps
RESUME_POINTS = 3  # two are kept while a third is written
RESUME_COPIES = 4  # weights, best weights, two moments of the optimizer
CONVERSATIONS = "conversations.jsonl"
LINE_BYTES = 200  # ids, line, split and braces in a line of CONVERSATIONS
SMALL_STAGE_BYTES = 64 * 1024


def estimate_tokens(
    spec: JobSpec, record: DatasetRecord, prepared: Manifest | None = None, generated: Manifest | None = None
) -> TokenEstimate:
    """How many ids the job's rows hold.

    Args:
        prepared, generated: of these stages, where they have finished; the latest counts.
    """
    if generated is not None and (exact := _generated_tokens(generated.summary)) is not None:
        count, ids = exact
        return TokenEstimate(rows=count, tokens=Amount(least=ids, likely=ids, most=ids), basis="generate")
    rows, text = (record.rows, record.bytes) if prepared is None else _prepared_text(prepared)
    used = rows if spec.data.limit is None else min(rows, spec.data.limit)
    text = 0 if record.kind != "conversations" and prepared is None else text * used // max(rows, 1)
    longest = used * spec.data.max_seq_len
    answer = spec.data.sampling.max_tokens if spec.data.generate else 0
    likely = int(text / BYTES_PER_TOKEN) + used * int(TEMPLATE_TOKENS + LIKELY_ANSWER * answer)
    likely = likely if text else longest // 2  # rows that came as token ids
    least = used + int(text * FEWEST_TOKENS_PER_BYTE)
    return TokenEstimate(
        rows=used,
        tokens=Amount(least=min(longest, least), likely=min(longest, likely), most=longest),
        basis="dataset" if prepared is None else "prepare",
        assumptions=_assumptions(spec),
    )


def state_bytes_per_token(spec: JobSpec, config: VerifierConfig) -> int:
    """Bytes of hidden states that one token takes in the store."""
    slots = len(capture_layer_ids(spec.capture.layer_ids, config.num_hidden_layers))
    return slots * config.hidden_size * WIDTHS.get(spec.capture.dtype, FLOAT32 if runs_on_cpu(spec) else 2)


def estimate_disk(
    stage: Stage,
    spec: JobSpec,
    config: VerifierConfig,
    tokens: TokenEstimate,
    text_bytes: int,
    states_share: float = 1.0,
) -> Amount:
    """New bytes that a stage puts into the artifact store, at its peak. Hard links take none.

    Args:
        text_bytes: of the dataset.
        states_share: of the rows whose hidden states are made; ready-made ones are linked.
    """
    states = tokens.tokens.times(state_bytes_per_token(spec, config) * states_share)
    small = Amount(least=0, likely=SMALL_STAGE_BYTES, most=SMALL_STAGE_BYTES)
    match stage:
        case Stage.PREPARE:
            return Amount(least=0, likely=text_bytes, most=3 * text_bytes) + small
        case Stage.GENERATE:
            written = tokens.tokens.times(ROW_TEXT_BYTES)
            rows = Amount(least=0, likely=2 * written.likely, most=2 * written.most)  # in work, and in the shard
            return (rows + states if captures_inline(spec) else rows) + small
        case Stage.CAPTURE:
            columns = tokens.tokens.times(ID_AND_MASK_BYTES)
            return (columns if captures_inline(spec) else columns + states) + small
        case Stage.VOCAB:
            return small + Amount(least=0, likely=9 * config.vocab_size, most=17 * config.vocab_size)
        case Stage.TRAIN:
            return _train_disk(draft_parameters(spec.draft, config, spec.capture.layer_ids)) + small
        case Stage.EVALUATE | Stage.PUBLISH:
            return small


def draft_parameters(draft: DraftSpec, config: VerifierConfig, layer_ids: list[int] | None) -> DraftParameters:
    """Parameters of the draft that a job trains: an EAGLE-3 draft with Llama layers.

    Raises:
        UserError: the shape contradicts itself or the verifier.
    """
    shape = draft_shape(draft, config.raw)
    hidden, inner, head_dim = shape["hidden_size"], shape["intermediate_size"], shape["head_dim"]
    queries = shape["num_attention_heads"] * head_dim
    key_values = shape["num_key_value_heads"] * head_dim
    auxiliary = len(capture_layer_ids(layer_ids, config.num_hidden_layers)) - 1
    fusion = auxiliary * hidden * hidden + (auxiliary * hidden if draft.norm_before_fc else 0)
    trained = fusion + hidden  # the final norm
    for layer in range(draft.num_layers):
        width = 2 * hidden if layer == 0 else hidden  # the first one reads the embedding beside the states
        trained += width * (queries + 2 * key_values) + queries * hidden + 3 * hidden * inner
        trained += (3 if layer == 0 else 2) * hidden  # norms
    return DraftParameters(trained=trained, head=draft.vocab_size * hidden, embedding=shape["vocab_size"] * hidden)


def train_memory(spec: JobSpec, config: VerifierConfig, parameters: DraftParameters) -> Amount:
    """Bytes on each GPU that trains. The library keeps weights, frozen ones too, gradients and moments in float32.

    At least: these, and the verifier's head beside the draft's. Probably also what comes and goes: the optimizer's
    intermediate results, weights in the type of the computation, buckets of gradients where several GPUs train, and of
    one pack the hidden states and, for each TTT step, a layer's activations and the logits of the draft and of the
    verifier over the draft's vocabulary. At most: twice as much for the pack.

    At Kimi-K2.5's shape on one H200, `nvidia-smi` showed 34.4 GiB with packs of 2,048 tokens (likely: 33.4) and 44.7
    GiB with packs of 8,192 (likely: 44.0).
    """
    train, width = spec.train, WIDTHS.get(spec.train.dtype, 2)
    hidden, slots = config.hidden_size, len(capture_layer_ids(spec.capture.layer_ids, config.num_hidden_layers))
    weights = FLOAT32 * parameters.trained
    kept = FLOAT32 * (parameters.total + parameters.head) + weights + MOMENTS[train.optimizer] * weights
    passing = 2 * weights + (weights if train.gpus > 1 else 0) + CUDA_CONTEXT_BYTES
    passing += width * parameters.trained if width < FLOAT32 else 0
    logits = 2 * FLOAT32 * spec.draft.vocab_size
    layers = ACTIVATIONS_PER_LAYER * spec.draft.num_layers * hidden
    pack = train.pack_length * (slots * hidden * width + train.ttt_steps * (logits + layers * width))
    return Amount(least=kept, likely=kept + passing + pack, most=kept + passing + 2 * pack)


def estimate_steps(spec: JobSpec, tokens: TokenEstimate) -> int:
    """Optimizer steps, with packs as full as they can be."""
    train = spec.train
    packs = math.ceil(tokens.tokens.likely * (1 - spec.data.val_ratio) / train.pack_length)
    steps = max(1, math.ceil(packs / max(train.gpus, 1))) * train.epochs
    return steps if train.max_steps is None else min(steps, train.max_steps)


def verifier_starts(spec: JobSpec, silent: Collection[Stage] = ()) -> int:
    """How often vLLM loads the verifier: for the data where it is managed, and once for each draft that it measures.

    Args:
        silent: stages that need not run, or not speak to the verifier.
    """
    evaluate = spec.evaluate
    measured = [evaluate.mode, evaluate.baseline if evaluate.mode == "vllm" else "offline"]
    measured += [evaluate.mode] if evaluate.compare_to else []
    return int(starts_for_data(spec, silent)) + measured.count("vllm")


def starts_for_data(spec: JobSpec, silent: Collection[Stage] = ()) -> bool:
    """Whether a managed verifier has to be loaded for the rows."""
    return spec.verifier.managed is not None and not {Stage.GENERATE, Stage.CAPTURE} <= set(silent)


def captures_inline(spec: JobSpec) -> bool:
    """Whether generate keeps the hidden states already, as far as the document tells."""
    return spec.data.generate and (spec.capture.mode == "inline" or (spec.capture.mode == "auto" and runs_on_cpu(spec)))


def runs_on_cpu(spec: JobSpec) -> bool:
    """Whether the job asks for no GPU at all."""
    return spec.train.gpus == 0 and spec.evaluate.gpus == 0


def _train_disk(parameters: DraftParameters) -> Amount:
    """At least the trained and the untrained draft at two bytes; about six copies at four; at most three exports and
    all resume points."""
    exports = 3 * FLOAT32 * parameters.total
    return Amount(
        least=2 * 2 * parameters.total,
        likely=6 * FLOAT32 * parameters.total,
        most=exports + RESUME_POINTS * RESUME_COPIES * FLOAT32 * parameters.trained,
    )


def _prepared_text(manifest: Manifest) -> tuple[int, int]:
    """Rows that prepare kept, and the bytes of their text, without what else stands in each line."""
    rows = int(manifest.summary.get("accounting", manifest.summary).get("kept", 0))
    size = next((entry.size for entry in manifest.files if entry.path == CONVERSATIONS), 0)
    return rows, max(0, size - rows * LINE_BYTES)


def _generated_tokens(summary: Mapping[str, Any]) -> tuple[int, int] | None:
    """Rows and ids that a finished generate stage has counted; an answer's last id has no state."""
    try:
        rows = int(summary["rows"])
        return rows, int(summary["prompt_tokens"]) + int(summary["answer_tokens"]) - rows
    except KeyError:
        return None


def _assumptions(spec: JobSpec) -> list[str]:
    answers = f"answers half of sampling.max_tokens long ({spec.data.sampling.max_tokens // 2} tokens)"
    return [
        f"{BYTES_PER_TOKEN} bytes of text a token; no row rejected",
        answers if spec.data.generate else "every answer of the file kept",
        f"rows cut at data.max_seq_len ({spec.data.max_seq_len} tokens)",
        f"hidden states in {'float32' if runs_on_cpu(spec) else 'bfloat16'} where capture.dtype is auto",
    ]
