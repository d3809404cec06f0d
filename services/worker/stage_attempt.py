"""One attempt at one stage: from its key to files under the attempt's token, and the manifest that publishes them."""

import contextlib
import shutil
import time

from services.worker.gpu_locks import is_real
from services.worker.gpus import LocalGpus, leased_gpus
from services.worker.run_control import RunControl
from services.worker.stage_clock import StageClock
from services.worker.stage_inputs import StageInputs, library_versions
from services.worker.stage_keys import stage_key, stage_parameters
from services.worker.stage_run import StageRun
from services.worker.stage_supervisor import StageSupervisor
from services.worker.training.row_index import require_learnable_rows
from services.worker.verifier_session import VerifierSession, served_model_name
from shared.artifact_store import LocalArtifactStore
from shared.errors import ArtifactStoreError, StatusReason
from shared.schemas.job import ErrorDetail, JobRecord, Stage, now
from shared.schemas.manifest import Manifest
from shared.schemas.registry import DraftRecord
from shared.schemas.spec import ManagedVerifier
from shared.settings import Settings

DRAFT_ID_CHARACTERS = 20


class StageFailed(Exception):
    """A stage ended with an error; `detail` is what people read."""

    def __init__(self, detail: ErrorDetail) -> None:
        super().__init__(detail.message)
        self.detail = detail


class StageAttempt:
    """A stage of a job, by content key. Its files lie in `stages/STAGE/KEY/attempts/TOKEN/out`."""

    def __init__(
        self,
        record: JobRecord,
        stage: Stage,
        inputs: StageInputs,
        store: LocalArtifactStore,
        settings: Settings,
        control: RunControl,
        gpus: LocalGpus,
    ) -> None:
        self.record, self.stage, self.inputs, self.store = record, stage, inputs, store
        self.settings, self.control, self.gpus = settings, control, gpus
        self.parameters = stage_parameters(stage, record.spec)
        self.key = stage_key(stage, inputs.digests(stage), self.parameters)
        self.prefix = f"stages/{stage}/{self.key}"
        self.manifest_key = f"{self.prefix}/manifest.json"
        self.folder_key = f"{self.prefix}/attempts/{control.token}"
        self.lease = f"stage:{stage}:{self.key}"

    def finished(self) -> Manifest | None:
        """The manifest of an earlier or equal run, if one has finished."""
        try:
            return Manifest.model_validate_json(self.store.read(self.manifest_key))
        except KeyError:
            return None

    def run(self, number: int, session: VerifierSession | None) -> Manifest:
        """Run the stage to its end in a child process.

        Args:
            number: of this attempt, for the names of log files.
            session: for stages that need the verifier.

        Returns:
            The manifest to commit.

        Raises:
            StageFailed: the stage ended with an error.
            Interrupted, Fenced, EyrieError: see `StageSupervisor`, `VerifierSession` and `leased_gpus`.
        """
        started = time.monotonic()
        if self.stage == Stage.TRAIN:
            require_learnable_rows(self.inputs.folders(self.stage)[Stage.CAPTURE] / "dataset", self.record.spec.train)
        logs = self.store.folder(f"jobs/{self.record.id}/logs")
        document = self._document()
        if session is not None:
            document.endpoint = session.endpoint(document.exchange, logs / f"verifier-{number}.log", self.gpus)
        where = f"/{self.stage}/gpus"
        with leased_gpus(self.control, self.gpus, self._gpu_count(), str(self.stage), where) as grant:
            document.gpus = grant.real()
            folder = self.store.folder(self.folder_key)
            log_path = logs / f"{self.stage}-{number}.log"
            supervisor = StageSupervisor(document, folder, log_path, self.control, self.settings.stop_grace_s)
            try:
                result = supervisor.run(self._clock(), grant)
            except Exception:
                self.store.delete(f"{self.folder_key}/out")
                raise
        if result.error is not None:
            self._clear(result.error.reason)
            raise StageFailed(result.error)
        return Manifest(
            stage=self.stage,
            key=self.key,
            token=self.control.token,
            job_id=self.record.id,
            root=f"{self.folder_key}/out",
            inputs=self.inputs.digests(self.stage),
            parameters=self.parameters,
            versions=library_versions(),
            files=result.files,
            summary=result.summary,
            seconds=round(time.monotonic() - started, 3),
            created_at=now(),
        )

    def commit(self, manifest: Manifest) -> Manifest:
        """Publish the stage's files, unless another attempt was first: then its manifest holds and ours are removed."""
        if self.store.create(self.manifest_key, manifest.model_dump_json(indent=1).encode()):
            self.store.delete(f"{self.folder_key}/work")
            self._delete_other_attempts()
            return manifest
        self.store.delete(self.folder_key)
        return Manifest.model_validate_json(self.store.read(self.manifest_key))

    def register_draft(self, manifest: Manifest) -> str:
        """Enter a publish stage's draft in the registry and return its id; equal stages name the same draft."""
        draft_id = f"draft_{manifest.key[:DRAFT_ID_CHARACTERS]}"
        record = DraftRecord(
            id=draft_id,
            job_id=manifest.job_id,
            verifier=manifest.summary["verifier"],
            algorithm=manifest.summary["algorithm"],
            root=manifest.root,
            manifest=self.manifest_key,
            bytes=sum(file.size for file in manifest.files),
            evaluation=manifest.summary["evaluation"],
            gate=manifest.summary["gate"],
            created_at=manifest.created_at,
        )
        self.store.create(f"drafts/{draft_id}.json", record.model_dump_json(indent=1).encode())
        return draft_id

    def _delete_other_attempts(self) -> None:
        for token in self.store.list(f"{self.prefix}/attempts"):
            if token != self.control.token:
                with contextlib.suppress(ArtifactStoreError):  # one that was fenced may still be writing
                    self.store.delete(f"{self.prefix}/attempts/{token}")

    def _clear(self, reason: StatusReason) -> None:
        """Remove what a failed attempt half made; what a later one can take over stays, if another try can help."""
        self.store.delete(self.folder_key if reason == StatusReason.USER_ERROR else f"{self.folder_key}/out")

    def _clock(self) -> StageClock:
        managed = self.record.spec.verifier.managed or ManagedVerifier()
        return StageClock(getattr(self.record.spec.limits, f"{self.stage}_s"), managed.start_timeout_s)

    def _gpu_count(self) -> int:
        counts = {Stage.TRAIN: self.record.spec.train.gpus, Stage.EVALUATE: self.record.spec.evaluate.gpus}
        return counts.get(self.stage, 0)

    def _document(self) -> StageRun:
        folder = self.store.folder(self.folder_key)
        for part in ("out", "work"):
            shutil.rmtree(folder / part, ignore_errors=True)
            (folder / part).mkdir()
        earlier = [path for path in folder.parent.iterdir() if path != folder and (path / "work").is_dir()]
        earlier.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        exchange = self.settings.exchange_root.absolute()
        exchange.mkdir(parents=True, exist_ok=True)
        return StageRun(
            job_id=self.record.id,
            stage=self.stage,
            token=self.control.token,
            spec=self.inputs.spec,
            inputs=self.inputs.folders(self.stage),
            input_digests=self.inputs.digests(self.stage),
            out=folder / "out",
            work=folder / "work",
            previous=[path / "work" for path in earlier],
            exchange=exchange,
            served_model=served_model_name(self.record.spec),
            gpu_verifier=any(is_real(gpu) for gpu in self.gpus.ids),
        )
