"""The control: the same strike against RQ alone, with its own worker and settings, and nothing of ours.

`python -m tests.support.chaos.plain_rq REDIS_URL` is its worker.
"""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from redis import Redis
from rq import Queue, Worker

from tests.support.chaos.nemesis import LONGEST_DELAY_S, Dequeues
from tests.support.chaos.site import ROOT
from tests.support.wait import wait_until
from tools.embedded_redis import start_redis

QUEUE = "plain"


def touch(path: str) -> None:
    """The job: leave a file."""
    Path(path).touch()


def lost_jobs(folder: Path, chance: random.Random, strikes: int) -> int:
    """Strike each of `strikes` workers once after its dequeue; how many of the jobs then never run.

    A last worker is left to do all that RQ still has in line.
    """
    redis = start_redis(folder / "redis")
    try:
        client = Redis.from_url(redis.url)
        queue = Queue(QUEUE, connection=client)
        files = [folder / f"done-{number}" for number in range(strikes)]
        for file in files:
            queue.enqueue(touch, str(file))
        with Dequeues(client, QUEUE) as dequeues:
            for _ in files:
                dequeues.forget()
                worker = start_worker(redis.url, folder)
                if dequeues.wait(20.0):
                    time.sleep(chance.uniform(0, LONGEST_DELAY_S))
                worker.send_signal(signal.SIGTERM)
                worker.wait(60)
        last = start_worker(redis.url, folder)
        wait_until(lambda: queue.count == 0, 60, what="the queue is empty")
        last.send_signal(signal.SIGTERM)
        last.wait(60)
        return sum(not file.exists() for file in files)
    finally:
        redis.stop()


def start_worker(url: str, folder: Path) -> "subprocess.Popen[bytes]":
    """RQ's own worker in a process of its own."""
    with (folder / "plain.log").open("ab") as log:
        command = [sys.executable, "-m", "tests.support.chaos.plain_rq", url]
        return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)


if __name__ == "__main__":
    connection = Redis.from_url(sys.argv[1])
    Worker([Queue(QUEUE, connection=connection)], connection=connection).work()
