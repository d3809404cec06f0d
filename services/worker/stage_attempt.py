"""One attempt at one stage: from its key to files under the attempt's token, and the manifest that publishes them."""

import contextlib
import logging
import shutil
import time
from collections.abc import Callable, Sequence

from services.worker.beside import beside
from services.worker.damage import damaged_outputs, is_whole, set_aside
from services.worker.gpu_locks import is_real
from services.worker.gpus import LocalGpus, leased_gpus
from services.worker.log_upload import shown_logs
from services.worker.row_sets import RowSets
from services.worker.run_control import RunControl
from services.worker.stage_clock import StageClock
from services.worker.stage_inputs import StageInputs, library_versions
from services.worker.stage_run import StageRun
from services.worker.stage_supervisor import StageSupervisor
from services.worker.store_watch import StoreWatch, require_room
from services.worker.training.row_index import require_learnable_rows
from services.worker.verifier_session import VerifierSession, served_model_name
from shared.artifact_store import LocalArtifactStore
from shared.errors import ArtifactStoreError, StatusReason
from shared.manifests import read_manifest
from shared.schemas.job import ErrorDetail, JobRecord, Stage, now
from shared.schemas.manifest import Manifest
from shared.schemas.spec import ManagedVerifier
from shared.settings import Settings
from shared.stage_keys import manifest_key, rowset_key, stage_folder, stage_key, stage_lease, stage_parameters
from shared.stage_logs import LogName, begin_log
from shared.verifier_config import capture_layer_ids

