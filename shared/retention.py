"""Removes what nothing refers to: outputs and attempts of stages, leftovers of uploads, logs and events of gone jobs.

Never what a job or a draft refers to, or what those were made from (`shared.references`), and no dataset.

A stage that is just being reused is not pulled away. For a finished stage, retention
1. marks: it takes the stage's lease, so that nobody computes it, and takes its manifest back, so that nobody finds it;
2. looks again at all references. A run writes that it reuses a stage into its record, and only then makes sure that the
   manifest is still there. So either its reference is seen here, and the manifest is put back, or it computes anew;
3. sweeps: the folder is moved away whole, the lease given back, and the files are removed.

Ages are differences of file times, all stamped by the store's own clock; no machine's clock plays a part.
"""

import contextlib
from collections.abc import Iterator

from shared.artifact_store import STAGING
from shared.errors import ArtifactStoreError
from shared.ids import is_id, new_id
from shared.job_store import JobStore
from shared.live_jobs import PREFIX
from shared.manifests import set_aside_manifests
from shared.references import EXPIRING, MANIFEST, References, read_references
from shared.schemas.retention import Kind, Leftover, RetentionReport
from shared.stage_keys import stage_lease

DAY_S = 86_400.0
NAMED = 5  # so many of those whose records cannot be read are named
LEASE_S = 600  # for a look at all references, and moving what was marked
UPLOAD_KEPT_S = DAY_S  # an upload or a download that has not moved for so long is dead


