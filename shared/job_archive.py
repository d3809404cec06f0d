"""What the artifact store keeps of a job, so that an emptied Redis can be filled again. Below `jobs/ID/`:

    job.json                the record as it was admitted
    states/VERSION.json     the record as it was changed last, until it is terminal
    terminal.json           the record in its terminal state
    retried_as              the id of the job that does this one again

Redis decides: a version is written here after its compare-and-set, and before whoever asked for it has an answer.
"""

import contextlib
import logging

from pydantic import ValidationError

from shared.artifact_store import STAGING, LocalArtifactStore
from shared.ids import is_id, new_id
from shared.schemas.job import JobRecord
from shared.state_machine import TERMINAL

log = logging.getLogger(__name__)


class JobArchive:
    """Job documents in the artifact store.

    All methods raise `ArtifactStoreError` where the store cannot be used.
    """

    def __init__(self, artifacts: LocalArtifactStore) -> None:
        self.artifacts = artifacts

    def admit(self, record: JobRecord) -> None:
        """Keep a new job."""
        self.artifacts.create(f"jobs/{record.id}/job.json", _content(record))

    def keep(self, record: JobRecord) -> None:
        """Keep a version of a job. Later ones may be there already: they hold."""
        states = f"jobs/{record.id}/states"
        if record.status in TERMINAL:
            self.artifacts.write(f"jobs/{record.id}/terminal.json", _content(record))
            self.artifacts.delete(states)
            return
        self.artifacts.write(f"{states}/{record.version:010}.json", _content(record))
        for name in self.artifacts.list(states):
            if name < f"{record.version:010}.json":
                self.artifacts.delete(f"{states}/{name}")

    def load(self, job_id: str) -> JobRecord | None:
        """The latest version of a job; None where there is none, or it cannot be read."""
        if not self.has(job_id):  # a state may have been written just after the job was deleted
            return None
        states = reversed(list(self.artifacts.list(f"jobs/{job_id}/states")))
        for name in ("terminal.json", *(f"states/{state}" for state in states), "job.json"):
            key = f"jobs/{job_id}/{name}"
            try:
                record = JobRecord.model_validate_json(self.artifacts.read(key))
            except KeyError:  # a terminal state came in between, or there never was one
                continue
            except ValidationError:
                log.error("%s in the artifact store cannot be read", key)
                return None
            retry = self._retry(job_id)
            record.retried_as = retry if retry and self.has(retry) else None
            return record
        return None

    def has(self, job_id: str) -> bool:
        """Tell whether a job was admitted, whatever Redis knows."""
        return self.artifacts.exists(f"jobs/{job_id}/job.json")

    def ids(self) -> set[str]:
        """Ids of all jobs that are kept."""
        return {name for name in self.artifacts.list("jobs") if is_id(name, "job")}

    def link_retry(self, job_id: str, retry_id: str) -> str:
        """Settle the id of the job that shall do `job_id` again; the first caller decides, all get its answer."""
        key = f"jobs/{job_id}/retried_as"
        if not self.artifacts.create(key, retry_id.encode()) and self._retry(job_id) is None:  # it cannot be read
            self.artifacts.write(key, retry_id.encode())
        return self._retry(job_id) or retry_id

    def unlink_retry(self, job_id: str, retry_id: str) -> None:
        """Take back what `link_retry` has settled, where it is `retry_id`."""
        if self._retry(job_id) == retry_id:
            self.artifacts.delete(f"jobs/{job_id}/retried_as")

    def forget(self, job_id: str) -> None:
        """Remove everything of a job, its logs too: out of sight at once, then file by file."""
        trash = f"{STAGING}/{new_id('gone')}"
        with contextlib.suppress(KeyError):  # it was moved before
            self.artifacts.move(f"jobs/{job_id}", trash)
            self.artifacts.delete(trash)

    def _retry(self, job_id: str) -> str | None:
        try:
            name = self.artifacts.read(f"jobs/{job_id}/retried_as").decode(errors="replace")
        except KeyError:
            return None
        return name if is_id(name, "job") else None


def _content(record: JobRecord) -> bytes:
    return record.model_dump_json().encode()
