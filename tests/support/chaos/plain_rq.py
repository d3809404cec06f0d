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
END_S = 30.0
MOST = 10
IN_LINE = 8


def touch(path: str) -> None:
    """The job: leave a file."""
    Path(path).touch()


def lost_jobs(folder: Path, chance: random.Random, strikes: int) -> tuple[int, int]:
    """Strike workers, each once after it took a job, with more in line; how many were struck, and how many jobs then
    never run.

    `strikes` are made at least, and more until a job was lost, ten times as many at most. A last worker is left to do
    all that RQ still has in line.
    """
    redis = start_redis(folder / "redis")
    try:
        client = Redis.from_url(redis.url)
        queue = Queue(QUEUE, connection=client)
        files, struck = list[Path](), 0

        def missing() -> int:
            return sum(not file.exists() for file in files)

        with Dequeues(client, QUEUE) as dequeues:
            while struck < strikes or (missing() <= queue.count and struck < MOST * strikes):
                while queue.count < IN_LINE:
                    files.append(folder / f"done-{len(files)}")
                    queue.enqueue(touch, str(files[-1]))
                dequeues.forget()
                worker = start_worker(redis.url, folder)
                struck += 1
                if dequeues.wait(20.0):
                    time.sleep(chance.uniform(0, LONGEST_DELAY_S))
                end_worker(worker)
        last = start_worker(redis.url, folder)
        wait_until(lambda: queue.count == 0, 60, what="the queue is empty")
        end_worker(last)
        return struck, missing()
    finally:
        redis.stop()


def end_worker(worker: "subprocess.Popen[bytes]") -> None:
    """Send SIGTERM; a worker that does not hear it is killed, long after its job: RQ's signal handler raises an
    exception, which Python drops where it interrupts a destructor."""
    worker.send_signal(signal.SIGTERM)
    try:
        worker.wait(END_S)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()


def start_worker(url: str, folder: Path) -> "subprocess.Popen[bytes]":
    """RQ's own worker in a process of its own."""
    with (folder / "plain.log").open("ab") as log:
        command = [sys.executable, "-m", "tests.support.chaos.plain_rq", url]
        return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)


if __name__ == "__main__":
    connection = Redis.from_url(sys.argv[1])
    Worker([Queue(QUEUE, connection=connection)], connection=connection).work()
