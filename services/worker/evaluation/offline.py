"""Estimates a draft's acceptance from the validation rows' states, without serving the verifier.

The draft runs under speculators' own model over rows of which the verifier's states are known; each position's draft
token is compared with the verifier's best token over its whole vocabulary. So tokens outside of the draft vocabulary
count as misses, exactly where they occur. It foretells vLLM at temperature 0; it is labelled `offline` wherever it is
shown.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.models.eagle3.data import shift_batch
from speculators.train.data import ArrowDataset, CollateFn

from services.worker.training import verifier_weights
from services.worker.training.acceptance import acceptance_length
from services.worker.training.attention import choose_attention
from services.worker.training.library_config import split_ratio
from shared.draft_shape import DEFAULT_NORM_EPS
from shared.errors import UserError

PACK_LENGTH = 2048  # tokens in one forward pass


def estimate_acceptance(
    draft_folder: Path,
    verifier_dir: Path,
    dataset_dir: Path,
    k: int,
    *,
    device: str = "cpu",
    max_rows: int | None = None,
    pack_length: int = PACK_LENGTH,
) -> dict[str, Any]:
    """Estimate acceptance at temperature 0 for `k` speculative tokens.

    Args:
        draft_folder: a checked speculators checkpoint, trained or not.
        verifier_dir: the verifier's folder; its head gives the right tokens.
        dataset_dir: rows in speculators' layout with `meta.json`; the validation rows are used.
        max_rows: use the first so many validation rows only.
        pack_length: tokens in one forward pass; longer rows are cut.

    Returns:
        `per_position`: share of proposals accepted up to and including each position, [k];
        `acceptance_length`: 1 + their sum, in [1, k + 1]; `mode`: "offline"; `rows`, `tokens`: what it rests on.

    Raises:
        UserError: the validation rows have no supervised token.
    """
    model = load_draft(draft_folder, verifier_dir, device)
    oracle = _Oracle(verifier_dir, device)
    correct = torch.zeros(k, dtype=torch.float64)
    total = torch.zeros(k, dtype=torch.float64)
    rows = 0
    for batch, packed in validation_batches(dataset_dir, model.dtype, pack_length, max_rows):
        moved = {name: t.to(device) if isinstance(t, torch.Tensor) else t for name, t in batch.items()}
        hits, seen = _count(model, oracle, moved, k)
        correct += hits
        total += seen
        rows += packed
    if not total[0]:
        raise UserError("the validation rows have no supervised token", where=dataset_dir.name)
    per_position = (correct / total.clamp(min=1)).tolist()
    return {
        "per_position": per_position,
        "acceptance_length": acceptance_length(per_position),
        "mode": "offline",
        "rows": rows,
        "tokens": int(total[0]),
    }


def load_draft(folder: Path, verifier_dir: Path, device: str = "cpu") -> Eagle3DraftModel:
    """Load a draft for inference; the verifier is found in `verifier_dir`, whatever name the config gives it."""
    verifier_weights.install()
    config = Eagle3SpeculatorConfig.from_pretrained(str(folder))
    config.speculators_config.verifier.name_or_path = str(verifier_dir)
    attention, _ = choose_attention("sdpa", "cuda" if device.startswith("cuda") else "cpu")
    config.transformer_layer_config._attn_implementation = attention
    model = Eagle3DraftModel.from_pretrained(str(folder), config=config)
    return model.to(device).eval()


def validation_batches(
    dataset_dir: Path, dtype: torch.dtype, pack_length: int, max_rows: int | None = None
) -> Iterator[tuple[dict[str, Any], int]]:
    """Packs of validation rows as the trainer's collation makes them, each with its number of rows."""
    meta = json.loads((dataset_dir / "meta.json").read_text())
    dataset = ArrowDataset(
        max_len=pack_length,
        datapath=str(dataset_dir),
        on_missing="raise",
        train_ratio=split_ratio(meta["num_train"], meta["num_val"]),
        split="val",
        hidden_states_dtype=dtype,
    )
    collate = CollateFn(
        pack_length,
        meta["hidden_size"],
        num_target_layers=len(meta["layer_ids"]) - 1,
        dtype=dtype,
        preprocess=shift_batch,
    )
    for pack in _packs(dataset.approx_lengths[:max_rows], pack_length):
        yield collate([dataset[index] for index in pack]), len(pack)


def _packs(lengths: list[int], limit: int) -> Iterator[list[int]]:
    """Consecutive rows whose tokens fit together; a row above the limit is alone."""
    pack: list[int] = []
    filled = 0
    for index, length in enumerate(lengths):
        if pack and filled + length > limit:
            yield pack
            pack, filled = [], 0
        pack.append(index)
        filled += length
    if pack:
        yield pack


class _Oracle:
    """The verifier's own best token at a state, over its whole vocabulary."""

    def __init__(self, verifier_dir: Path, device: str) -> None:
        names = ["embed_tokens.weight", "lm_head.weight", "model.norm.weight"]
        tensors = verifier_weights.load_verifier_tensors(names, str(verifier_dir))
        head = tensors.get("lm_head.weight", tensors["embed_tokens.weight"])
        text = json.loads((verifier_dir / "config.json").read_text())
        text = text.get("text_config", text)
        self.eps = float(text.get("rms_norm_eps") or DEFAULT_NORM_EPS)
        self.head, self.norm = head.to(device), tensors["model.norm.weight"].to(device)

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """Token ids [S] for states [S, H] before the final norm."""
        normed = torch.nn.functional.rms_norm(states.float(), states.shape[-1:], self.norm.float(), self.eps)
        return (normed.to(self.head.dtype) @ self.head.T).argmax(dim=-1)


@torch.no_grad()
def _count(
    model: Eagle3DraftModel, oracle: _Oracle, batch: dict[str, Any], k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Accepted and possible proposals by position, both [k]; aligned as the trainer's validation aligns them."""
    targets = oracle(batch["verifier_last_hidden_states"][0])
    mask = batch["loss_mask"][0].bool()
    position = batch["position_ids"][0]  # in the row, from 1
    inputs = {name: batch[name] for name in ("hidden_states", "input_ids", "document_ids", "position_ids")}
    proposals = model(**inputs, ttt_steps=k)
    hits, seen = torch.zeros(k, dtype=torch.float64), torch.zeros(k, dtype=torch.float64)
    accepted = mask.clone()
    for step in range(k):
        reach = len(targets) - step
        token = proposals[step][0, :reach]
        proposed = mask[step:] & (position[step:] > step)  # else the proposal began in the row before
        if model.d2t is not None:
            token = token + model.d2t[token]
        accepted = accepted[:reach] & (token == targets[step:])
        hits[step] = (accepted & proposed).sum()
        seen[step] = proposed.sum()
    return hits, seen
