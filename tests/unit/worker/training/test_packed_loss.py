"""The loss is a mean over supervised positions: packing, padding, prompts and masks do not move it."""

import copy
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from speculators.losses.utils import resolve_loss_config
from speculators.models.eagle3 import core
from speculators.models.eagle3.data import shift_batch
from speculators.train.data import CollateFn
from speculators.train.utils import normalize_counted_metrics

from services.worker.training import packed_loss
from tests.support import synthetic_rows as rows
from tests.unit.worker.training.conftest import Inputs

pytestmark = pytest.mark.data

PACK = 192
STEPS = 3


@pytest.fixture
def model(make_draft: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(core, "compute_metrics", core.compute_metrics)  # put back what install() replaces
    packed_loss.install()
    return make_draft()[0].eval()


@pytest.fixture(scope="module")
def some(inputs: Inputs) -> list[rows.Row]:
    """Rows of 10 to 40 tokens with prompts from one token to nearly all of the row."""
    made = rows.made_rows(inputs.verifier, 8, seed=3, mean_length=25)
    prompts = [1, 2, 3, 4, 6, 8, 9, 5]
    for row, prompt in zip(made, prompts, strict=True):
        row.loss_mask = (torch.arange(len(row.input_ids)) >= prompt).long()
    return made


def sample(row: rows.Row) -> dict[str, Any]:
    """A row as speculators' dataset hands it over."""
    count = len(row.input_ids)
    return {
        "hidden_states": row.states[:, :-1].flatten(1),
        "input_ids": row.input_ids,
        "verifier_last_hidden_states": row.states[:, -1],
        "loss_mask": row.loss_mask,
        "lengths": torch.tensor([count]),
        "position_ids": torch.arange(count),
    }


def pack(part: Sequence[rows.Row], length: int = PACK) -> dict[str, Any]:
    collate = CollateFn(length, rows.HIDDEN, num_target_layers=3, dtype=torch.float32, preprocess=shift_batch)
    batch = collate([sample(row) for row in part])
    batch.pop("error_records")
    return batch


@torch.no_grad()
def measured(model: Any, packs: Sequence[dict[str, Any]], decay: float = 1.0) -> dict[str, float]:
    """Validation's numbers over packs, as trainer and library add them up."""
    config = resolve_loss_config("kl_div", "eager")
    sums: dict[str, torch.Tensor] = {}
    for batch in packs:
        numbered = packed_loss.numbered_mask(batch)
        _, _, metrics = model(**numbered, ttt_steps=STEPS, ttt_step_loss_decay=decay, loss_config=config)
        packed_loss.weigh_by_positions(metrics)
        for name, value in metrics.items():
            sums[name] = sums.get(name, torch.zeros(())) + value.float()
    values = normalize_counted_metrics({name: float(value) for name, value in sums.items()})
    return {**values, "loss": packed_loss.total_loss(values)}


def one_by_one(model: Any, part: Sequence[rows.Row]) -> dict[str, float]:
    return measured(model, [pack([row]) for row in part])


def same(one: dict[str, float], other: dict[str, float]) -> bool:
    kept = [name for name in one if name.startswith(("loss", "full_acc"))]
    return all(one[name] == pytest.approx(other[name], rel=1e-4, abs=1e-6) for name in kept)


def test_one_row_or_four_or_all_in_a_pack_give_the_same_loss(model: Any, some: list[rows.Row]) -> None:
    alone = one_by_one(model, some)
    assert alone["loss"] > 0.1
    for size in (2, 4, 8):
        packs = [pack(some[start : start + size], 400) for start in range(0, len(some), size)]
        assert same(measured(model, packs), alone)
    shuffled = random.Random(5).sample(some, len(some))
    assert same(measured(model, [pack(shuffled, 400)]), alone)


def test_the_training_loss_is_the_same_mean_over_the_packs_positions(model: Any, some: list[rows.Row]) -> None:
    config = resolve_loss_config("kl_div", "eager")
    numbered = packed_loss.numbered_mask(pack(some, 400))
    _, loss, _ = model(**numbered, ttt_steps=STEPS, ttt_step_loss_decay=1.0, loss_config=config)
    assert loss.item() == pytest.approx(one_by_one(model, some)["loss"], rel=1e-4)


def test_padding_changes_nothing(model: Any, some: list[rows.Row]) -> None:
    tight = sum(len(row.input_ids) - 1 for row in some[:3])
    assert same(measured(model, [pack(some[:3], tight)]), measured(model, [pack(some[:3], tight + 300)]))


def test_prompts_do_not_count_however_long_they_are(model: Any, some: list[rows.Row]) -> None:
    """What a long prompt adds to a pack is not in the mean: without it the same positions are left."""
    short, long = copy.copy(some[7]), copy.copy(some[6])
    long.loss_mask = torch.zeros_like(long.loss_mask)
    assert same(measured(model, [pack([short, long])]), measured(model, [pack([short])]))
    assert same(measured(model, [pack([long, short])]), measured(model, [pack([short])]))


def test_more_or_less_mask_leaves_each_positions_loss_alone(model: Any, some: list[rows.Row]) -> None:
    """Two halves of a mask, weighed by their positions, give the whole: nothing else enters the mean."""
    row = copy.copy(some[5])
    supervised = torch.nonzero(row.loss_mask).flatten()
    halves = []
    for part in (supervised[::2], supervised[1::2]):
        half = copy.copy(row)
        half.loss_mask = torch.zeros_like(row.loss_mask)
        half.loss_mask[part] = 1
        halves.append((len(part), measured(model, [pack([half])])))
    whole = measured(model, [pack([row])])
    mean = sum(count * values["loss_0"] for count, values in halves) / len(supervised)
    assert whole["loss_0"] == pytest.approx(mean, rel=1e-4)


@pytest.mark.parametrize("mask", ["none", "only the first token", "only the last token"])
def test_a_pack_with_next_to_nothing_supervised_has_a_finite_loss_and_gradient(
    model: Any, some: list[rows.Row], mask: str
) -> None:
    row = copy.copy(some[0])
    row.loss_mask = torch.zeros_like(row.loss_mask)
    if mask == "only the first token":
        row.loss_mask[0] = 1
    elif mask == "only the last token":
        row.loss_mask[-1] = 1
    config = resolve_loss_config("kl_div", "eager")
    numbered = packed_loss.numbered_mask(pack([row]))
    _, loss, _ = model.train()(**numbered, ttt_steps=STEPS, ttt_step_loss_decay=1.0, loss_config=config)
    loss.backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert torch.isfinite(loss)
    assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
    assert (float(loss) > 0) == (mask == "only the last token")


def test_a_pack_without_supervised_positions_does_not_lower_the_validation_loss(
    model: Any, some: list[rows.Row]
) -> None:
    blank = copy.copy(some[6])
    blank.loss_mask = torch.zeros_like(blank.loss_mask)
    assert same(measured(model, [pack([some[7]]), pack([blank])]), measured(model, [pack([some[7]])]))


def test_a_step_does_not_pair_a_row_with_the_one_before_it(model: Any, some: list[rows.Row]) -> None:
    """In step s the first s positions of a row have no proposal of their own: they are in no count."""
    row = copy.copy(some[0])
    row.loss_mask = torch.ones_like(row.loss_mask)
    config = resolve_loss_config("kl_div", "eager")
    numbered = packed_loss.numbered_mask(pack([some[7], row]))
    _, _, metrics = model(**numbered, ttt_steps=STEPS, ttt_step_loss_decay=1.0, loss_config=config)
    others, own = int(some[7].loss_mask[1:].sum()), len(row.input_ids) - 1
    for step in range(STEPS):
        assert int(metrics[f"full_acc_{step}_total"]) == others + own - step
