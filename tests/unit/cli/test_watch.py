"""The view of a job: every state can be drawn, and what matters is in it."""

import io
import json
import time
from collections.abc import Callable

import httpx
import pytest
from rich.console import Console

from services.cli.client import EyrieClient
from services.cli.job_text import duration, render_job
from services.cli.watch import watch
from services.gateway.job_view import job_view
from shared.errors import StatusReason
from shared.presets import resolve
from shared.schemas.job import ErrorDetail, JobRecord, JobStatus, Progress, Stage, StageStatus, now


def job(status: JobStatus, **fields) -> dict:
    """A job that trains, as the API shows it."""
    moment = now()
    record = JobRecord(
        id="job_x",
        spec=resolve({"name": "mine", "data": {"dataset": "ds_x"}}),
        created_at=moment,
        updated_at=moment,
        status=status,
        **fields,
    )
    record.stage(Stage.PREPARE).status = StageStatus.SUCCEEDED
    record.stage(Stage.PREPARE).seconds = 3
    train = record.stage(Stage.TRAIN)
    train.status = StageStatus.RUNNING
    train.progress = Progress(
        done=5, total=20, unit="steps", rate=2.5, eta_s=65, metrics={"loss": 2.3456789, "other": 1}, updated_at=moment
    )
    return job_view(record, 2).model_dump(mode="json")


def drawn(document: dict) -> str:
    console = Console(file=io.StringIO(), width=160, force_terminal=True, color_system=None)
    console.print(render_job(document))
    return console.file.getvalue()


@pytest.mark.parametrize("status", JobStatus)
def test_every_status_can_be_drawn(status: JobStatus) -> None:
    assert status.value in drawn(job(status))


def test_a_finished_job_shows_its_acceptance_cut_and_not_rounded() -> None:
    document = job(JobStatus.SUCCEEDED)
    figures = {"acceptance_length": 3.4439, "per_position": [0.8869, 0.8, 0.7], "mode": "vllm"}
    evaluate = next(stage for stage in document["stages"] if stage["name"] == "evaluate")
    evaluate["summary"] = {"num_speculative_tokens": 3, "suites": {"heldout": {"trained": figures}}}
    text = drawn(document)
    for part in ("heldout", "trained", "3.443", "0.886", "vllm"):
        assert part in text


def test_the_running_stage_shows_count_rate_time_left_and_loss() -> None:
    text = drawn(job(JobStatus.RUNNING))
    for part in ("train", "5/20 steps", "2.50/s", "ETA 1m05s", "loss 2.346"):
        assert part in text


def test_an_error_shows_reason_place_and_what_to_do() -> None:
    error = ErrorDetail(reason=StatusReason.OOM_GPU, message="no [memory]", where="train", hint="shorten packs")
    assert "oom_gpu: train: no [memory] (shorten packs)" in drawn(job(JobStatus.FAILED, error=error))


def watched(
    next_job: Callable[[str], dict], events: httpx.Response | None = None, each: Callable[[dict], None] | None = None
) -> tuple[str, str]:
    """The last status and what was printed, of a job as `next_job` gives it, which is told what is printed so far."""
    console = Console(file=io.StringIO(), width=200)

    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/events"):
            return events or httpx.Response(406, json={"detail": "no streams"})
        return httpx.Response(200, json=next_job(console.file.getvalue()))

    with EyrieClient("http://gateway", retry_wait_s=0, transport=httpx.MockTransport(handler)) as client:
        found = watch(client, "job_x", console, poll_s=0.01, each=each)
    return found["status"], console.file.getvalue()


def test_plain_lines_say_each_thing_once_and_watching_outlives_a_gateway_that_is_away() -> None:
    answers = [
        job(JobStatus.QUEUED),
        job(JobStatus.RUNNING),
        *[None] * 5,
        job(JobStatus.RUNNING),
        job(JobStatus.SUCCEEDED),
    ]

    def next_job(_: str) -> dict:
        if (answer := answers.pop(0)) is None:
            raise httpx.ConnectError("refused")
        return answer

    status, text = watched(next_job)
    assert status == "succeeded"
    assert text.count("job job_x running") == 1
    assert text.count("prepare succeeded in 3s") == 1
    assert "place 2 in line" in text
    assert "trying again" in text


def test_warnings_are_said_as_they_come_and_a_flood_of_them_is_cut() -> None:
    warnings = [{"id": f"{n}-0", "type": "warning", "data": {"stage": "train", "message": f"w{n}"}} for n in range(9)]
    stream = "".join(f"id: {item['id']}\nevent: warning\ndata: {json.dumps(item)}\n\n" for item in warnings)
    headers = {"content-type": "text/event-stream"}
    events = httpx.Response(200, text=f"{stream}event: end\ndata: {{}}\n\n", headers=headers)
    deadline = time.monotonic() + 60

    def next_job(printed: str) -> dict:
        over = "more warnings" in printed or time.monotonic() > deadline
        return job(JobStatus.SUCCEEDED if over else JobStatus.RUNNING)

    _, text = watched(next_job, events)
    assert [f"warning: train: w{n}" in text for n in range(9)] == [True] * 5 + [False] * 4
    assert text.count("more warnings of train: eyrie events job_x --type warning") == 1


def test_programs_get_the_job_when_something_has_changed_and_not_for_each_look() -> None:
    seen: list[str] = []
    states = [JobStatus.QUEUED, JobStatus.RUNNING, JobStatus.RUNNING, JobStatus.FAILED]
    watched(lambda _: job(states.pop(0)), each=lambda job: seen.append(job["status"]))
    assert seen == ["queued", "running", "failed"]


@pytest.mark.parametrize(("seconds", "text"), [(None, ""), (0.4, "0s"), (59.9, "59s"), (65, "1m05s"), (7620, "2h07m")])
def test_durations_are_readable(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.data
def test_what_is_done_while_nothing_counts_is_shown() -> None:
    document = job(JobStatus.RUNNING)
    train = next(stage for stage in document["stages"] if stage["name"] == "train")
    train["progress"] |= {"done": 0, "total": 0, "activity": "starting vLLM"}
    text = drawn(document)
    assert "starting vLLM" in text
    assert "0/0" not in text
