"""The queue: RQ as transport. A message says only which job and which attempt; the record says everything else."""

import contextlib
from collections.abc import Sequence

from redis import Redis
from rq import Queue
from rq.exceptions import InvalidJobOperation, NoSuchJobError
from rq.job import Job
from rq.serializers import JSONSerializer

QUEUE_NAME = "eyrie-jobs"
ENTRY_POINT = "services.worker.main.run_job"
NO_LIMIT = -1  # stages have their own limits
FINISHED_TTL_S = 60  # RQ's own results are not used: the record is the truth

# KEYS: line; ARGV: the message that is its first, and those that it belongs behind, the last of them first.
LINE_UP = """
if redis.call('LINDEX', KEYS[1], 0) ~= ARGV[1] then return 0 end
redis.call('LPOP', KEYS[1])
for i = 2, #ARGV do
    if redis.call('LINSERT', KEYS[1], 'AFTER', ARGV[i], ARGV[1]) > 0 then return 1 end
end
return redis.call('LPUSH', KEYS[1], ARGV[1])
"""


class JobQueue:
    """Puts jobs in line and takes them out of it."""

    def __init__(self, redis_url: str, redis: Redis | None = None) -> None:
        self.redis = redis or Redis.from_url(redis_url)  # RQ needs bytes, the job store text
        self.queue = Queue(QUEUE_NAME, connection=self.redis, serializer=JSONSerializer)

    def enqueue(self, job_id: str, attempt: int, *, first: bool = False) -> None:
        """Put an attempt in line, at its end or as the `first`. A second message for one attempt does no harm: it finds
        the attempt taken."""
        self.redis.lrem(self.queue.intermediate_queue_key, 0, message_id(job_id, attempt))  # of a worker that died
        self.queue.enqueue_call(
            ENTRY_POINT,
            args=(job_id, attempt),
            job_id=message_id(job_id, attempt),
            timeout=NO_LIMIT,
            result_ttl=FINISHED_TTL_S,
            failure_ttl=FINISHED_TTL_S,
            at_front=first,
        )
        # An attempt that was left in line or sent in vain has a message that RQ lets expire: not while it waits again.
        self.redis.persist(Job.key_for(message_id(job_id, attempt)))

    def line_up(self, job_id: str, attempt: int, earlier: Sequence[tuple[str, int]]) -> None:
        """Have an attempt that was put in line as the first wait behind `earlier` ones, which were so before it."""
        behind = [message_id(*one) for one in reversed(earlier)]
        self.redis.eval(LINE_UP, 1, self.queue.key, message_id(job_id, attempt), *behind)

    def waiting(self) -> int:
        """How many messages stand in line."""
        return int(self.queue.count)

    def jobs_in_line(self) -> list[str]:
        """Ids of all jobs that have a message in the line itself, the next one first."""
        return list(dict.fromkeys(message.rsplit("-", 1)[0] for message in self.queue.get_job_ids()))

    def is_waiting(self, job_id: str, attempt: int) -> bool:
        """Tell whether the attempt stands in the line itself (whatever RQ believes of its status)."""
        return self.queue.get_job_position(message_id(job_id, attempt)) is not None

    def position(self, job_id: str, attempt: int) -> int | None:
        """Place in line, counted from 1; None when it is not waiting."""
        place = self.queue.get_job_position(message_id(job_id, attempt))
        return None if place is None else place + 1

    def remove(self, job_id: str, attempt: int) -> None:
        """Take an attempt out of the line, if it is there. Others may do so at the same time."""
        message = message_id(job_id, attempt)
        with contextlib.suppress(NoSuchJobError, InvalidJobOperation):  # gone before RQ had read it, or since
            Job.fetch(message, connection=self.redis, serializer=JSONSerializer).delete()
        for line in (self.queue.key, self.queue.intermediate_queue_key):
            self.redis.lrem(line, 0, message)


def message_id(job_id: str, attempt: int) -> str:
    """RQ's id for one attempt at a job."""
    return f"{job_id}-{attempt}"
