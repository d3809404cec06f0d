"""The registry of drafts over HTTP: filters, tags, deletion, comparison, and what happens when two ask at once."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from services.gateway.problems import Problem
from services.gateway.registry.drafts import DELETIONS, DraftRegistry
from services.gateway.registry.tags import MOVES_KEPT
from shared.job_store import JobStore
from shared.presets import resolve
from shared.retention import DAY_S, Retention
from shared.schemas.job import JobStatus
from tests.support.published_drafts import DATASET, figures, publish, report

PLAIN = report(heldout={"trained": figures([0.8, 0.5, 0.2])})


@pytest.fixture
def registry(store):
    return DraftRegistry(store)


@pytest.fixture(autouse=True)
def empty_registry(store, jobs):
    for folder in ("drafts", "draft-tags", "deleted-drafts", DELETIONS):
        store.delete(folder)


def ids(http: httpx.Client, **query: object) -> list[str]:
    answer = http.get("/v1/drafts", params=query)
    assert answer.status_code == 200, answer.text
    return [draft["id"] for draft in answer.json()["data"]]


def refused(answer: httpx.Response, status: int, *words: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    for word in words:
        assert word in answer.json()["detail"]


def test_drafts_are_filtered_and_paged_newest_first(http: httpx.Client, jobs: JobStore) -> None:
    first = publish(jobs, report("passed"), verifier="v1")
    second = publish(jobs, report("failed"), verifier="v2")
    third = publish(jobs, report("none"), verifier="v1")
    assert ids(http) == [third.id, second.id, first.id]
    assert ids(http, verifier="v1") == [third.id, first.id]
    assert ids(http, gate="failed") == [second.id]
    assert ids(http, job=first.job_id) == [first.id]
    assert ids(http, verifier="v1", gate="failed") == []
    http.put(f"/v1/drafts/{first.id}/tags/production")
    assert ids(http, tag="production") == [first.id]
    assert ids(http, tag="other") == []
    page = http.get("/v1/drafts", params={"verifier": "v1", "limit": 1}).json()
    assert (page["data"][0]["id"], page["has_more"]) == (third.id, True)
    assert ids(http, verifier="v1", after=third.id) == [first.id]
    assert http.get("/v1/drafts", params={"after": "draft_x"}).status_code == 422
    assert http.get("/v1/drafts", params={"gate": "perhaps"}).status_code == 422


def test_a_tag_names_one_draft_and_moves(http: httpx.Client, jobs: JobStore) -> None:
    one, other = publish(jobs, report("passed")), publish(jobs, PLAIN)
    assert http.put(f"/v1/drafts/{one.id}/tags/production").json()["tags"] == ["production"]
    assert http.put(f"/v1/drafts/{one.id}/tags/a.b-c_1").json()["tags"] == ["a.b-c_1", "production"]
    assert http.get("/v1/drafts/production").json()["id"] == one.id
    assert http.get("/v1/drafts/production/files").json()["data"][0]["path"] == "model.safetensors"
    assert http.put(f"/v1/drafts/{other.id}/tags/production").json()["tags"] == ["production"]
    assert http.get("/v1/drafts/production").json()["id"] == other.id
    assert http.get(f"/v1/drafts/{one.id}").json()["tags"] == ["a.b-c_1"]
    assert http.get(f"/v1/jobs/{other.job_id}/draft").json()["tags"] == ["production"]
    absent = http.delete(f"/v1/drafts/{one.id}/tags/production")
    refused(absent, 404, one.id, "production")
    assert absent.json()["errors"][0]["pointer"] == "/tag"
    assert http.delete(f"/v1/drafts/{other.id}/tags/production").json()["tags"] == []
    refused(http.get("/v1/drafts/production"), 404, "production")
    refused(http.delete("/v1/drafts/production/tags/production"), 404)


def test_a_draft_that_missed_its_gate_is_not_promoted(http: httpx.Client, jobs: JobStore) -> None:
    good, bad = publish(jobs, report("passed")), publish(jobs, report("failed"))
    http.put(f"/v1/drafts/{good.id}/tags/production")
    refused(http.put(f"/v1/drafts/{bad.id}/tags/production"), 409, "missed its gate", "1.1 is below 2")
    assert http.get("/v1/drafts/production").json()["id"] == good.id


@pytest.mark.parametrize("tag", ["Production", "-x", "a b", "x" * 65, "draft_00000000000000000000", "compare", "ä"])
def test_what_is_no_tag_is_refused(http: httpx.Client, jobs: JobStore, tag: str) -> None:
    draft = publish(jobs, PLAIN)
    for method in ("PUT", "DELETE"):
        answer = http.request(method, f"/v1/drafts/{draft.id}/tags/{tag}")
        refused(answer, 422)
        assert answer.json()["errors"][0]["pointer"] == "/tag"
    assert http.get(f"/v1/drafts/{tag}").status_code in (404, 422)


def test_tags_survive_an_emptied_redis(http: httpx.Client, jobs: JobStore) -> None:
    draft = publish(jobs, PLAIN)
    http.put(f"/v1/drafts/{draft.id}/tags/production")
    jobs.redis.flushall()
    assert http.get("/v1/drafts/production").json()["id"] == draft.id


def test_of_many_who_tag_at_once_exactly_one_is_last(http: httpx.Client, jobs: JobStore, store) -> None:
    drafts = [publish(jobs, PLAIN) for _ in range(4)]
    start = threading.Barrier(8)

    def put(number: int) -> int:
        start.wait()
        codes = [http.put(f"/v1/drafts/{drafts[(number + i) % 4].id}/tags/hot").status_code for i in range(6)]
        return max(codes)

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(put, range(8))) <= {200, 409}
    holders = [draft["id"] for draft in http.get("/v1/drafts").json()["data"] if draft["tags"] == ["hot"]]
    assert holders == [http.get("/v1/drafts/hot").json()["id"]]
    assert len(list(store.list("draft-tags/hot"))) <= MOVES_KEPT + 8, "old moves are cleared away"


def test_a_deleted_draft_is_gone_its_job_says_so_and_nothing_brings_it_back(http: httpx.Client, jobs: JobStore) -> None:
    draft = publish(jobs, PLAIN)
    assert http.delete(f"/v1/drafts/{draft.id}").json() == {"id": draft.id, "object": "draft", "deleted": True}
    jobs.redis.flushall()
    assert ids(http) == []
    assert http.get(f"/v1/jobs/{draft.job_id}").json()["draft"] == draft.id
    assert http.get("/v1/jobs").json()["data"], "the records are rebuilt"
    for address in (f"/v1/drafts/{draft.id}", f"/v1/jobs/{draft.job_id}/draft", f"/v1/drafts/{draft.id}/files"):
        refused(http.get(address), 404, "was deleted on", draft.job_id)
    refused(http.delete(f"/v1/drafts/{draft.id}"), 404, "was deleted")
    refused(http.put(f"/v1/drafts/{draft.id}/tags/x"), 404, "was deleted")
    assert ids(http) == []


def test_a_draft_is_not_deleted_while_something_needs_it(http: httpx.Client, jobs: JobStore) -> None:
    draft = publish(jobs, PLAIN)
    http.put(f"/v1/drafts/{draft.id}/tags/production")
    refused(http.delete(f"/v1/drafts/{draft.id}"), 409, "production")
    http.delete(f"/v1/drafts/{draft.id}/tags/production")
    comparing = jobs.create(resolve({"data": {"dataset": DATASET}, "evaluate": {"compare_to": draft.id}}))
    refused(http.delete(f"/v1/drafts/{draft.id}"), 409, comparing.id, "compares")
    jobs.update(comparing.id, lambda job: setattr(job, "status", JobStatus.CANCELLED))
    making = jobs.create(resolve({"data": {"dataset": DATASET}}))
    jobs.update(making.id, lambda job: setattr(job, "status", JobStatus.RUNNING))
    jobs.update(making.id, lambda job: setattr(job, "draft", draft.id))
    refused(http.delete(f"/v1/drafts/{draft.id}"), 409, making.id, "makes it")
    jobs.update(making.id, lambda job: setattr(job, "status", JobStatus.SUCCEEDED))
    assert http.delete(f"/v1/drafts/{draft.id}").status_code == 200


def test_who_tags_while_a_draft_is_being_deleted_gives_way_and_the_tag_is_where_it_was(jobs, store, registry) -> None:
    holder, going = publish(jobs, PLAIN), publish(jobs, PLAIN)
    registry.promote(holder, "production")

    def tag_meanwhile() -> None:
        with pytest.raises(Problem, match="is being deleted"):
            registry.promote(going, "production")

    registry.delete(going, tag_meanwhile)
    assert registry.tags.draft_of("production") == holder.id
    with pytest.raises(Problem, match="is being deleted"):
        registry.promote(going, "new")  # its record was read before
    assert registry.tags.draft_of("new") is None
    assert list(store.list(DELETIONS)) == []


def test_who_died_deleting_holds_nobody_up_for_long(jobs, store, registry) -> None:
    draft = publish(jobs, PLAIN)
    intent = f"{DELETIONS}/{draft.id}.gw_dead"
    store.write(intent, b"")
    with pytest.raises(Problem, match="is being deleted"):
        registry.promote(draft, "production")
    os.utime(store.path(intent), (0, 0))
    registry.promote(draft, "production")
    assert registry.tags.draft_of("production") == draft.id
    assert list(store.list(DELETIONS)) == []


def test_whoever_is_first_a_tag_never_ends_on_a_deleted_draft(http: httpx.Client, jobs: JobStore) -> None:
    for round_ in range(10):
        draft = publish(jobs, PLAIN)
        start = threading.Barrier(2)

        def ask(method: str, address: str, start: threading.Barrier = start) -> int:
            start.wait()
            return http.request(method, address).status_code

        with ThreadPoolExecutor(2) as pool:
            tagged = pool.submit(ask, "PUT", f"/v1/drafts/{draft.id}/tags/t{round_}")
            deleted = pool.submit(ask, "DELETE", f"/v1/drafts/{draft.id}")
        outcome = tagged.result(), deleted.result()
        assert outcome in {(200, 409), (409, 200), (404, 200), (409, 409)}
        exists = http.get(f"/v1/drafts/{draft.id}").status_code
        assert exists == (404 if outcome[1] == 200 else 200)
        assert http.get(f"/v1/drafts/t{round_}").status_code == (200 if outcome[0] == 200 else 404)


def test_retention_keeps_a_draft_that_exists_and_takes_what_only_a_deleted_one_had(http, jobs, store) -> None:
    kept, gone = publish(jobs, PLAIN), publish(jobs, PLAIN)
    http.put(f"/v1/drafts/{kept.id}/tags/production")
    for draft in (kept, gone):  # their jobs are gone
        jobs.redis.delete(f"eyrie:job:{draft.job_id}", f"eyrie:events:{draft.job_id}")
        jobs.redis.zrem("eyrie:jobs", draft.job_id)
        store.delete(f"jobs/{draft.job_id}")
    before = {item.key for item in Retention(jobs, 0 * DAY_S).look().items}
    assert not any(gone.job_id in key or kept.job_id in key for key in before)
    assert http.delete(f"/v1/drafts/{gone.id}").status_code == 200
    removed = {item.key for item in Retention(jobs, 0 * DAY_S).apply().items}
    assert f"stages/publish/{gone.job_id}" in removed
    assert not any(kept.job_id in key for key in removed)
    assert not store.exists(gone.root)
    assert http.get(f"/v1/drafts/{kept.id}/files/model.safetensors").content == b"weights"
    lineage = http.get(f"/v1/drafts/{kept.id}/lineage", params={"verify": "full"}).json()
    assert all(node["verified"] for node in lineage["tree"]["inputs"])


def test_drafts_are_compared_on_what_they_share(http: httpx.Client, jobs: JobStore) -> None:
    one = publish(
        jobs,
        report(
            k=3,
            heldout={"trained": figures([0.8, 0.5, 0.2]), "untrained": figures([0.2, 0.05, 0.0])},
            code={"trained": figures([0.5, 0.2, 0.1])},
        ),
        train={"lr": 3e-5},
    )
    other = publish(
        jobs,
        report(k=2, heldout={"trained": figures([0.9, 0.6]), "untrained": figures([0.3, 0.1], "offline")}),
        dataset_sha="c" * 64,
        train={"lr": 1e-4},
    )
    http.put(f"/v1/drafts/{other.id}/tags/production")
    answer = http.get("/v1/drafts/compare", params={"draft": [one.id, "production"]})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert [draft["id"] for draft in found["drafts"]] == [one.id, other.id]
    assert found["drafts"][1]["tags"] == ["production"]
    (suite,) = found["suites"]
    assert (suite["name"], suite["num_speculative_tokens"], suite["same_prompts"]) == ("heldout", 2, False)
    first, second = suite["entries"]
    assert (first["draft"], first["num_speculative_tokens"], first["per_position"]) == (one.id, 3, [0.8, 0.5])
    assert first["acceptance_length"] == pytest.approx(2.3)
    assert first["untrained"]["acceptance_length"] == pytest.approx(1.25)
    assert first["gain"] == pytest.approx(2.3 / 1.25)
    assert second["acceptance_length"] == pytest.approx(2.5)
    assert {"path": "/train/lr", "values": {one.id: 3e-5, other.id: 1e-4}} in found["differences"]
    assert [field["path"] for field in found["differences"]] == ["/train/lr"]
    notes = " ".join(found["notes"])
    for words in ("suite code: only", "first 2 positions", "different prompts", "compares vllm with offline"):
        assert words in notes


def test_a_draft_whose_job_is_gone_is_compared_by_its_manifests(http: httpx.Client, jobs: JobStore, store) -> None:
    one = publish(jobs, PLAIN, name="a name", train={"lr": 1e-4}, data={"sampling": {"temperature": 0.5}})
    other = publish(jobs, PLAIN)
    jobs.redis.delete(f"eyrie:job:{one.job_id}")
    store.delete(f"jobs/{one.job_id}")
    found = http.get("/v1/drafts/compare", params={"draft": [one.id, other.id]}).json()
    paths = {field["path"]: list(field["values"].values()) for field in found["differences"]}
    assert paths == {"/data/sampling/temperature": [0.5, 1.0], "/train/lr": [1e-4, 3e-5]}
    assert f"the job of {one.id} is gone" in found["notes"][0]
    assert found["suites"][0]["same_prompts"] is True


def test_what_cannot_be_compared_is_said(http: httpx.Client, jobs: JobStore) -> None:
    one, empty = publish(jobs, PLAIN), publish(jobs, report())
    refused(http.get("/v1/drafts/compare", params={"draft": [one.id]}), 422)
    refused(http.get("/v1/drafts/compare"), 422)
    refused(http.get("/v1/drafts/compare", params={"draft": [one.id] * 9}), 422)
    refused(http.get("/v1/drafts/compare", params={"draft": [one.id, one.id]}), 422, "once")
    absent = http.get("/v1/drafts/compare", params={"draft": [one.id, "draft_0"]})
    refused(absent, 404, "draft_0")
    assert (absent.json()["errors"][0]["source"], absent.json()["errors"][0]["pointer"]) == ("query", "/draft")
    found = http.get("/v1/drafts/compare", params={"draft": [one.id, empty.id]}).json()
    assert found["suites"] == []
    assert f"{empty.id} has no evaluation report" in found["notes"]
