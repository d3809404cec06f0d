"""What breaks things. Each nemesis gets a user of the site, a seeded source of chance, and how often to strike.

A nemesis leaves the site able to finish: when it returns, Redis, a gateway and a worker live again.
"""

import importlib.util
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from redis import Redis

from shared.queue import QUEUE_NAME
from tests.support.chaos.driver import Driver
from tests.support.chaos.site import STAGES, WITH_VERIFIER, Process, horse_of, stage_child_of
from tests.support.verifier_stub import Script
from tests.support.wait import wait_until

Nemesis = Callable[[Driver, random.Random, int], dict[str, int]]
JOBS_PER_SIGTERM = 5  # strikes that a job gets, about
LONGEST_DELAY_S = 0.020
PATIENCE_S = 15.0  # longer than the reconciler waits before it sends a lost message again
STEPS, STEP_S = 60, 0.05
PAST_THE_LEASE_S = 6.0
WAIT_S = 180.0  # for what takes seconds on a machine that has nothing else to do
CLOCKS = ("+600s", "-600s")


def sigterm_after_dequeue(driver: Driver, chance: random.Random, strikes: int) -> dict[str, int]:
    """SIGTERM to a worker 0 to 20 ms after it has taken a message from the queue."""
    site = driver.site
    site.start_gateway()
    jobs = max(1, strikes // JOBS_PER_SIGTERM)
    for _ in range(jobs):
        driver.submit()
    struck = 0
    with Dequeues(site.client) as dequeues:
        while struck < strikes:
            dequeues.forget()
            worker = site.start_worker()
            if not dequeues.wait(PATIENCE_S):  # all that was in line is done: give it more to do
                driver.submit()
                assert dequeues.wait(WAIT_S), "a new job is taken"
            time.sleep(chance.uniform(0, LONGEST_DELAY_S))
            worker.send_signal(signal.SIGTERM)
            worker.wait(WAIT_S)
            struck += 1
    for _ in range(2):
        site.start_worker()
    return {"sigterm": struck}


def kill_processes(driver: Driver, chance: random.Random, strikes: int) -> dict[str, int]:
    """kill -9 of a worker, of its work horse, of the stage's process, and of all together, in mid-training."""
    site, counts = driver.site, dict.fromkeys(("worker", "horse", "child", "all"), 0)
    site.start_gateway()
    for strike in range(strikes):
        target = list(counts)[strike % len(counts)]
        for worker in site.live_workers():
            worker.send_signal(signal.SIGTERM)
            worker.wait(WAIT_S)
        worker = site.start_worker()
        job_id = driver.submit(STEPS, STEP_S)
        driver.wait_for_step(job_id, chance.randint(2, STEPS // 2))
        for process in victims(worker, target):
            process.kill()
        counts[target] += 1
        if target in ("worker", "all"):
            worker.wait(WAIT_S)
            site.start_worker()
    return counts


def freeze_and_thaw(driver: Driver, chance: random.Random, strikes: int) -> dict[str, int]:
    """SIGSTOP to a worker, with or without its stage's process, past its lease; SIGCONT once another has taken over."""
    site, counts = driver.site, {"worker": 0, "tree": 0}
    site.start_gateway()
    for strike in range(strikes):
        target = list(counts)[strike % len(counts)]
        worker = site.start_worker()
        job_id = driver.submit(STEPS, STEP_S)
        driver.wait_for_step(job_id, chance.randint(2, STEPS // 2))
        frozen = [process for process in [psutil.Process(worker.pid), horse_of(worker)] if process]
        if target == "tree" and (child := stage_child_of(worker)):
            frozen.append(child)
        for process in frozen:
            process.suspend()
        other = site.start_worker()
        wait_until(lambda job=job_id: driver.job(job)["attempt"] > 1, WAIT_S, what="the frozen run is replaced")  # type: ignore[misc]
        for process in frozen:
            if process.is_running():
                process.resume()
        counts[target] += 1
        driver.wait_for_end()
        for one in (worker, other):
            one.send_signal(signal.SIGTERM)
            one.wait(WAIT_S)
    site.start_worker()
    return counts


def redis_restarts(driver: Driver, chance: random.Random, strikes: int) -> dict[str, int]:
    """Redis ends and is back at once, with its data."""
    return _redis(driver, chance, strikes, "restarted", away_s=0.0)


def redis_away(driver: Driver, chance: random.Random, strikes: int) -> dict[str, int]:
    """Redis is away for a minute (for longer than a lease, in the short run)."""
    return _redis(driver, chance, strikes, "away", away_s=60.0 if strikes > 1 else PAST_THE_LEASE_S)


def redis_emptied(driver: Driver, chance: random.Random, strikes: int) -> dict[str, int]:
    """Redis loses everything while jobs run, wait and have ended."""
    return _redis(driver, chance, strikes, "emptied", away_s=0.0)


def _redis(driver: Driver, chance: random.Random, strikes: int, how: str, away_s: float) -> dict[str, int]:
    site = driver.site
    site.start_gateway()
    site.start_worker()
    for _ in range(strikes):
        running = driver.submit(STEPS, STEP_S)
        waiting = driver.submit()
        driver.wait_for_step(running, chance.randint(2, STEPS // 2))
        if how == "emptied":
            with driver.restart():
                site.client.flushall()
        else:
            site.stop_redis()
            time.sleep(away_s)
            site.continue_redis()
        ended = driver.wait_for_end()
        assert ended[running]["status"] == ended[waiting]["status"] == "succeeded", ended
        if not site.live_workers():
            site.start_worker()
    return {how: strikes}


def gateways_killed(driver: Driver, chance: random.Random, strikes: int) -> dict[str, int]:
    """Two gateways at once; one of them is killed with -9 and replaced, while jobs are submitted and run."""
    site = driver.site
    for _ in range(2):
        site.start_gateway()
    site.start_worker()
    for _ in range(strikes):
        job_id = driver.submit(STEPS // 2, STEP_S)
        driver.wait_for_step(job_id, 2)
        _, process = chance.choice([entry for entry in site.gateways if entry[1].poll() is None])
        process.kill()
        process.wait(WAIT_S)
        driver.submit()
        site.start_gateway()
    return {"gateways": strikes}


def many_jobs_few_workers(driver: Driver, chance: random.Random, strikes: int) -> dict[str, int]:
    """Many jobs while the number of workers goes from one to four and back to one, by SIGTERM."""
    site = driver.site
    site.start_gateway()
    site.start_worker()
    for _ in range(strikes):
        driver.submit(steps=chance.randint(2, 10))
    for _ in range(3):
        site.start_worker()
    driver.wait_while_moving(lambda: len(_ended(driver)) >= strikes // 2, "half of the jobs end")
    for worker in chance.sample(site.live_workers(), 3):
        worker.send_signal(signal.SIGTERM)
    return {"jobs": strikes, "workers": 4}


def disk_full(driver: Driver, chance: random.Random, strikes: int) -> dict[str, int]:
    """The store's volume is full in mid-training: jobs can be seen and cancelled, and done again when there is room."""
    site, volume = driver.site, driver.site.volume
    assert volume is not None, "the site's store lies on a small volume"
    counts = {volume.kind: 0, "refused": 0, "cancelled": 0}
    site.start_gateway()
    site.start_worker()
    for _ in range(strikes):
        jobs = [driver.submit(STEPS * 3, STEP_S), driver.submit(STEPS * 3, STEP_S)]
        driver.wait_for_step(jobs[0], chance.randint(2, STEPS // 2))
        volume.fill()
        counts["cancelled"] += driver.is_cancelled(jobs[1])
        counts["refused"] += driver.is_refused()
        ended = driver.wait_for_end()
        volume.empty()
        for job_id in jobs:
            if ended[job_id]["status"] == "failed":
                assert ended[job_id]["status_reason"]["code"] == "artifact_store", ended[job_id]
                again = driver.retry(job_id)
                assert driver.wait_for_end()[again]["status"] == "succeeded"
        assert ended[jobs[0]]["status"] == "failed", ended[jobs[0]]
        counts[volume.kind] += 1
    return counts


def verifier_fails(driver: Driver, chance: random.Random, strikes: int) -> dict[str, int]:
    """The verifier answers 5xx, slowly, or is cut off in mid-answer; prompts are answered all the same in the end."""
    site = driver.site
    site.start_gateway()
    site.start_worker(WITH_VERIFIER)
    faults = {
        "status": Script(status=503, retry_after="0"),
        "slow": Script(delay_s=1.0),
        "cut": Script(drop=True),
    }
    counts = dict.fromkeys(faults, 0)
    for strike in range(strikes):
        name = list(faults)[strike % len(faults)]
        site.stub.plan(f"prompt-{chance.randrange(4)}", *[faults[name]] * chance.randint(1, 2))
        driver.submit()
        counts[name] += 1
        driver.wait_for_end()
    return counts


def gpus_contended(driver: Driver, chance: random.Random, strikes: int) -> dict[str, int]:
    """Two workers share two GPUs; jobs want one or both; holders are killed with -9 while others wait."""
    site, killed = driver.site, 0
    gpus = {"EYRIE_GPUS": "fake-0,fake-1"}
    site.start_gateway()
    for _ in range(2):
        site.start_worker(STAGES, gpus)
    for strike in range(strikes):
        count = 1 + strike % 2
        jobs = [driver.submit(STEPS // 2, STEP_S, train={"gpus": count}) for _ in range(3)]
        wait_until(lambda wanted=jobs: _stepping(driver, wanted), WAIT_S, what="one of them trains")  # type: ignore[misc]
        holders = [worker for worker in site.live_workers() if stage_child_of(worker)]
        if holders:
            victim = chance.choice(holders)
            for process in victims(victim, chance.choice(["worker", "horse", "all"])):
                process.kill()
            killed += 1
        while len(site.live_workers()) < 2:
            site.start_worker(STAGES, gpus)
        driver.wait_for_end()
    return {"killed": killed}


def clocks_off(driver: Driver, chance: random.Random, strikes: int) -> dict[str, int]:
    """Workers and gateways whose clocks are ten minutes fast or slow; one worker is killed and another takes over."""
    site, counts = driver.site, dict.fromkeys(CLOCKS, 0)
    site.start_gateway()
    for strike in range(strikes):
        offset = CLOCKS[strike % len(CLOCKS)]
        faked = faked_clock(offset)
        site.start_gateway(faked)
        worker = site.start_worker(STAGES, faked)
        job_id = driver.submit(STEPS // 2, STEP_S)
        driver.wait_for_step(job_id, chance.randint(2, STEPS // 4))
        for process in victims(worker, "all"):
            process.kill()
        worker.wait(WAIT_S)
        other = site.start_worker()
        driver.submit()
        driver.wait_for_end()
        other.send_signal(signal.SIGTERM)
        other.wait(WAIT_S)
        _, gateway = site.gateways.pop()
        gateway.terminate()
        gateway.wait(WAIT_S)
        counts[offset] += 1
    return counts


def faked_clock(offset: str) -> dict[str, str]:
    """Variables that set a process's wall clock off by libfaketime; its monotonic clock, like a real one, stays."""
    package = importlib.util.find_spec("libfaketime")
    assert package is not None, "libfaketime comes with the extra `dev`"
    assert package.origin is not None
    library = Path(package.origin).parent / "vendor" / "libfaketime" / "src" / "libfaketime.so.1"
    assert library.is_file(), library
    return {"LD_PRELOAD": str(library), "FAKETIME": offset, "DONT_FAKE_MONOTONIC": "1", "FAKETIME_NO_CACHE": "1"}


def victims(worker: Process, target: str) -> list[psutil.Process]:
    """The processes that a strike hits: `worker`, `horse`, `child`, or `all` of them."""
    parts = {"worker": psutil.Process(worker.pid), "horse": horse_of(worker), "child": stage_child_of(worker)}
    chosen = list(parts.values()) if target == "all" else [parts[target]]
    return [process for process in chosen if process is not None]


class Dequeues:
    """Tells when a message leaves the queue, by Redis's own notifications; use it as a context manager."""

    def __init__(self, client: "Redis", queue: str = QUEUE_NAME) -> None:
        client.config_set("notify-keyspace-events", "Kl")
        self.channel = client.pubsub(ignore_subscribe_messages=True)
        self.channel.subscribe(f"__keyspace@0__:rq:queue:{queue}")
        self.channel.get_message(timeout=1)

    def __enter__(self) -> "Dequeues":
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def forget(self) -> None:
        """Drop what was told before now."""
        while self.channel.get_message(timeout=0):
            pass

    def wait(self, timeout_s: float) -> bool:
        """Wait for the next one; False when there was none in time."""
        end = time.monotonic() + timeout_s
        while (left := end - time.monotonic()) > 0:
            message = self.channel.get_message(timeout=left)
            if message and message["data"] in ("lpop", "rpop", b"lpop", b"rpop"):
                return True
        return False


def _ended(driver: Driver) -> set[str]:
    return {look.job for look in list(driver.history) if look.status in ("succeeded", "failed", "cancelled")}


def _stepping(driver: Driver, jobs: list[str]) -> bool:
    return any(event["kind"] == "step" and event["job"] in jobs for event in driver.site.journal.read())
