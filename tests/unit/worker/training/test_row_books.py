"""Every row of a dataset is trained on, validated on, or counted with the reason why not; splits are exact."""

import json
import random
import warnings
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from speculators.models.eagle3.data import shift_batch
from speculators.train.data import ArrowDataset
from speculators.train.dataloader import _setup_dataloader, create_train_val_loaders
from speculators.train.distributed_batch_sampler import MultipackDistributedBatchSamplerV2

from services.worker.stage_context import StageContext
from services.worker.training.library_config import split_ratio
from services.worker.training.row_books import mark_reached, row_accounting, trained_batches
from services.worker.training.row_index import first_supervised, learnable_rows, require_learnable_rows
from shared.errors import UserError
from shared.schemas.spec import TrainSpec
from tests.support import synthetic_rows as rows
from tests.unit.worker.training.conftest import Inputs

pytestmark = pytest.mark.data


def layout(folder: Path, entries: list[tuple[str, list[int]]]) -> Path:
    """Write an index of rows: split and loss mask of each."""
    folder.mkdir(exist_ok=True)
    lines = [
        {"split": split, "seq_len": len(mask), "first_supervised": first_supervised(mask)} for split, mask in entries
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def saved(folder: Path, count: int) -> Path:
    """A dataset in speculators' layout whose row i holds the ids [i, i], without states."""
    columns = {"input_ids": [[i, i] for i in range(count)], "loss_mask": [[0, 1]] * count, "seq_len": [2] * count}
    dataset = Dataset.from_dict(columns)
    dataset.set_format("torch", columns=["input_ids", "loss_mask"], output_all_columns=True)
    dataset.save_to_disk(str(folder))
    return folder


def read_back(folder: Path, num_train: int, num_val: int) -> tuple[list[int], list[int]]:
    """The rows of both splits as the trainer's own dataset reads them, by their first id and their file's number."""
    found = []
    for split in ("train", "val"):
        part = ArrowDataset(
            max_len=8,
            datapath=str(folder),
            on_missing="raise",
            split=split,
            train_ratio=split_ratio(num_train, num_val),
        )
        ids = [row[0] for row in part.data.with_format(None)["input_ids"]]
        assert ids == [part._map_to_file_idx(index) for index in range(len(part))]
        found.append(ids)
    return found[0], found[1]


def test_every_split_comes_back_from_the_trainers_loader_disjoint_complete_and_exact(tmp_path: Path) -> None:
    for count in range(2, 61):
        folder = saved(tmp_path / str(count), count)
        for held_out in {
            min(count - 1, max(1, round(Fraction(ratio) * count))) for ratio in (0.05, 0.2, 0.29, 0.58, 0.99)
        }:
            train, val = read_back(folder, count - held_out, held_out)
            assert (train, val) == (list(range(count - held_out)), list(range(count - held_out, count)))


def test_the_plain_ratio_would_lose_a_row_where_ours_does_not() -> None:
    """Why `split_ratio` exists: the library's `int(n * ratio)` with the ratio as people write it."""
    moved = [(n, k) for n in range(2, 200) for k in range(1, n) if int(n * (k / n)) != k]
    assert moved
    assert all(int(n * split_ratio(k, n - k)) == k for n, k in moved)


def test_the_loaders_hand_over_every_row_of_both_splits_once_an_epoch(inputs: Inputs) -> None:
    meta = json.loads((inputs.dataset / "meta.json").read_text())
    train, val = create_train_val_loaders(
        data_path=str(inputs.dataset),
        total_seq_len=128,
        hidden_states_dtype=torch.float32,
        vllm_endpoint="",
        on_missing="raise",
        verifier_name_or_path="",
        request_timeout=None,
        max_retries=0,
        generation_validation_retries=0,
        max_consecutive_generation_failures=1,
        hidden_size=rows.HIDDEN,
        num_target_layers=3,
        num_workers=0,
        prefetch_factor=1,
        preprocess=shift_batch,
        train_data_ratio=split_ratio(meta["num_train"], meta["num_val"]),
    )
    for loader, count in ((train, meta["num_train"]), (val, meta["num_val"])):
        packed = [int(index) for batch in loader.batch_sampler for index in batch]
        assert sorted(packed) == list(range(count))
        documents = sum(int(batch["document_ids"].max()) + 1 for batch in loader)
        assert documents == count


def sampler(lengths: list[int], ranks: int, rank: int, pack: int = 64) -> MultipackDistributedBatchSamplerV2:
    return MultipackDistributedBatchSamplerV2(batch_max_length=pack, lengths=lengths, num_replicas=ranks, rank=rank)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_rows_that_did_not_fill_all_ranks_or_came_too_late_are_found(ranks: int) -> None:
    rng = random.Random(ranks)
    lengths = [rng.randint(4, 60) for _ in range(41)]
    reached = np.zeros(len(lengths), dtype=bool)
    steps = 3
    for rank in range(ranks):
        own = sampler(lengths, ranks, rank)
        reached |= mark_reached(trained_batches(own._generate_batches, steps), len(lengths))
    expected = {
        int(i) for rank in range(ranks) for b in sampler(lengths, ranks, rank)._generate_batches(0)[:3] for i in b
    }
    assert set(np.flatnonzero(reached)) == expected
    books = row_accounting(reached.tolist(), [True] * len(lengths))
    assert (books.taken, books.kept) == (41, len(expected))
    assert books.rejected == ({"not_reached": 41 - len(expected)} if len(expected) < 41 else {})


def test_steps_beyond_an_epoch_go_on_in_the_next(inputs: Inputs) -> None:
    own = sampler([30] * 10, 1, 0)
    batches = list(trained_batches(own._generate_batches, 7))
    assert len(batches) == 7
    assert [b.tolist() for b in batches[5:]] == [b.tolist() for b in own._generate_batches(1)[:2]]


@pytest.mark.parametrize(
    ("mask", "pack", "left"),
    [
        ([0] * 5 + [1] * 5, 4, False),
        ([0] * 5 + [1] * 5, 5, True),
        ([1] + [0] * 9, 8, False),  # nothing foretells the first token
        ([1, 1, 0, 0], 1, True),
        ([0] * 10, 64, False),
    ],
)
def test_what_is_left_of_a_cut_row_is_what_the_trainers_loader_leaves(
    tmp_path: Path, mask: list[int], pack: int, left: bool
) -> None:
    dataset = layout(tmp_path / "d", [("train", mask), ("val", [0, 1])])
    assert learnable_rows(dataset, pack)["train"] == [left]
    count = len(mask)
    part = {
        "input_ids": torch.arange(count),
        "hidden_states": torch.zeros(count, 3),
        "verifier_last_hidden_states": torch.zeros(count, 1),
        "loss_mask": torch.tensor(mask),
        "lengths": torch.tensor([count]),
        "position_ids": torch.arange(count),
    }

    class One(torch.utils.data.Dataset):  # type: ignore[type-arg]
        approx_lengths = [count]  # noqa: RUF012
        hidden_states_dtype = torch.float32

        def __getitem__(self, _index: int) -> dict[str, torch.Tensor]:
            return dict(part)

        def __len__(self) -> int:
            return 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = _setup_dataloader(One(), pack, 1, num_workers=0, num_target_layers=3, preprocess=shift_batch)
        batch = next(iter(loader))
    assert bool(batch["loss_mask"].any()) == left


def test_a_row_is_kept_cut_off_or_not_reached_and_the_books_balance() -> None:
    books = row_accounting([True, True, False, False], [True, False, True, False])
    assert (books.taken, books.kept, books.rejected) == (4, 1, {"cut_off": 2, "not_reached": 1})
    assert row_accounting([True], [True]).rejected == {}


@pytest.mark.parametrize(
    ("entries", "train", "pointer"),
    [
        ([("train", [0, 0, 0]), ("val", [0, 1])], {}, "/train/pack_length"),
        ([("train", [0, 1]), ("val", [1, 0])], {}, "/train/pack_length"),
        ([("train", [0] * 20 + [1]), ("val", [0, 1])], {"pack_length": 16}, "/train/pack_length"),
        ([("train", [0, 1])], {}, "/train/pack_length"),
        ([("train", [0, 1])] * 9 + [("val", [0, 1])] * 3, {"gpus": 4}, "/train/gpus"),
        ([("train", [0, 1])] * 3 + [("val", [0, 1])] * 9, {"gpus": 4}, "/train/gpus"),
    ],
)
def test_training_without_a_supervised_token_or_a_row_for_every_gpu_is_refused_from_the_index_alone(
    tmp_path: Path, entries: list[tuple[str, list[int]]], train: dict[str, int], pointer: str
) -> None:
    with pytest.raises(UserError) as refused:
        require_learnable_rows(layout(tmp_path / "d", entries), TrainSpec(**{"gpus": 1, **train}))
    assert refused.value.where == pointer
    assert refused.value.hint


def test_the_index_of_a_dataset_says_of_every_row_where_it_begins_to_count(
    inputs: Inputs, context: Callable[..., StageContext]
) -> None:
    require_learnable_rows(inputs.dataset, TrainSpec(gpus=8))
    able = learnable_rows(inputs.dataset, 256)
    assert (len(able["train"]), len(able["val"])) == (60, 10)
    assert all(able["train"] + able["val"])
