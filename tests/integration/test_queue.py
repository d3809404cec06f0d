"""The line of jobs on a real Redis: several may put in and take out at once."""

import threading

from shared.queue import JobQueue
from tools.embedded_redis import RedisHandle

TIMES = 100


def test_two_that_take_one_attempt_out_of_line_do_not_disturb_each_other(redis_handle: RedisHandle) -> None:
    queues = [JobQueue(redis_handle.url) for _ in range(2)]
    failures: list[Exception] = []

    def remove(queue: JobQueue, job_id: str, together: threading.Barrier) -> None:
        together.wait()
        try:
            queue.remove(job_id, 1)
        except Exception as error:
            failures.append(error)

    for number in range(TIMES):
        queues[0].enqueue(f"job_{number}", 1)
        together = threading.Barrier(len(queues))
        threads = [threading.Thread(target=remove, args=(queue, f"job_{number}", together)) for queue in queues]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    assert queues[0].waiting() == 0
