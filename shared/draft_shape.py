"""The draft's decoder, worked out from the job document and the verifier's configuration.

In: `DraftSpec` and the verifier's `config.json` as a dictionary. Out: a complete decoder configuration that
`speculators` takes as `--draft-config` and that stands in the published `config.json`. No torch here: the gateway
calls it at submit.
"""

from typing import Any

from shared.errors import UserError
from shared.schemas.spec import DraftSpec

# Keys of a rope description that transformers and vLLM both understand.
ROPE_KEYS = frozenset(
    {
        "rope_type",
        "rope_theta",
        "factor",
        "original_max_position_embeddings",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "attention_factor",
        "low_freq_factor",
        "high_freq_factor",
        "truncate",
    }
)
# Rope types that a plain Llama decoder can follow, and what each has to say.
ROPE_TYPES: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor", "original_max_position_embeddings"),
    "llama3": ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
}
# transformers' defaults of LlamaConfig, for verifiers that say nothing.
DEFAULT_ROPE_THETA = 10_000.0
DEFAULT_MAX_POSITIONS = 2048
DEFAULT_NORM_EPS = 1e-6
INITIALIZER_RANGE = 0.02
# At 16 bytes a parameter (weight, gradient and two moments in float32) training this many takes a terabyte of memory,
# on each GPU: the trainer keeps a whole copy on every one.
MAX_PARAMETERS = 64_000_000_000
BYTES_PER_PARAMETER = 16


def draft_shape(draft: DraftSpec, verifier_config: dict[str, Any]) -> dict[str, Any]:
    """Return the draft's decoder as a complete Llama configuration.

    Args:
        draft: the shape that the job asks for; absent numbers follow the verifier.
        verifier_config: `config.json` of the verifier, nested (`text_config`) or flat.

    Raises:
        UserError: the numbers contradict each other or the verifier; `where` is a JSON pointer into the job document.
    """
    text = verifier_config.get("text_config", verifier_config)
    hidden, vocab = _number(text, "hidden_size"), _number(text, "vocab_size")
    if draft.vocab_size > vocab:
        raise UserError(
            f"the draft vocabulary has {draft.vocab_size} tokens, the verifier's only {vocab}",
            where="/draft/vocab_size",
            hint=f"give at most {vocab}",
        )
    heads = draft.num_attention_heads or _number(text, "num_attention_heads")
    head_dim = draft.head_dim or _default_head_dim(draft, text, hidden, heads)
    if head_dim % 2:
        raise UserError(f"head_dim is {head_dim}: rotary positions need an even one", where="/draft/head_dim")
    key_value_heads = _key_value_heads(draft, text, heads)
    if hidden % heads:  # transformers' LlamaConfig insists on it, whatever head_dim says
        raise UserError(
            f"hidden size {hidden} does not divide by {heads} heads",
            where="/draft/num_attention_heads",
            hint="give another draft.num_attention_heads",
        )
    window = draft.sliding_window
    layer_type = "sliding_attention" if window else "full_attention"
    return {
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": draft.intermediate_size or _default_intermediate(text, hidden),
        "num_hidden_layers": draft.num_layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_value_heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "initializer_range": float(_positive(text, "initializer_range", INITIALIZER_RANGE)),
        "rms_norm_eps": draft.rms_norm_eps or float(_positive(text, "rms_norm_eps", DEFAULT_NORM_EPS)),
        "max_position_embeddings": draft.max_position_embeddings
        or int(_positive(text, "max_position_embeddings", DEFAULT_MAX_POSITIONS)),
        "rope_parameters": _rope(draft, text),
        "sliding_window": window,
        "use_sliding_window": window is not None,
        "layer_types": [layer_type] * draft.num_layers,
        "bos_token_id": text.get("bos_token_id"),
        "eos_token_id": text.get("eos_token_id"),
    }


def require_trainable_size(shape: dict[str, Any], draft_vocab_size: int, auxiliary_layers: int) -> None:
    """Refuse a draft that no machine can train.

    Raises:
        UserError: it has more than `MAX_PARAMETERS`; says how many, and which part is the largest.
    """
    parts = parameter_counts(shape, draft_vocab_size, auxiliary_layers)
    total = sum(parts.values())
    if total > MAX_PARAMETERS:
        largest = max(parts, key=lambda name: parts[name])
        raise UserError(
            f"the draft would have {total:.3g} parameters, {parts[largest]:.3g} of them in its {largest}; training it "
            f"takes {total * BYTES_PER_PARAMETER / 2**40:.3g} TiB on every GPU, and at most {MAX_PARAMETERS:.3g} "
            "parameters are accepted",
            where={"attention": "/draft/head_dim", "MLP": "/draft/intermediate_size"}.get(largest, "/draft"),
            hint="a draft has a few percent of the verifier's parameters: 2.6e9 for Kimi-K2.5",
        )


