"""Logs over HTTP: pages of lines, and a stream that follows a job through its stages and attempts."""

import threading
from collections.abc import Callable

import httpx
import pytest

from shared.artifact_store import LocalArtifactStore
from shared.job_store import JobStore
from shared.schemas.job import JobRecord, JobStatus, Stage, StageStatus
from shared.stage_logs import LogName, begin_log
from tests.support.gateway_process import GatewayProcess
from tests.support.sse_client import EventSource, Message

pytestmark = pytest.mark.api


class Writer:
    """Writes logs as a worker does, one run after another."""

    def __init__(self, jobs: JobStore, job_id: str) -> None:
        self.jobs, self.job_id = jobs, job_id

    def begin(self, stage: Stage, attempt: int) -> None:
        def change(record: JobRecord) -> None:
            record.status = JobStatus.RUNNING
            for entry in record.stages:
                if entry.status == StageStatus.RUNNING:
                    entry.status = StageStatus.SUCCEEDED
            record.stage(stage).status, record.stage(stage).attempt = StageStatus.RUNNING, attempt

        self.jobs.update(self.job_id, change)
        self.path = begin_log(self.jobs.artifacts, self.job_id, LogName(stage, attempt))

    def write(self, content: bytes) -> None:
        with self.path.open("ab") as log:
            log.write(content)

    def end(self, status: JobStatus) -> None:
        def change(record: JobRecord) -> None:
            record.status = status
            for entry in record.stages:
                if entry.status == StageStatus.RUNNING:
                    entry.status = StageStatus.FAILED

        self.jobs.update(self.job_id, change)


@pytest.fixture
def writer(http: httpx.Client, dataset: str, jobs: JobStore) -> Writer:
    return Writer(jobs, http.post("/v1/jobs", json={"data": {"dataset": dataset}}).json()["id"])


def write_all(writer: Writer, meanwhile: Callable[[], None] = lambda: None) -> list[tuple[str, int, str]]:
    """Four runs, one of an earlier stage after a later one; what a reader has to see of them."""
    writer.begin(Stage.PREPARE, 1)
    writer.write(b"one\n 10%\r 90%\r100%\nhalf")
    meanwhile()
    writer.write(b" and half\n")
    writer.begin(Stage.TRAIN, 1)
    writer.write(b"step 1\nkilled in mid-li")
    meanwhile()
    writer.begin(Stage.CAPTURE, 2)
    writer.write(b"again\n")
    writer.begin(Stage.TRAIN, 2)
    writer.write(b"\xff step 1\n" + b"".join(b"step %d\n" % step for step in range(2, 400)))
    writer.end(JobStatus.FAILED)
    first = [("prepare", 1, "one"), ("prepare", 1, "100%"), ("prepare", 1, "half and half")]
    second = [("train", 1, "step 1"), ("train", 1, "killed in mid-li"), ("capture", 2, "again")]
    steps = [("train", 2, f"step {step}") for step in range(2, 400)]
    return [*first, *second, ("train", 2, "\ufffd step 1"), *steps]


def shown(message: Message) -> tuple[str, int, str]:
    assert message.event == "line"
    data = message.json()
    return data["stage"], data["attempt"], data["line"]


def test_a_reader_that_is_cut_off_sees_every_line_once(gateway: GatewayProcess, writer: Writer) -> None:
    source, got = EventSource(f"/v1/jobs/{writer.job_id}/logs"), []
    expected: list[tuple[str, int, str]] = []
    seen = threading.Event()

    def meanwhile() -> None:
        seen.clear()
        assert seen.wait(20)

    producer = threading.Thread(target=lambda: expected.extend(write_all(writer, meanwhile)))
    producer.start()
    while not got or got[-1].event != "end":
        for message in source.read(gateway.url, most=2 if len(got) < 20 else 90):
            got.append(message)
            seen.set()
    producer.join()
    end = got.pop()
    assert end.json() == {"status": "failed"}
    assert [shown(message) for message in got] == expected


def test_pages_of_lines_hold_the_same(http: httpx.Client, writer: Writer) -> None:
    expected, found, params = write_all(writer), [], {"limit": 150}
    headers = {"Accept": "application/json"}
    while True:
        page = http.get(f"/v1/jobs/{writer.job_id}/logs", params=params, headers=headers).json()
        found += page["data"]
        if not page["has_more"]:
            break
        params["after"] = found[-1]["id"]
    assert [(line["stage"], line["attempt"], line["line"]) for line in found] == expected
    assert len({line["id"] for line in found}) == len(found)

    def lines(**params: object) -> list[str]:
        answer = http.get(f"/v1/jobs/{writer.job_id}/logs", params=params, headers=headers)
        return [line["line"] for line in answer.json()["data"]]

    assert lines(tail=399) == [text for _, _, text in expected[-399:]]
    assert lines(tail=401) == [text for _, _, text in expected[-401:]]
    assert lines(stage="train", attempt=1) == ["step 1", "killed in mid-li"]
    assert lines(stage="capture") == ["again"]
    for wrong in ("nonsense", "train-9-0", "evaluate-1-0", "../x-1-0"):
        answer = http.get(f"/v1/jobs/{writer.job_id}/logs", params={"after": wrong}, headers=headers)
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/after")


def test_one_stage_is_followed_to_its_end(gateway: GatewayProcess, writer: Writer) -> None:
    writer.begin(Stage.PREPARE, 1)
    writer.write(b"first\nlast")
    source = EventSource(f"/v1/jobs/{writer.job_id}/logs")
    with source.connect(gateway.url, stage="prepare", follow=True) as messages:
        assert shown(next(messages)) == ("prepare", 1, "first")
        writer.begin(Stage.GENERATE, 1)
        writer.write(b"other\n")
        assert [message.event for message in messages] == ["line", "end"]


def test_text_is_as_before_and_a_log_that_is_not_there_is_404(
    http: httpx.Client, writer: Writer, store: LocalArtifactStore
) -> None:
    write_all(writer)
    text = http.get(f"/v1/jobs/{writer.job_id}/logs", params={"tail": 2}).text
    heads = [line for line in text.splitlines() if line.startswith("==>")]
    assert heads == ["==> prepare-1 <==", "==> capture-2 <==", "==> train-2 <=="]
    assert text.endswith("step 398\nstep 399\n")
    assert http.get(f"/v1/jobs/{writer.job_id}/logs", params={"stage": "vocab"}).status_code == 404
