"""Small training inputs by the stages' contract: a verifier's folder, a dataset with hidden states, a vocabulary.

`write_verifier` makes a Kimi-shaped stand-in with random weights (only what training reads: embedding, head, norm).
`write_dataset` makes rows whose states foretell the next tokens, so that a draft can learn them in seconds;
`capture_rows` makes real ones with a float32 forward of a real verifier. `write_vocabulary` counts the draft
vocabulary.
"""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file

from services.worker.training.row_index import first_supervised

HIDDEN, VOCAB, LAYERS, HEADS = 32, 64, 6, 4
AUX_LAYERS = (1, 3, 5)


@dataclass
class Row:
    """One row: ids and mask [S], states [S, n_aux + 1, H] (last slot: before the final norm)."""

    input_ids: torch.Tensor
    loss_mask: torch.Tensor
    states: torch.Tensor


def write_verifier(folder: Path, *, hidden: int = HIDDEN, vocab: int = VOCAB, seed: int = 0) -> Path:
    """Write a nested Kimi-K2.5 configuration and the three tensors that training reads."""
    folder.mkdir(parents=True, exist_ok=True)
    text = {
        "model_type": "kimi_k2",
        "architectures": ["DeepseekV3ForCausalLM"],
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "moe_intermediate_size": hidden,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "kv_lora_rank": 512,
        "q_lora_rank": 32,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096,
        "rope_theta": 50000.0,
        "rope_scaling": {
            "type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 1024,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
        "tie_word_embeddings": False,
    }
    config = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "text_config": text,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    generator = torch.Generator().manual_seed(seed)
    save_file(
        {
            "language_model.model.embed_tokens.weight": torch.randn(vocab, hidden, generator=generator),
            "language_model.lm_head.weight": torch.randn(vocab, hidden, generator=generator) / 4,
            "language_model.model.norm.weight": torch.ones(hidden),
            # Shorter than the real name: a loader that matches by suffix would take it.
            "aux.lm_head.weight": torch.zeros(vocab, hidden),
        },
        folder / "model.safetensors",
    )
    return folder


def made_rows(verifier: Path, count: int, *, seed: int = 0, mean_length: int = 40) -> list[Row]:
    """Rows of a noisy chain of tokens. The last state names the next token, as a verifier's does; the auxiliary ones
    also foretell the token after it, noise included, so that a draft that reads them beats one that only sees tokens.
    """
    head = load_file(verifier / "model.safetensors")["language_model.lm_head.weight"]
    vocab, hidden = head.shape
    used = vocab * 3 // 4
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    # A head row, scaled to the norm's output: its own logit is by far the largest.
    anchors = head / head.norm(dim=1, keepdim=True) * hidden**0.5
    rows = []
    for _ in range(count):
        length = rng.randint(mean_length // 2, mean_length * 3 // 2)
        ids = [rng.randrange(used)]
        while len(ids) < length + 2:
            ids.append((ids[-1] + 7) % used if rng.random() < 0.8 else rng.randrange(used))
        tokens = torch.tensor(ids)
        last = anchors[tokens[1:-1]] + 0.1 * torch.randn(length, hidden, generator=generator)
        after = anchors[tokens[2:]] + 0.1 * torch.randn(length, hidden, generator=generator)
        prompt = rng.randint(2, length // 2)
        mask = (torch.arange(length) >= prompt).long()
        rows.append(Row(tokens[:-2], mask, torch.stack([after, last, after + last, last], dim=1)))
    return rows


def write_dataset(folder: Path, train: Sequence[Row], val: Sequence[Row], layer_ids: Sequence[int]) -> Path:
    """Write rows in speculators' layout, training rows first; `layer_ids` ends with the final layer."""
    states = folder / "hidden_states"
    states.mkdir(parents=True, exist_ok=True)
    rows = [*train, *val]
    columns = {
        "input_ids": [row.input_ids.tolist() for row in rows],
        "loss_mask": [row.loss_mask.tolist() for row in rows],
        "seq_len": [len(row.input_ids) for row in rows],
    }
    dataset = Dataset.from_dict(columns)
    dataset.set_format("torch", columns=["input_ids", "loss_mask"], output_all_columns=True)
    dataset.save_to_disk(str(folder))
    for index, row in enumerate(rows):
        save_file(
            {"hidden_states": row.states.contiguous(), "token_ids": row.input_ids},
            states / f"hs_{index}.safetensors",
        )
    with (folder / "rows.jsonl").open("w") as file:
        for index, row in enumerate(rows):
            split = "train" if index < len(train) else "val"
            record = {
                "index": index,
                "row_id": f"row-{index}",
                "split": split,
                "seq_len": len(row.input_ids),
                "supervised": int(row.loss_mask.sum()),
                "first_supervised": first_supervised(row.loss_mask.tolist()),
            }
            file.write(json.dumps(record) + "\n")
    meta = {
        "num_train": len(train),
        "num_val": len(val),
        "layer_ids": list(layer_ids),
        "hidden_size": rows[0].states.shape[-1],
        "dtype": str(rows[0].states.dtype).removeprefix("torch."),
    }
    (folder / "meta.json").write_text(json.dumps(meta))
    return folder


def write_vocabulary(folder: Path, train: Sequence[Row], val: Sequence[Row], vocab: int, size: int) -> Path:
    """Keep the `size` most frequent supervised tokens of the training rows, filled up with the lowest ids."""
    folder.mkdir(parents=True, exist_ok=True)
    counts = np.zeros(vocab, dtype=np.int64)
    for row in train:
        np.add.at(counts, row.input_ids[row.loss_mask.bool()].numpy(), 1)
    kept = np.sort(np.lexsort((np.arange(vocab), -counts))[:size])
    t2d = np.zeros(vocab, dtype=bool)
    t2d[kept] = True
    np.save(folder / "t2d.npy", t2d)
    np.save(folder / "d2t.npy", kept - np.arange(size))
    supervised = torch.cat([row.input_ids[row.loss_mask.bool()] for row in val]).numpy()
    report = {"coverage_val": float(t2d[supervised].mean())}
    (folder / "report.json").write_text(json.dumps(report))
    return folder


def swap_auxiliary_states(rows: Sequence[Row]) -> list[Row]:
    """Give every row its neighbour's auxiliary states and keep its own target states: a control that must do worse."""
    swapped = []
    for index, row in enumerate(rows):
        other = rows[(index + 1) % len(rows)].states
        positions = torch.arange(len(row.input_ids)) % len(other)
        states = torch.cat([other[positions][:, :-1], row.states[:, -1:]], dim=1)
        swapped.append(Row(row.input_ids, row.loss_mask, states))
    return swapped


def capture_rows(
    verifier: Path,
    prompts: Sequence[Sequence[int]],
    *,
    layer_ids: Sequence[int],
    max_tokens: int,
    eos: int,
    batch: int = 64,
) -> list[Row]:
    """Answer prompts greedily with a real verifier in float32 and keep its states, without vLLM.

    Args:
        prompts: token ids of each prompt.
        layer_ids: id k is the residual stream after k layers; the number of layers is the state before the final norm.
        eos: id that ends an answer; it is the last one of a finished row's targets, so that its state is left out.
    """
    model = load_verifier(verifier)
    rows: list[Row] = []
    for start in range(0, len(prompts), batch):
        asked = [list(prompt) for prompt in prompts[start : start + batch]]
        for prompt, answer in zip(asked, _answers(model, asked, max_tokens, eos), strict=True):
            ids = torch.tensor((prompt + answer)[:-1])
            states = dict(_states(model, ids))
            mask = (torch.arange(len(ids)) >= len(prompt)).long()
            rows.append(Row(ids, mask, torch.stack([states[layer] for layer in layer_ids], dim=1)))
    return rows


def load_verifier(folder: Path) -> Any:
    """Load a verifier with transformers, float32, for `capture_rows`."""
    from transformers import AutoModelForImageTextToText

    return AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()


@torch.no_grad()
def _answers(model: Any, prompts: Sequence[list[int]], max_tokens: int, eos: int) -> list[list[int]]:
    """Greedy answers, `eos` included where it was reached; prompts are padded on the left."""
    width = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([[eos] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    written = model.generate(
        input_ids=ids,
        attention_mask=mask,
        max_new_tokens=max_tokens,
        do_sample=False,
        eos_token_id=eos,
        pad_token_id=eos,
    )[:, width:].tolist()
    return [answer[: answer.index(eos) + 1] if eos in answer else answer for answer in written]


@torch.no_grad()
def _states(model: Any, ids: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """Residual stream after k layers ([S, H]), by k."""
    layers = next(
        module.layers for module in model.modules() if hasattr(module, "layers") and hasattr(module, "embed_tokens")
    )
    found: list[tuple[int, torch.Tensor]] = []

    def keep(index: int) -> Any:
        def hook(_module: Any, _args: Any, output: Any) -> None:
            state = output[0] if isinstance(output, tuple) else output
            found.append((index + 1, state[0].clone()))

        return hook

    hooks = [layer.register_forward_hook(keep(index)) for index, layer in enumerate(layers)]
    try:
        model(input_ids=ids[None], attention_mask=torch.ones(1, len(ids), dtype=torch.long))
    finally:
        for hook in hooks:
            hook.remove()
    yield from found
