"""`/metrics`: what the figures say, that reading changes nothing, and that dashboards and alerts name what exists."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import promql_parser
import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from redis import Redis
from redis.exceptions import NoPermissionError

from services.gateway import waiting
from services.gateway.metrics import service_registry
from services.worker.worker_figures import WorkerFigures, worker_registry
from shared import attempts
from shared.artifact_store import LocalArtifactStore
from shared.errors import UserError
from shared.figures import VERIFIER_SECONDS, Tally
from shared.job_store import JobStore
from shared.queue import JobQueue
from shared.schemas.fleet import GpuInfo, WorkerRecord
from shared.schemas.job import ErrorDetail, JobRecord, JobStatus, Stage, now
from shared.schemas.manifest import Manifest
from shared.settings import Settings
from shared.stage_counts import count_stage
from shared.store_room import store_room
from tests.support.gateway_process import gateway_process
from tests.support.stage_runs import job_spec
from tools.embedded_redis import RedisHandle

ROOT = Path(__file__).resolve().parents[3]
OURS = ROOT / "observability"
FROM_PROMETHEUS, FROM_PROMETHEUS_LABELS = {"up"}, {"job", "instance", "le"}


def figures(text: str) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def read(jobs: JobStore, queue: JobQueue) -> dict[str, float]:
    return figures(generate_latest(service_registry(jobs, queue)).decode())


def manifest(stage: Stage, seconds: float, **summary: Any) -> Manifest:
    return Manifest(
        stage=stage,
        key="k",
        token=f"run_{stage}",
        job_id="job_a",
        root="r",
        inputs={},
        parameters={},
        files=[],
        summary=summary,
        seconds=seconds,
        created_at=now(),
    )


def test_a_finished_stage_is_counted_once(jobs: JobStore, queue: JobQueue) -> None:
    books = {"unit": "turns", "taken": 10, "kept": 9, "rejected": {"length": 1}}
    generated = manifest(Stage.GENERATE, 70.0, rows=9, prompt_tokens=300, answer_tokens=900, accounting=books)
    suite = {"trained": {"acceptance_length": 2.6, "mode": "vllm"}, "untrained": {"acceptance_length": None}}
    evaluated = manifest(Stage.EVALUATE, 0.5, suites={"first": suite, "second": {"trained": {"acceptance_length": 4}}})
    for stage in (generated, generated, evaluated, manifest(Stage.PUBLISH, 0.1, gate="passed")):
        count_stage(jobs.redis, stage)
    found = read(jobs, queue)
    assert found["eyrie_stage_seconds_count{stage=generate}"] == 1
    assert found["eyrie_stage_seconds_sum{stage=generate}"] == 70
    assert found["eyrie_stage_seconds_bucket{le=60,stage=generate}"] == 0
    assert found["eyrie_stage_seconds_bucket{le=300,stage=generate}"] == 1
    assert found["eyrie_tokens_total{kind=prompt,stage=generate}"] == 300
    assert found["eyrie_tokens_total{kind=answer,stage=generate}"] == 900
    assert found["eyrie_samples_total{stage=generate}"] == 9
    assert found["eyrie_stage_items_total{outcome=rejected,reason=length,stage=generate,unit=turns}"] == 1
    assert found["eyrie_acceptance_length_sum{draft=trained,mode=vllm}"] == 2.6
    assert [name for name in found if name.startswith("eyrie_acceptance_length_count")] == [
        "eyrie_acceptance_length_count{draft=trained,mode=vllm}"
    ], "the second suite, and a draft without a figure, do not count"
    assert found["eyrie_drafts_published_total{gate=passed}"] == 1


def test_the_end_of_an_attempt_and_of_a_job_is_counted_with_its_reason(jobs: JobStore, queue: JobQueue) -> None:
    before = read(jobs, queue)
    assert before["eyrie_jobs_ended_total{reason=user_error,status=failed}"] == 0
    record = jobs.create(job_spec(Path("/verifier")))
    settings = Settings()

    def run(number: int, change: Any) -> None:
        jobs.update(record.id, lambda found: attempts.begin(found, number, f"run_{number}", "here"))
        jobs.update(record.id, change, token=f"run_{number}")

    run(1, lambda found: attempts.lose(found, settings))
    run(2, attempts.hand_over)
    detail = ErrorDetail.from_error(UserError("no"))
    run(3, lambda found: attempts.fail(found, detail, settings))
    jobs.update(record.id, lambda found: setattr(found, "status_message", "again"))
    after = read(jobs, queue)
    grown = {name: value - before.get(name, 0) for name, value in after.items() if value != before.get(name, 0)}
    assert {name: value for name, value in grown.items() if "ended_total" in name} == {
        "eyrie_attempts_ended_total{reason=worker_lost}": 1,
        "eyrie_attempts_ended_total{reason=handed_over}": 1,
        "eyrie_attempts_ended_total{reason=user_error}": 1,
        "eyrie_jobs_ended_total{reason=user_error,status=failed}": 1,
    }


def test_the_queues_age_is_that_of_the_job_that_has_waited_longest(jobs: JobStore, queue: JobQueue) -> None:
    assert read(jobs, queue)["eyrie_queue_age_seconds{}"] == 0
    old, young = jobs.create(job_spec(Path("/verifier"))), jobs.create(job_spec(Path("/verifier")))
    jobs.update(old.id, lambda found: setattr(found, "created_at", now() - timedelta(hours=2)))
    assert 7200 <= read(jobs, queue)["eyrie_queue_age_seconds{}"] < 7300
    for job in (old, young):
        jobs.update(job.id, lambda found: attempts.begin(found, 1, "run_x", "here"))
        jobs.update(job.id, attempts.succeed)
    assert read(jobs, queue)["eyrie_queue_age_seconds{}"] == 0


def test_a_job_that_an_attempt_has_given_up_waits_since_then(
    jobs: JobStore, queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its status is `running`; jobs that do run keep none that waits out of sight, however many."""
    monkeypatch.setattr(waiting, "OLDEST", 1)
    runs, waits = (jobs.create(job_spec(Path("/verifier"))) for _ in range(2))
    for job in (runs, waits):
        jobs.update(job.id, lambda found: attempts.begin(found, 1, "run_x", "here"))

    def give_up(found: JobRecord) -> None:
        attempts.hand_over(found)
        found.created_at -= timedelta(hours=9)
        found.attempts[-1].started_at -= timedelta(hours=7)
        found.attempts[-1].ended_at -= timedelta(hours=2)

    assert jobs.update(waits.id, give_up).status == JobStatus.RUNNING
    assert 7200 <= read(jobs, queue)["eyrie_queue_age_seconds{}"] < 7300


