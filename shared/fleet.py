"""Who works: live workers, the GPUs that they see and the verifiers that they run; the gateway reads it.

Keys (below `eyrie:`):
    workers        set of ids
    worker:ID      `WorkerRecord` (JSON); expires when the worker falls silent
    verifiers      set of ids
    verifier:ID    `VerifierState` (JSON); expires when the run that started it falls silent
    verifier-loads hash: what the latest start of each model took, in seconds
"""

from typing import TypeVar, cast

from pydantic import BaseModel
from redis import Redis

from shared.gpu_leases import PREFIX, GpuLeases
from shared.schemas.fleet import GpuInfo, GpuState, GpuStatus, VerifierState, WorkerRecord

WORKERS, VERIFIERS = f"{PREFIX}workers", f"{PREFIX}verifiers"
LOADS = f"{PREFIX}verifier-loads"

Entry = TypeVar("Entry", bound=BaseModel)


class Fleet:
    """All reads and writes of worker records."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis

    def register(self, worker: WorkerRecord, life_s: float) -> None:
        """Say that a worker lives, for `life_s` seconds from now by Redis's clock."""
        self._enter(WORKERS, worker.id, worker, life_s)

    def sign_off(self, worker_id: str) -> None:
        """Say that a worker ends."""
        self._leave(WORKERS, worker_id)

    def workers(self) -> list[WorkerRecord]:
        """The live workers, sorted by host and id."""
        return sorted(self._entries(WORKERS, WorkerRecord), key=lambda worker: (worker.host, worker.id))

    def show_verifier(self, verifier: VerifierState, life_s: float) -> None:
        """Say what a managed verifier is doing, for `life_s` seconds from now."""
        self._enter(VERIFIERS, verifier.id, verifier, life_s)

    def forget_verifier(self, verifier_id: str) -> None:
        """Say that a managed verifier was ended."""
        self._leave(VERIFIERS, verifier_id)

    def verifiers(self) -> list[VerifierState]:
        """The managed verifiers that workers run now, oldest first."""
        return sorted(self._entries(VERIFIERS, VerifierState), key=lambda verifier: verifier.id)

    def note_load(self, model: str, seconds: float) -> None:
        """Keep what it took until a managed verifier answered.

        Args:
            model: as job documents name it.
        """
        self.redis.hset(LOADS, model, str(seconds))

    def load_seconds(self, model: str) -> float | None:
        """What the latest start of a model took on this fleet; None where none is known."""
        seconds = cast("str | None", self.redis.hget(LOADS, model))
        return None if seconds is None else float(seconds)

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

    def _enter(self, index: str, entry_id: str, entry: BaseModel, life_s: float) -> None:
        pipeline = self.redis.pipeline()
        pipeline.sadd(index, entry_id)
        pipeline.set(_key(index, entry_id), entry.model_dump_json(), px=int(life_s * 1000))
        is_new, _ = pipeline.execute()
        if is_new:
            self._remove_gone(index)

    def _leave(self, index: str, entry_id: str) -> None:
        self.redis.srem(index, entry_id)
        self.redis.delete(_key(index, entry_id))

    def _entries(self, index: str, kind: type[Entry]) -> list[Entry]:
        ids = sorted(cast("set[str]", self.redis.smembers(index)))
        texts = cast("list[str | None]", self.redis.mget([_key(index, i) for i in ids])) if ids else []
        return [kind.model_validate_json(text) for text in texts if text is not None]

    def _remove_gone(self, index: str) -> None:
        """Have the ids forgotten whose entries have expired; one that lives after all enters itself again.

        Readers change nothing: whoever is new here clears away.
        """
        ids = sorted(cast("set[str]", self.redis.smembers(index)))
        gone = [i for i in ids if not self.redis.exists(_key(index, i))]
        if gone:
            self.redis.srem(index, *gone)


def _key(index: str, entry_id: str) -> str:
    return f"{index.removesuffix('s')}:{entry_id}"
