"""Jobs whose verifier the worker starts itself on (faked) GPUs that training has next, as one host with eight works."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from services.cli.client import EyrieClient
from tests.e2e.conftest import finished
from tools import local_stack
from tools.demo import PROMPTS
from tools.local_stack import Stack


@pytest.fixture
def stack_without_verifier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    monkeypatch.setenv("EYRIE_GPUS", ",".join(f"fake-{number}" for number in range(8)))
    stack = local_stack.start(tmp_path, verifier=False)
    yield stack
    local_stack.stop(stack)


def test_two_jobs_share_one_load_of_a_verifier_on_the_gpus_that_training_has_afterwards(
    stack_without_verifier: Stack,
) -> None:
    stack = stack_without_verifier
    with EyrieClient(stack.gateway_url) as client:
        dataset = client.upload_dataset(PROMPTS)
        host, guest = (client.create_job(document(dataset["id"], seed))["id"] for seed in (1, 2))
        jobs = [finished(client, job_id) for job_id in (host, guest)]
        for job in jobs:
            assert job["status"] == "succeeded", f"{job['error']}\n{client.get_logs(job['id'], tail=60)}"
        drafts = [client.get_draft(job["draft"]) for job in jobs]
        plan = client.plan_job(document(dataset["id"], 3))
    for job, draft in zip(jobs, drafts, strict=True):
        stages = {stage["name"]: stage["summary"] for stage in job["stages"]}
        assert stages["generate"]["with_states"] == 0
        assert stages["capture"]["prefill"] == stages["capture"]["kept"] == stages["generate"]["rows"]
        assert draft["gate"] == "failed"
        assert draft["evaluation"]["mode"] == "offline"
    assert [attempt["reason"] for attempt in jobs[1]["attempts"]] == ["handed_over", None]
    loads = sorted(Path(stack.folder, "store", "jobs").glob("*/logs/verifier-*.log"))
    assert [path.parents[1].name for path in loads] == [host], "one load for both"
    assert plan["verifier_starts"] == 1
    assert plan["loading_seconds"] == pytest.approx(plan["verifier_load_seconds"], abs=0.1)
    assert not [
        p
        for p in psutil.process_iter(["cmdline"])
        if str(stack.folder) in " ".join(p.info["cmdline"] or []) and "vllm" in " ".join(p.info["cmdline"] or [])
    ]


def document(dataset: str, seed: int) -> dict[str, Any]:
    """A job for all eight GPUs, first of its verifier, then of its training."""
    return {
        "preset": "tiny",
        "data": {"dataset": dataset, "limit": 24, "val_ratio": 0.35, "sampling": {"seed": seed}},
        "verifier": {"managed": {"tensor_parallel_size": 8, "max_model_len": 512}},
        "capture": {"mode": "prefill"},
        "train": {"epochs": 1, "gpus": 8},
        "evaluate": {"mode": "offline", "gate": {"min_acceptance_length": 3.9}},
    }