def test_reading_changes_nothing_in_redis(jobs: JobStore, redis_handle: RedisHandle) -> None:
    """A user of Redis who may only read can read the figures, also while a worker's entry has expired."""
    jobs.redis.sadd("eyrie:workers", "gone")
    jobs.redis.acl_setuser("reader", enabled=True, nopass=True, keys=["*"], categories=["+@read"], commands=["+time"])
    address = redis_handle.url.removeprefix("redis://")
    url = f"redis://reader:any@{address}"
    reader = Redis.from_url(url, decode_responses=True)
    with pytest.raises(NoPermissionError):
        reader.set("x", "1")
    files = sorted(path for path in jobs.artifacts.root.rglob("*") if "staging" not in path.parts)
    found = read(JobStore(reader, jobs.artifacts), JobQueue(url))
    assert found["eyrie_workers{state=idle}"] == 0
    assert jobs.redis.sismember("eyrie:workers", "gone")
    assert sorted(path for path in jobs.artifacts.root.rglob("*") if "staging" not in path.parts) == files


def test_a_store_that_is_not_there_has_no_size_and_is_not_made_by_looking(
    jobs: JobStore, queue: JobQueue, tmp_path: Path
) -> None:
    store = LocalArtifactStore(tmp_path / "volume" / "store")
    gone = JobStore(jobs.redis, store)
    assert [name for name in read(gone, queue) if name.startswith("eyrie_store_bytes")] == []
    assert not store.root.exists()
    assert store_room(store, Settings()).free_bytes > 0, "a new service can plan and start its first stage"
    assert read(gone, queue)["eyrie_store_bytes{kind=total}"] > 0


