"""One real pipeline for all end-to-end tests: real Redis, gateway, worker, vLLM and speculators, over REST."""

import asyncio
import itertools
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from services.cli.client import EyrieClient
from services.worker.data.exchange import take_states
from services.worker.data.rows import read_shards
from services.worker.data.verifier_client import VerifierClient
from shared.artifact_store import LocalArtifactStore
from shared.schemas.job import JobRecord, Stage
from shared.schemas.manifest import Manifest
from tests.support.recording_proxy import Recording, recording_proxy
from tools import local_stack
from tools.demo import PROMPTS

ENDED = ("succeeded", "failed", "cancelled", "paused")
JOB_TIMEOUT_S = 1500
POLL_S = 1.0
REPEATED_ROWS = 8


@dataclass(frozen=True)
class Pipeline:
    """A finished job and everything that it left."""

    job: dict[str, Any]
    record: JobRecord
    store: LocalArtifactStore
    recording: Recording
    draft: Path
    inspection: dict[str, Any]
    repeats: list[list[dict[str, Any]]]

    def manifest(self, stage: Stage) -> Manifest:
        return Manifest.model_validate_json(self.store.read(self.record.stage(stage).manifest or ""))

    def out(self, stage: Stage) -> Path:
        """The published folder of a stage."""
        return self.store.path(self.manifest(stage).root)

    def generated(self) -> list[dict[str, Any]]:
        """Rows of the generate stage."""
        shards = sorted(self.out(Stage.GENERATE).glob("rows_*/rows.jsonl"))
        return [json.loads(line) for shard in shards for line in shard.read_text(encoding="utf-8").splitlines()]

    def index(self) -> list[dict[str, Any]]:
        """Rows of the dataset that was trained on, in the order of its files."""
        path = self.out(Stage.CAPTURE) / "dataset" / "rows.jsonl"
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="session")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """Run the main job once with the shipped prompts."""
    folder = tmp_path_factory.mktemp("e2e")
    stack = local_stack.start(folder)
    try:
        local_stack.wait_for_verifier(stack)
        with recording_proxy(stack.verifier_url) as recording, EyrieClient(stack.gateway_url) as client:
            dataset = client.upload_dataset(PROMPTS)
            inspection = inspected(client, dataset["id"])
            document = {
                "preset": "tiny",
                "name": "e2e",
                "data": {"dataset": dataset["id"]},
                "verifier": {"endpoint": recording.url},
            }
            job = finished(client, client.create_job(document)["id"])
            if job["status"] != "succeeded":
                raise AssertionError(f"{job['error']}\n{client.get_logs(job['id'], tail=60)}")
            draft = folder / "downloaded"
            client.download_draft(job["draft"], draft)
            repeats = asyncio.run(repeated_states(stack.verifier_url, folder, record_of(folder, job["id"])))
    finally:
        local_stack.stop(stack)
    store = LocalArtifactStore(folder / "store")
    yield Pipeline(job, record_of(folder, job["id"]), store, recording, draft, inspection, repeats)
    shutil.rmtree(folder, ignore_errors=True)


def record_of(folder: Path, job_id: str) -> JobRecord:
    """A finished job's record."""
    store = LocalArtifactStore(folder / "store")
    return JobRecord.model_validate_json(store.read(f"jobs/{job_id}/terminal.json"))


async def repeated_states(url: str, folder: Path, record: JobRecord) -> list[list[dict[str, Any]]]:
    """Tensors of eight rows' prefills: one by one, together, and together again."""
    manifest = record.stage(Stage.GENERATE).manifest or ""
    root = Manifest.model_validate_json((folder / "store" / manifest).read_bytes()).root
    rows = [row for row, _ in itertools.islice(read_shards(folder / "store" / root), REPEATED_ROWS)]
    async with VerifierClient(url, None, folder / "exchange", REPEATED_ROWS) as client:
        client.model = await client.check_model()

        async def states(number: int, run: str) -> dict[str, Any]:
            target = folder / f"{run}-{number}.safetensors"
            taken = await client.prefill(rows[number].input_ids, request_id=f"repeat-{run}-{number}")
            await asyncio.to_thread(take_states, taken, target)
            return load_file(target)

        async def all_at_once(run: str) -> list[dict[str, Any]]:
            return await asyncio.gather(*(states(number, run) for number in range(len(rows))))

        alone = [await states(number, "alone") for number in range(len(rows))]
        return [alone, await all_at_once("together"), await all_at_once("again")]


def inspected(client: EyrieClient, dataset: str) -> dict[str, Any]:
    """Inspect a dataset as the job will read it."""
    deadline = time.monotonic() + JOB_TIMEOUT_S
    while time.monotonic() < deadline:
        found = client.inspect_dataset(dataset, {"preset": "tiny"}, wait_s=20)
        if found["status"] == "finished":
            return found
    raise AssertionError(f"the inspection did not end within {JOB_TIMEOUT_S} s: {found}")


def finished(client: EyrieClient, job_id: str) -> dict[str, Any]:
    """Wait until a job has ended, and return it."""
    deadline = time.monotonic() + JOB_TIMEOUT_S
    while time.monotonic() < deadline:
        job = client.get_job(job_id)
        if job["status"] in ENDED:
            return job
        time.sleep(POLL_S)
    raise AssertionError(f"the job did not end within {JOB_TIMEOUT_S} s: {job['stages']}")
