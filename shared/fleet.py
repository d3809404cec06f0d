"""Who works: live workers and the GPUs that they see, written by workers and read by the gateway.

Keys (below `eyrie:`):
    workers        set of ids
    worker:ID      `WorkerRecord` (JSON); expires when the worker falls silent
"""

from typing import cast

from redis import Redis

from shared.gpu_leases import PREFIX, GpuLeases
from shared.schemas.fleet import GpuInfo, GpuState, GpuStatus, WorkerRecord

WORKERS = f"{PREFIX}workers"


class Fleet:
    """All reads and writes of worker records."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis

    def register(self, worker: WorkerRecord, life_s: float) -> None:
        """Say that a worker lives, for `life_s` seconds from now by Redis's clock."""
        pipeline = self.redis.pipeline()
        pipeline.sadd(WORKERS, worker.id)
        pipeline.set(_key(worker.id), worker.model_dump_json(), px=int(life_s * 1000))
        pipeline.execute()

    def sign_off(self, worker_id: str) -> None:
        """Say that a worker ends."""
        self.redis.srem(WORKERS, worker_id)
        self.redis.delete(_key(worker_id))

    def workers(self) -> list[WorkerRecord]:
        """The live workers, sorted by host and id."""
        ids = sorted(cast("set[str]", self.redis.smembers(WORKERS)))
        texts = cast("list[str | None]", self.redis.mget([_key(i) for i in ids])) if ids else []
        gone = [i for i, text in zip(ids, texts, strict=True) if text is None]
        if gone:
            self.redis.srem(WORKERS, *gone)  # one that lives after all enters itself again
        found = [WorkerRecord.model_validate_json(text) for text in texts if text is not None]
        return sorted(found, key=lambda worker: (worker.host, worker.id))

    def gpus(self) -> list[GpuState]:
        """Every GPU that a live worker sees or that somebody holds, sorted by id."""
        leases = GpuLeases(self.redis)
        holders, infos, seen_by = leases.holders(), dict[str, GpuInfo](), dict[str, list[str]]()
        for worker in self.workers():
            for gpu in worker.gpus:
                infos[gpu.id] = gpu
                seen_by.setdefault(gpu.id, []).append(worker.id)
        names = sorted(infos.keys() | holders.keys())
        quarantined = leases.quarantined(names)
        states = []
        for name in names:
            info, holder = infos.get(name, GpuInfo(id=name)), holders.get(name)
            status = GpuStatus.LEASED if holder is not None else GpuStatus.FREE
            if name in quarantined:
                status, holder = GpuStatus.QUARANTINED, quarantined[name]
            fields = info.model_dump()
            states.append(GpuState(**fields, status=status, holder=holder, workers=seen_by.get(name, [])))
        return states


def _key(worker_id: str) -> str:
    return f"{PREFIX}worker:{worker_id}"