class Retention:
    """One look at the store, and what follows from it.

    Args:
        retention_s: how long what nothing refers to is kept.
    """

    def __init__(self, jobs: JobStore, retention_s: float) -> None:
        self.jobs, self.store, self.retention_s = jobs, jobs.artifacts, retention_s
        self.token = new_id("gc")
        self._kept: list[str] = []

    def look(self) -> RetentionReport:
        """Say what could be removed; nothing is changed."""
        return self._report(list(self._leftovers(read_references(self.jobs))), applied=False)

    def apply(self) -> RetentionReport:
        """Remove it."""
        found = list(self._leftovers(read_references(self.jobs)))
        stages = [item for item in found if item.kind == "stage"]
        removed = self._remove_stages(stages)
        removed += [item for item in found if item.kind != "stage" and self._remove(item)]
        return self._report(removed, applied=True)

    def _leftovers(self, references: References) -> Iterator[Leftover]:
        moment = self.store.now()
        yield from self._old(STAGING, "staging", UPLOAD_KEPT_S, moment, "nobody has written to it for a day")
        if references.unknown:
            named = ", ".join(references.unknown[:NAMED])
            what = "jobs or drafts are still being rebuilt from the store, or their records cannot be read"
            self._kept.append(f"all stages: {len(references.unknown)} {what} ({named})")
        else:
            yield from self._stages(references, moment)
        for job_id in self.store.list("jobs"):
            if is_id(job_id, "job") and not self.store.exists(f"jobs/{job_id}/job.json"):
                yield from self._if_old(f"jobs/{job_id}", "job_folder", self.retention_s, moment, "its job is gone")
        for dataset_id in self.store.list("datasets"):
            if not self.store.exists(f"datasets/{dataset_id}/dataset.json"):
                reason = "its upload was never finished"
                yield from self._if_old(f"datasets/{dataset_id}", "dataset_folder", UPLOAD_KEPT_S, moment, reason)
        yield from self._events()

    def _stages(self, references: References, moment: float) -> Iterator[Leftover]:
        for stage in self.store.list("stages"):
            for key in self.store.list(f"stages/{stage}"):
                prefix = f"stages/{stage}/{key}"
                if prefix in references.needed:
                    yield from self._attempts(prefix, references, moment)
                else:
                    reason = "no job and no draft refers to it"
                    yield from self._if_old(prefix, "stage", self.retention_s, moment, reason)

    def _attempts(self, prefix: str, references: References, moment: float) -> Iterator[Leftover]:
        """Attempts at a needed stage that are not the one in its manifest, nor in one that was set aside as damaged."""
        winner = references.manifests.get(prefix)
        salvage = {manifest.token for _, manifest in set_aside_manifests(self.store, prefix)}
        for token in self.store.list(f"{prefix}/attempts"):
            attempt = f"{prefix}/attempts/{token}"
            if winner is not None and winner.token != token:
                yield from self._if_old(attempt, "attempt", 0.0, moment, "another attempt has finished the stage")
            elif prefix not in references.manifests and prefix not in references.open and token not in salvage:
                reason = "its run is dead, and no job can go on with it"
                yield from self._if_old(attempt, "attempt", self.retention_s, moment, reason)

    def _events(self) -> Iterator[Leftover]:
        known = set(self.jobs.list_ids())
        for key in self.jobs.redis.scan_iter(f"{PREFIX}events:*", count=1000):
            job_id = str(key).removeprefix(f"{PREFIX}events:")
            if job_id not in known and not self.store.exists(f"jobs/{job_id}/job.json"):
                yield Leftover(kind="events", key=str(key), bytes=0, reason="its job is gone")

    def _old(self, folder: str, kind: Kind, keep_s: float, moment: float, reason: str) -> Iterator[Leftover]:
        for name in self.store.list(folder):
            yield from self._if_old(f"{folder}/{name}", kind, keep_s, moment, reason)

    def _if_old(self, key: str, kind: Kind, keep_s: float, moment: float, reason: str) -> Iterator[Leftover]:
        with contextlib.suppress(KeyError):  # somebody else has removed it, or it has a name that no key has
            size, changed = self.store.measure(key)
            if moment - changed >= keep_s:
                yield Leftover(kind=kind, key=key, bytes=size, reason=reason)

    def _remove_stages(self, items: list[Leftover]) -> list[Leftover]:
        marked = [item for item in items if self._mark(item.key)]
        references = read_references(self.jobs)
        swept = []
        for item in marked:
            if item.key in references.needed or references.unknown:
                self._put_back(item.key)
                self._kept.append(f"{item.key}: somebody refers to it by now")
            elif self.jobs.key_token(stage_lease(item.key)) != self.token:  # a run may have computed it since
                self._put_back(item.key)
                self._kept.append(f"{item.key}: the clean-up took too long to be sure of it")
            elif (trash := self._sweep(item.key, item.key)) is not None:
                swept.append((item, trash))
        return [item for item, trash in swept if self._delete(trash)]

    def _mark(self, prefix: str) -> bool:
        """Take a stage's lease and its manifest; False where a run has the lease."""
        if not self._lease(prefix):
            return False
        with contextlib.suppress(KeyError):  # it was never finished
            self.store.move(f"{prefix}/{MANIFEST}", f"{prefix}/{EXPIRING}")
        return True

    def _put_back(self, prefix: str) -> None:
        with contextlib.suppress(KeyError):
            self.store.create(f"{prefix}/{MANIFEST}", self.store.read(f"{prefix}/{EXPIRING}"))
            self.store.delete(f"{prefix}/{EXPIRING}")
        self._release(prefix)

    def _sweep(self, key: str, prefix: str) -> str | None:
        """Move `key` of a stage whose lease is ours out of sight, and give the lease back; returns where it is then.

        Its files are removed later: there may be many, and leases on other stages would lapse meanwhile.
        """
        trash = f"{STAGING}/{new_id('gc')}"
        try:
            self.store.move(key, trash)
        except (KeyError, ArtifactStoreError) as error:
            self._kept.append(f"{key}: {error}")
            return None
        finally:
            self._release(prefix)
        return trash

    def _remove(self, item: Leftover) -> bool:
        if item.kind == "events":
            return bool(self.jobs.redis.delete(item.key))
        if item.kind != "attempt":
            return self._delete(item.key)
        prefix = item.key.rpartition("/attempts/")[0]
        trash = self._sweep(item.key, prefix) if self._lease(prefix) else None
        return trash is not None and self._delete(trash)

    def _delete(self, key: str) -> bool:
        try:
            self.store.delete(key)
        except ArtifactStoreError as error:  # a process of a dead run may still write there; the next look finds it
            self._kept.append(f"{key}: {error.message}")
            return False
        return True

    def _lease(self, prefix: str) -> bool:
        if self.jobs.acquire_keys([stage_lease(prefix)], self.token, LEASE_S):
            return True
        self._kept.append(f"{prefix}: a run is computing it")
        return False

    def _release(self, prefix: str) -> None:
        self.jobs.release_keys([stage_lease(prefix)], self.token)

    def _report(self, items: list[Leftover], *, applied: bool) -> RetentionReport:
        return RetentionReport(
            applied=applied,
            retention_days=self.retention_s / DAY_S,
            items=items,
            bytes=sum(item.bytes for item in items),
            kept=self._kept,
        )
