"""A job whose verifier the worker starts itself, with hidden states by a second pass, judged offline."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from services.cli.client import EyrieClient
from tests.e2e.conftest import finished
from tools import local_stack
from tools.demo import PROMPTS
from tools.local_stack import Stack


@pytest.fixture
def stack_without_verifier(tmp_path: Path) -> Iterator[Stack]:
    stack = local_stack.start(tmp_path, verifier=False)
    yield stack
    local_stack.stop(stack)


def test_a_managed_verifier_is_started_for_its_stages_and_gone_afterwards(stack_without_verifier: Stack) -> None:
    stack = stack_without_verifier
    with EyrieClient(stack.gateway_url) as client:
        dataset = client.upload_dataset(PROMPTS)
        document = {
            "preset": "tiny",
            "data": {"dataset": dataset["id"], "limit": 24},
            "verifier": {"managed": {"max_model_len": 512}},
            "capture": {"mode": "prefill"},
            "train": {"epochs": 1},
            "evaluate": {"mode": "offline", "gate": {"min_acceptance_length": 3.9}},
        }
        job = finished(client, client.create_job(document)["id"])
        assert job["status"] == "succeeded", f"{job['error']}\n{client.get_logs(job['id'], tail=60)}"
        draft = client.get_draft(job["draft"])
    stages = {stage["name"]: stage["summary"] for stage in job["stages"]}
    assert stages["generate"]["with_states"] == 0
    assert stages["capture"]["prefill"] == stages["capture"]["kept"] == stages["generate"]["rows"]
    assert draft["gate"] == "failed"
    assert draft["evaluation"]["mode"] == "offline"
    assert not [
        p
        for p in psutil.process_iter(["cmdline"])
        if str(stack.folder) in " ".join(p.info["cmdline"] or []) and "vllm" in " ".join(p.info["cmdline"] or [])
    ]