@pytest.fixture(scope="module")
def known(gateway: Any, tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names of all series that a gateway and a worker show, with what histograms and counters add to them."""
    settings = Settings(worker_metrics_port=9700, store_root=tmp_path_factory.getbasetemp())
    worker = WorkerFigures(settings)
    gpu = GpuInfo(id="GPU-1", name="H200", memory_bytes=1)
    worker.beat(WorkerRecord(id="w", host="h", pid=1, version="1", gpus=[gpu], started_at=now(), seen_at=now()))
    with httpx.Client(base_url=gateway.url) as client:
        texts = [client.get("/metrics").text, generate_latest(worker_registry(worker)).decode()]
    names = set(FROM_PROMETHEUS)
    for kind, name in re.findall(r"^# TYPE (\S+) (\S+)$", "\n".join(texts), re.MULTILINE):
        parts = ("_bucket", "_sum", "_count") if name == "histogram" else ("",)
        names |= {f"{kind}{part}" for part in parts}
    return names


def nodes_of(expression: str) -> Iterator[Any]:
    """The parts of an expression.

    Raises:
        ValueError: it is no PromQL.
    """
    text = expression.replace("$__rate_interval", "5m").replace("$__interval", "5m").replace("$__range", "1h")
    nodes = [promql_parser.parse(text)]
    while nodes:
        node = nodes.pop()
        for part in ("lhs", "rhs", "expr", "param", "vector_selector"):
            nodes += [child] if (child := getattr(node, part, None)) is not None else []
        nodes += getattr(node, "args", None) or []
        yield node


def selectors(expression: str) -> set[str]:
    """Names of the series that an expression reads."""
    return {str(node.name) for node in nodes_of(expression) if isinstance(node, promql_parser.VectorSelector)}


def labels_in(expression: str) -> set[str]:
    """Names of the labels that an expression selects and groups by."""
    names: set[str] = set()
    for node in nodes_of(expression):
        if isinstance(node, promql_parser.VectorSelector):
            names |= {matcher.name for matcher in node.matchers.matchers}
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            names |= set(node.modifier.labels)
    return names


DASHBOARDS = sorted((OURS / "grafana" / "dashboards").glob("*.json"))
RULES = yaml.safe_load((OURS / "prometheus" / "alerts.yaml").read_text())["groups"][0]["rules"]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_reads_series_that_exist(path: Path, known: set[str]) -> None:
    board = json.loads(path.read_text())
    assert board["uid"] == f"eyrie-{path.stem}"
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert expressions
    for expression in expressions:
        assert selectors(expression) <= known, expression


def test_an_expression_selects_and_groups_by_labels_that_its_series_have(jobs: JobStore, queue: JobQueue) -> None:
    worker = WorkerFigures(Settings())
    families = [*service_registry(jobs, queue).collect(), *worker_registry(worker).collect()]
    labels = {family.name: {*getattr(family, "_labelnames", ()), *FROM_PROMETHEUS_LABELS} for family in families}
    boards = [json.loads(path.read_text()) for path in DASHBOARDS]
    expressions = [target["expr"] for board in boards for panel in board["panels"] for target in panel["targets"]]
    for expression in [*expressions, *(rule["expr"] for rule in RULES)]:
        read = {re.sub(r"_(bucket|sum|count|total)$", "", name) for name in selectors(expression)} - FROM_PROMETHEUS
        known = [labels[name] for name in read]
        assert labels_in(expression) <= FROM_PROMETHEUS_LABELS.union(*known), expression


def test_every_series_of_ours_is_on_a_dashboard_or_in_an_alert(known: set[str]) -> None:
    shown = "".join(path.read_text() for path in DASHBOARDS) + json.dumps(RULES)
    families = {re.sub(r"_(bucket|sum|count|total)$", "", name) for name in known if name.startswith("eyrie_")}
    assert {name for name in families if name not in shown} == {"eyrie_worker_info", "eyrie_worker_messages"}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_reads_series_that_exist_and_has_its_runbook(rule: dict[str, Any], known: set[str]) -> None:
    assert selectors(rule["expr"]) <= known, rule["expr"]
    assert rule["labels"]["severity"] in ("info", "warning", "critical")
    assert rule["annotations"]["summary"]
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    headings = re.findall(r"^### (\S+)$\n(\S.*)", (ROOT / page).read_text(), re.MULTILINE)
    assert anchor in {name.lower() for name, first_line in headings if first_line}
    assert rule["alert"].lower() == anchor


def test_no_runbook_is_about_an_alert_that_is_not_there() -> None:
    headings = re.findall(r"^### (\S+)$", (ROOT / "docs" / "runbooks.md").read_text(), re.MULTILINE)
    assert headings == [rule["alert"] for rule in RULES]


def test_provisioning_names_the_dashboards_data_source() -> None:
    provisioned = yaml.safe_load((OURS / "grafana/provisioning/datasources/prometheus.yaml").read_text())
    (source,) = provisioned["datasources"]
    uids = {panel["datasource"]["uid"] for path in DASHBOARDS for panel in json.loads(path.read_text())["panels"]}
    assert uids == {source["uid"]}
    jobs = {
        job["job_name"] for job in yaml.safe_load((OURS / "prometheus/prometheus.yaml").read_text())["scrape_configs"]
    }
    asked = {name for rule in RULES for name in re.findall(r'job="([^"]+)"', rule["expr"])}
    assert asked <= jobs


def test_values_at_a_buckets_end_belong_to_it() -> None:
    tally = Tally()
    tally.observe(VERIFIER_SECONDS, ["chat", "ok"], 0.05)
    tally.observe(VERIFIER_SECONDS, ["chat", "ok"], 1e6)
    assert {json.loads(key)[-1]: amount for key, amount in tally.amounts.items()} == {
        "0.05": 1,
        "+Inf": 1,
        "sum": 1e6 + 0.05,
    }


def test_promtool_agrees_where_there_is_one(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool here")
    folder = tmp_path / "prometheus"
    shutil.copytree(OURS / "prometheus", folder)
    config, key = folder / "prometheus.yaml", tmp_path / "key"
    key.write_text("key")
    config.write_text(config.read_text().replace("/run/secrets/eyrie-api-key", str(key)))
    done = subprocess.run([promtool, "check", "config", str(config)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_gateways_log_has_one_form_down_to_the_requests_and_shows_no_key(
    redis_handle: RedisHandle, tmp_path: Path, form: str
) -> None:
    key = tmp_path / "key"
    key.write_text("eyk_of_this_test_alone")
    with gateway_process(tmp_path, redis_handle.url, log_format=form, api_key_file=str(key)) as process:
        headers = {"Authorization": f"Bearer {key.read_text()}"}
        params = {"api_key": key.read_text()}  # where it does not belong
        assert httpx.get(f"{process.url}/v1/jobs", headers=headers, params=params).status_code != 401
    text = process.log.read_text()
    assert key.read_text() not in text
    lines = [log_line(line, form) for line in text.splitlines()]
    said = [line["message"] for line in lines if line["logger"] == "uvicorn.access"]
    assert any("GET /v1/jobs?api_key=eyk_***" in message for message in said)


def log_line(text: str, form: str) -> dict[str, str]:
    """One line of a gateway's log."""
    if form == "json":
        line = json.loads(text)
        assert line["service"] == "gateway"
        return line
    match = re.fullmatch(r"\d{4}-\d\d-\d\d \S+ [A-Z]+ (?P<logger>\S+) (?P<message>.*)", text)
    assert match, text
    return match.groupdict()