log = logging.getLogger(__name__)


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
        self.prefix = stage_folder(stage, self.key)
        self.manifest_key = manifest_key(stage, self.key)
        self.folder_key = f"{self.prefix}/attempts/{control.token}"
        self.lease = stage_lease(self.prefix)

    def finished(self) -> Manifest | None:
        """The manifest of an earlier or equal run, if one has finished and all its files are still there."""
        with self.control.kept_alive():  # to look at each of very many files may take longer than a lease
            manifest = read_manifest(self.store, self.manifest_key)
            return manifest if manifest is not None and is_whole(self.store, manifest) else None

    def set_aside_damaged(self) -> None:
        """Make room for a new manifest where the finished one or its files are damaged; needs the stage's lease."""
        with self.control.kept_alive():
            manifest = read_manifest(self.store, self.manifest_key)
            if manifest is None or not is_whole(self.store, manifest):
                set_aside(self.store, self.manifest_key, manifest)

    def run(self, number: int, session: VerifierSession | None) -> Manifest:
        """Run the stage to its end in a child process.

        Args:
            number: of this attempt, for the names of log files.
            session: for stages that need the verifier.

        Returns:
            The manifest to commit.

        Raises:
            StageFailed: the stage ended with an error.
            ArtifactStoreError: the store cannot take what the stage writes.
            Interrupted, Fenced, EyrieError: see `StageSupervisor`, `VerifierSession` and `leased_gpus`.
        """
        with self.control.kept_alive():
            if self.stage == Stage.TRAIN:
                rows = self.inputs.folders(self.stage)[Stage.CAPTURE] / "dataset"
                require_learnable_rows(rows, self.record.spec.train)
            needed, kept = self.inputs.disk_estimate(self.stage), self.store.used_bytes(self.prefix)
            require_room(self.store, self.settings, self.stage, needed, kept)
            document = self._document()
        logs = self.store.folder(f"jobs/{self.record.id}/logs")
        if session is not None:
            document.endpoint = session.endpoint(document.exchange, logs / f"verifier-{number}.log", self.gpus)
        where = f"/{self.stage}/gpus"
        with leased_gpus(self.control, self.gpus, self._gpu_count(), str(self.stage), where) as grant:
            document.gpus = grant.real()
            folder = self.store.folder(self.folder_key)
            log_path = begin_log(self.store, self.record.id, LogName(self.stage, number))
            grace_s, reached = self.settings.stop_grace_s, self.record.stage(self.stage).progress
            try:
                watch = StoreWatch(self.store, self.settings, self.stage)
                with shown_logs(self.store, self.control), beside(self.control, "store-watch", watch.look):
                    supervisor = StageSupervisor(
                        document, folder, log_path, self.control, grace_s, watch.check, reached, number
                    )
                    started = time.monotonic()
                    result = supervisor.run(self._clock(), grant)
                    seconds = round(time.monotonic() - started, 3)
            except Exception:
                self._afterwards(self.store.delete, f"{self.folder_key}/out")
                self._afterwards(self.store.publish, f"{self.folder_key}/work")
                raise
            finally:
                self._afterwards(self.store.publish, f"jobs/{self.record.id}/logs")
        if result.error is not None:
            self._clear(result.error.reason)
            self._afterwards(self.store.publish, f"{self.folder_key}/work")
            self._set_inputs_aside(result.damaged_inputs)
            raise StageFailed(result.error)
        return Manifest(
            stage=self.stage,
            key=self.key,
            token=self.control.token,
            job_id=self.record.id,
            root=f"{self.folder_key}/out",
            inputs=self.inputs.digests(self.stage),
            parameters=self.parameters,
            lineage=self.inputs.lineage(self.stage),
            versions=library_versions(),
            files=result.files,
            summary=result.summary,
            seconds=seconds,
            created_at=now(),
        )

    def commit(self, manifest: Manifest) -> Manifest:
        """Publish the stage's files, unless another attempt was first: then its manifest holds and ours are removed."""
        with self.control.kept_alive():
            self.store.publish(manifest.root)
            if self.store.create(self.manifest_key, manifest.model_dump_json(indent=1).encode()):
                self.store.delete(f"{self.folder_key}/work")
                return manifest
            self.store.delete(self.folder_key)
            return Manifest.model_validate_json(self.store.read(self.manifest_key))

    def discard_others(self) -> None:
        """Remove what other attempts at the finished stage left; to be called while the stage is leased."""
        with self.control.kept_alive():
            for token in self.store.list(f"{self.prefix}/attempts"):
                if token != self.control.token:
                    with contextlib.suppress(ArtifactStoreError):  # one that was fenced may still be writing
                        self.store.delete(f"{self.prefix}/attempts/{token}")

    def _afterwards(self, action: Callable[[str], None], key: str) -> None:
        """Tidy up, or let another machine go on, if that can be: what ended the stage is never replaced by it."""
        try:
            with self.control.kept_alive():
                action(key)
        except Exception as error:
            log.warning("job %s: what followed its %s stage failed at %s: %s", self.record.id, self.stage, key, error)

    def _clear(self, reason: StatusReason) -> None:
        """Remove what a failed attempt half made; what a later one can take over stays, if another try can help."""
        whole = reason == StatusReason.USER_ERROR
        self._afterwards(self.store.delete, self.folder_key if whole else f"{self.folder_key}/out")

    def _clock(self) -> StageClock:
        managed = self.record.spec.verifier.managed or ManagedVerifier()
        return StageClock(getattr(self.record.spec.limits, f"{self.stage}_s"), managed.start_timeout_s)

    def _set_inputs_aside(self, names: Sequence[str]) -> None:
        """Have the stages run again whose files turned out to be damaged, when a job wants them next."""
        for name, made in self.inputs.lineage(self.stage).stages.items():
            manifest = read_manifest(self.store, made.manifest)
            if name not in names or manifest is None or manifest.digest() != made.digest:
                continue
            lease = stage_lease(stage_folder(name, manifest.key))
            if self.control.hold([lease]):
                try:
                    set_aside(self.store, made.manifest, manifest)
                finally:
                    self.control.release([lease])

    def _gpu_count(self) -> int:
        counts = {Stage.TRAIN: self.record.spec.train.gpus, Stage.EVALUATE: self.record.spec.evaluate.gpus}
        return counts.get(self.stage, 0)

    def _rowset(self) -> str | None:
        spec, inputs = self.inputs.spec, self.inputs
        layer_ids = capture_layer_ids(spec.capture.layer_ids, inputs.verifier_config.num_hidden_layers)
        return rowset_key(self.stage, inputs.digests(self.stage).get("verifier", ""), layer_ids, spec)

    def _document(self) -> StageRun:
        folder = self.store.folder(self.folder_key)
        for part in ("out", "work"):
            shutil.rmtree(folder / part, ignore_errors=True)
            (folder / part).mkdir()
        attempts = self.store.place(f"{self.prefix}/attempts")
        earlier = [path for path in attempts.iterdir() if path != folder and (path / "work").is_dir()]
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
            upstream=self.inputs.upstream(self.stage),
            damaged=list(damaged_outputs(self.store, self.prefix)),
            out=folder / "out",
            work=folder / "work",
            previous=[path / "work" for path in earlier],
            siblings=RowSets(self.store).siblings(self.stage, self.key, self._rowset()),
            exchange=exchange,
            served_model=served_model_name(self.record.spec),
            gpu_verifier=any(is_real(gpu) for gpu in self.gpus.ids),
        )