def parameter_counts(shape: dict[str, Any], draft_vocab_size: int, auxiliary_layers: int) -> dict[str, int]:
    """Parameters of an eagle3 draft by part, frozen copies of the verifier's tensors included; norms are left out.

    Args:
        shape: what `draft_shape` returned.
        draft_vocab_size: tokens of the draft vocabulary.
        auxiliary_layers: verifier layers whose states are fused.
    """
    hidden, layers = shape["hidden_size"], shape["num_hidden_layers"]
    queries = shape["num_attention_heads"] * shape["head_dim"]
    keys = shape["num_key_value_heads"] * shape["head_dim"]
    inputs = hidden * (layers + 1)  # the first layer reads embedding and state side by side
    return {
        "embedding": shape["vocab_size"] * hidden,
        "heads": 2 * draft_vocab_size * hidden,
        "fusion": auxiliary_layers * hidden * hidden,
        "attention": (queries + 2 * keys) * inputs + queries * hidden * layers,
        "MLP": 3 * hidden * shape["intermediate_size"] * layers,
    }


def _number(text: dict[str, Any], name: str) -> int:
    value = text.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"the verifier's config.json has no positive {name}", where="/verifier/model")
    return value


def _positive(text: dict[str, Any], name: str, default: float) -> float:
    """A number of the verifier's configuration, or the default where it says nothing."""
    value = text.get(name)
    if value is None:
        return default
    if not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise UserError(f"{name} is {value!r} in the verifier's config.json", where="/verifier/model")
    return value


def _default_head_dim(draft: DraftSpec, text: dict[str, Any], hidden: int, heads: int) -> int:
    """Head size where the job gives none: the verifier's own, else hidden / heads.

    A verifier with latent attention (`kv_lora_rank`) splits its heads in two parts; the size of its values is the one
    that corresponds to a plain head (128 for Kimi-K2.5, where 7168 / 64 would give 112).
    """
    own = text.get("v_head_dim") if "kv_lora_rank" in text else text.get("head_dim")
    if draft.num_attention_heads is None and isinstance(own, int) and own > 0:
        return own
    if hidden % heads:
        raise UserError(
            f"hidden size {hidden} does not divide by {heads} heads",
            where="/draft/head_dim",
            hint="give draft.head_dim, or another draft.num_attention_heads",
        )
    return hidden // heads


def _key_value_heads(draft: DraftSpec, text: dict[str, Any], heads: int) -> int:
    """Key-value heads: as asked; else the verifier's where they divide the heads; else one for each head."""
    if draft.num_key_value_heads is not None:
        if heads % draft.num_key_value_heads:
            raise UserError(
                f"{heads} heads cannot share {draft.num_key_value_heads} key-value heads",
                where="/draft/num_key_value_heads",
                hint="the number of heads must be a multiple",
            )
        return draft.num_key_value_heads
    own = text.get("num_key_value_heads")
    return own if isinstance(own, int) and own > 0 and heads % own == 0 else heads


def _default_intermediate(text: dict[str, Any], hidden: int) -> int:
    """The verifier's dense MLP, else 3 times hidden (the gated-MLP ratio that speculators uses for pure MoE models)."""
    own = text.get("intermediate_size")
    return own if isinstance(own, int) and own > 0 else 3 * hidden


def _rope(draft: DraftSpec, text: dict[str, Any]) -> dict[str, Any]:
    """Plain rotary positions where the job gives a theta; else the verifier's own, YaRN included."""
    if draft.rope_theta is not None:
        return {"rope_type": "default", "rope_theta": draft.rope_theta}
    described = text.get("rope_parameters") or text.get("rope_scaling") or {}
    if isinstance(described, dict) and isinstance(described.get("full_attention"), dict):
        described = described["full_attention"]  # one description for each kind of layer; the draft has this kind
    problem = _rope_problem(described)
    if problem:
        raise UserError(
            f"a draft cannot follow the verifier's positions: {problem}",
            where="/draft/rope_theta",
            hint="give draft.rope_theta and draft.max_position_embeddings",
        )
    rope = {key: value for key, value in described.items() if key in ROPE_KEYS}
    rope.setdefault("rope_type", described.get("type", "default"))
    rope.setdefault("rope_theta", float(_positive(text, "rope_theta", DEFAULT_ROPE_THETA)))
    return rope


def _rope_problem(described: Any) -> str | None:
    if not isinstance(described, dict):
        return "config.json describes them in a form that is not known"
    if "mrope_section" in described:
        return "they have several axes"
    kind = described.get("rope_type", described.get("type", "default"))
    if kind not in ROPE_TYPES:
        return f"rope type {kind!r} is none of {', '.join(ROPE_TYPES)}"
    missing = [name for name in ROPE_TYPES[kind] if not isinstance(described.get(name), int | float)]
    return f"rope type {kind} lacks {', '.join(missing)}" if missing else None
