"""Before a stage reads its inputs: they are, byte for byte, what their manifests name, and they belong together.

In: a stage's `StageRun`. Out: the manifests of its upstream stages. Inputs that were made from different things refuse
to be mixed: each upstream stage must have read the very outputs that this stage reads too, and the same verifier.
"""

from collections.abc import Mapping
from pathlib import Path

from services.worker.stage_run import StageRun, StoredOutput
from shared.data.dataset_record import read_record
from shared.errors import ArtifactStoreError
from shared.integrity import Damage, absent_or_cut, changed
from shared.schemas.job import Stage
from shared.schemas.manifest import FileEntry, Manifest

SHOWN = 3
COMPARED = "compare"
STATES_SUFFIX = ".safetensors"
# Hidden states are most of the bytes; stages that do not read them look only whether they are there, whole in size.
STATES_MADE_BY = frozenset({"generate", "capture"})
STATES_READ_BY = frozenset({Stage.CAPTURE, Stage.TRAIN, Stage.EVALUATE})


class DamagedInput(ArtifactStoreError):
    """An input is not what its manifest says; `name` tells which."""

    def __init__(self, name: str, damages: list[Damage]) -> None:
        first = ", ".join(str(damage) for damage in damages[:SHOWN])
        more = f", and {len(damages) - SHOWN} more files" if len(damages) > SHOWN else ""
        super().__init__(
            f"the stored files of {name} are damaged: {first}{more}",
            where=f"{name}/{damages[0].path}",
            hint=_remedy(name),
        )
        self.name = name


def check_inputs(run: StageRun) -> dict[str, Manifest]:
    """Verify all that a stage is about to read: what earlier stages made, and datasets.

    Raises:
        DamagedInput: a file is missing, cut or changed.
        ArtifactStoreError: a manifest is not the one that was named, or two inputs do not belong together.
    """
    manifests = {name: _read(name, output, run) for name, output in run.upstream.items()}
    _check_chain(run, manifests)
    for name, manifest in manifests.items():
        damages = _damages(run, name, manifest)
        if damages:
            raise DamagedInput(name, damages)
    for name in run.inputs.keys() - run.upstream.keys():
        _check_dataset(name, run.inputs[name], run.input_digests.get(name))
    return manifests


def _check_dataset(name: str, folder: Path, digest: str | None) -> None:
    record = read_record(folder)
    if record.sha256 != digest:
        raise ArtifactStoreError(f"the dataset {record.id} is not the one that this job was given", where=name)
    files = [FileEntry(path=file.path, size=file.bytes, sha256=file.sha256) for file in record.files]
    if damages := changed(folder, files):
        raise DamagedInput(name, damages)


def _read(name: str, output: StoredOutput, run: StageRun) -> Manifest:
    try:
        manifest = Manifest.model_validate_json(output.manifest.read_bytes())
    except FileNotFoundError:
        raise _changed_meanwhile(name) from None
    if manifest.digest() != run.input_digests.get(name):
        raise _changed_meanwhile(name)
    return manifest


def _check_chain(run: StageRun, manifests: Mapping[str, Manifest]) -> None:
    """Hold what each input was made from against what this stage reads."""
    for name, manifest in manifests.items():
        if name == COMPARED:  # another draft may come from anywhere
            continue
        for source, digest in manifest.inputs.items():
            expected = run.input_digests.get(source)
            if expected is not None and digest != expected:
                raise ArtifactStoreError(
                    f"{name} was made from another {source} ({digest[:12]}) than {run.stage} reads ({expected[:12]})",
                    where=f"{run.stage}/{name}",
                    hint="submit the job again: inputs that were made from different things are never mixed",
                )
    own = {name: manifest for name, manifest in manifests.items() if name != COMPARED}
    verifiers = {name: made.inputs["verifier"] for name, made in own.items() if "verifier" in made.inputs}
    if len(set(verifiers.values())) > 1:
        shown = ", ".join(f"{name}: {digest[:12]}" for name, digest in verifiers.items())
        raise ArtifactStoreError(
            f"the inputs come from different verifiers ({shown})",
            where=str(run.stage),
            hint="submit the job again",
        )


def _damages(run: StageRun, name: str, manifest: Manifest) -> list[Damage]:
    folder = run.upstream[name].folder
    read = [entry for entry in manifest.files if _is_read(run.stage, name, entry)]
    unread = [entry for entry in manifest.files if not _is_read(run.stage, name, entry)]
    return [*absent_or_cut(folder, unread), *changed(folder, read)]


def _is_read(stage: Stage, name: str, entry: FileEntry) -> bool:
    return stage in STATES_READ_BY or name not in STATES_MADE_BY or not entry.path.endswith(STATES_SUFFIX)


def _changed_meanwhile(name: str) -> ArtifactStoreError:
    return ArtifactStoreError(
        f"the manifest of {name} is not the one that this job has read before",
        where=f"{name}/manifest.json",
        hint="it was made again meanwhile: submit the job again",
    )


def _remedy(name: str) -> str:
    if name == COMPARED:
        return "publish the draft that this one is compared with again, by submitting its job again"
    if name in set(Stage):
        return f"submit the job again: {name} is made again, and what is whole of it is kept"
    return "upload the dataset again"
