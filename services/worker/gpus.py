"""Which GPUs this worker may use, and leasing them for a stage: all that it asks for, or none.

A lease in Redis (`shared.gpu_leases`) says which run has a GPU. It is not enough: it expires when its run dies or
freezes, and processes outlive both. So a GPU is used only while its lock (`gpu_locks`) is free and no process with a
mark of another run names it, and one whose lease expired only after NVML has shown it empty as well.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from redis.exceptions import RedisError

from services.worker import nvml
from services.worker.gpu_locks import GpuLocks, close_all, is_real
from services.worker.run_control import RunControl
from services.worker.supervision import GPUS_VARIABLE, gpus_in_use
from shared.errors import CapacityError
from shared.gpu_leases import GpuLeases
from shared.gpu_wishes import wanted_gpus
from shared.schemas.fleet import GpuInfo
from shared.schemas.spec import JobSpec

WAIT_S = 0.5


@dataclass
class GpuGrant:
    """GPUs that a run has, and the locks to pass on to what runs on them; see `hand_over`."""

    gpus: list[str]
    locks: list[int]

    def environment(self) -> dict[str, str]:
        """What the processes on these GPUs are started with."""
        return {"CUDA_VISIBLE_DEVICES": ",".join(self.real()), GPUS_VARIABLE: ",".join(self.gpus)}

    def real(self) -> list[str]:
        """Those that a process can run on; who was given faked ones runs on the CPU."""
        return [gpu for gpu in self.gpus if is_real(gpu)]

    def hand_over(self) -> None:
        """Close our own descriptors: from now on the locks are held by whom they were passed to, and by nobody else.

        So a frozen work horse keeps no GPU whose processes are gone.
        """
        close_all(self.locks)


class LocalGpus:
    """The GPUs of this host that one worker may use."""

    def __init__(self, setting: str, locks: GpuLocks) -> None:
        self.infos = local_gpus(setting)
        self.ids = [info.id for info in self.infos]
        self.locks = locks

    def empty(self) -> list[str]:
        """Those on which no process of any run is left, as far as this host can tell."""
        in_use = gpus_in_use(self.locks.store_root)
        return [gpu for gpu in self.ids if gpu not in in_use and self.locks.is_free(gpu)]

    def end_quarantines(self, leases: GpuLeases) -> None:
        """Free the GPUs whose run is gone, once its processes are gone too. Redis may be away: then later."""
        with suppress(RedisError):
            quarantined = leases.quarantined(self.ids)
            empty = self.empty() if quarantined else []
            for gpu, holder in quarantined.items():
                if gpu in empty and (not is_real(gpu) or nvml.is_empty(gpu)):
                    leases.clear(gpu, holder.token)


def local_gpus(setting: str) -> list[GpuInfo]:
    """The GPUs of a setting such as `0,1`, UUIDs, or `fake-0,fake-1`; without one, all that NVML finds.

    Indices are NVML's and become UUIDs. A name that is neither index nor UUID, and an index where NVML finds no GPU
    at all, is a faked GPU: it is leased and locked like a real one, and nothing runs on it. A setting that is absent
    leaves the choice to `CUDA_VISIBLE_DEVICES`, if that is set.

    Raises:
        CapacityError: a GPU is named that NVML does not find.
    """
    found = nvml.list_gpus()
    names = [part.strip() for part in setting.split(",") if part.strip()]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not names and visible is not None and found:
        names = [part.strip() for part in visible.split(",") if part.strip() not in ("", "-1", "NoDevFiles")]
        if not names:
            return []
    if not names:
        return found
    resolved = [_resolve(name, found) for name in names]
    return list({info.id: info for info in resolved}.values())


def require_job_gpus(local: LocalGpus, spec: JobSpec) -> None:
    """Refuse a job one of whose stages asks for more GPUs than this worker has.

    Raises:
        CapacityError
    """
    for where, count in wanted_gpus(spec).items():
        require_gpus(len(local.ids), count, where)


def require_gpus(available: int, wanted: int, where: str) -> None:
    """Refuse to wait for more GPUs than there are.

    Raises:
        CapacityError
    """
    if wanted > available:
        raise CapacityError(
            f"{wanted} GPUs are asked for and this worker has {available}",
            where=where,
            hint="ask for at most that many" if available else "ask for 0 to run on the CPU, or add a worker with GPUs",
        )


@contextmanager
def leased_gpus(control: RunControl, local: LocalGpus, count: int, stage: str, where: str) -> Iterator[GpuGrant]:
    """Lease `count` GPUs of this host for the length of a block; waits until they are free and empty.

    Args:
        stage: what they are for, as people read it.
        where: the field of the job document that asks for them.

    Raises:
        CapacityError: this worker has fewer.
        Interrupted, Fenced: while waiting.
    """
    require_gpus(len(local.ids), count, where)
    grant = _take(control, local, count, stage) if count else GpuGrant([], [])
    try:
        yield grant
    finally:
        grant.hand_over()
        control.give_gpus_back(grant.gpus)


def _take(control: RunControl, local: LocalGpus, count: int, stage: str) -> GpuGrant:
    waited = False
    try:
        while True:
            local.end_quarantines(control.gpu_leases)
            gpus = control.ask_for_gpus(count, local.ids, local.empty(), stage)
            if gpus:
                locks = local.locks.take(gpus)
                if locks is not None:
                    return GpuGrant(gpus, locks)
                control.give_gpus_back(gpus)  # somebody came between the look and the lease
            if not waited:
                control.say("waiting", f"waits for {count} of {len(local.ids)} GPUs", stage)
                waited = True
            control.wait(WAIT_S)
    except BaseException:
        control.leave_gpu_line()
        raise


def _resolve(name: str, found: list[GpuInfo]) -> GpuInfo:
    if name.isdigit() and found:
        if int(name) < len(found):
            return found[int(name)]
    elif not is_real(name):
        return GpuInfo(id=name, name="faked")
    elif (info := nvml.find_gpu(name)) is not None:
        return info
    listing = ", ".join(f"{index} ({info.id})" for index, info in enumerate(found)) or "none"
    raise CapacityError(
        f"there is no GPU {name} on this host; NVML finds {listing}",
        where="EYRIE_GPUS",
        hint="name GPUs by index or UUID as `nvidia-smi -L` shows them, or leave the setting out to take all",
    )
