"""Plans a job: what it would need, and everything that stands against it; nothing is started or stored.

In: a partial job document. Out: a `Plan`. Figures come from the dataset's size, or from what equal stages have counted
that finished before; such stages are named as reused.
"""

from typing import Any

from pydantic import ValidationError

from services.gateway.capacity import memory_notes
from services.gateway.deps import Backend
from services.gateway.job_checks import check_job
from services.gateway.stage_history import add_seconds
from shared.artifact_store import LocalArtifactStore
from shared.dataset_kinds import has_all_states, new_states_share, read_dataset, reads_dataset, text_bytes
from shared.errors import UserError
from shared.estimate import (
    draft_parameters,
    estimate_disk,
    estimate_steps,
    estimate_tokens,
    state_bytes_per_token,
    train_memory,
    verifier_starts,
)
from shared.fleet import Fleet
from shared.manifests import read_manifest
from shared.presets import pointer_errors, resolve
from shared.schemas.job import Stage
from shared.schemas.manifest import Manifest
from shared.schemas.plan import Amount, Plan, PlanProblem, StagePlan
from shared.schemas.registry import DatasetRecord
from shared.schemas.spec import JobSpec
from shared.sizes import human_bytes
from shared.stage_keys import UPSTREAM, manifest_key, stage_key, stage_parameters
from shared.store_room import store_room
from shared.verifier_config import VerifierConfig, find_model_folder, visible_verifier_config
from shared.verifier_identity import identify_verifier

DATA_STAGES = {Stage.GENERATE, Stage.CAPTURE}
NOTHING = Amount(least=0, likely=0, most=0)
# Stages whose inputs are all known from the document and the store; evaluation reads suites and other drafts, too.
FOLLOWED = (Stage.PREPARE, Stage.GENERATE, Stage.CAPTURE, Stage.VOCAB, Stage.TRAIN)


def plan_job(backend: Backend, document: dict[str, Any]) -> Plan:
    """Work out what a document would lead to.

    Raises:
        ArtifactStoreError: the store cannot be read.
    """
    room = store_room(backend.artifacts, backend.settings)
    plan = Plan(ok=True, store=room)
    try:
        spec = resolve(document)
    except ValidationError as error:
        plan.problems = [PlanProblem.model_validate(field) for field in pointer_errors(error)]
    except UserError as error:
        plan.problems = [PlanProblem(pointer=error.where, message=_text(error))]
    else:
        _fill(plan, spec, backend)
    plan.ok = not plan.problems
    return plan


def _fill(plan: Plan, spec: JobSpec, backend: Backend) -> None:
    spec, errors = check_job(backend, spec)
    plan.problems = [PlanProblem(pointer=field.pointer, message=field.message) for field in errors]
    plan.document = spec
    record = read_dataset(backend.artifacts, spec.data.dataset)
    config = visible_verifier_config(spec.verifier.model, spec.verifier.revision)
    if config is not None:
        _fill_shape(plan, spec, config)
        plan.notes += memory_notes(spec, Fleet(backend.jobs.redis).workers(), config)
    else:
        plan.notes = ["the gateway does not see the verifier's checkpoint: no figures that depend on its shape"]
    if record is not None and config is not None and not plan.problems:
        _fill_stages(plan, spec, record, config, backend.artifacts)
    silent = plan.reused() | (DATA_STAGES if record is not None and has_all_states(record) else set())
    _fill_loading(plan, spec, silent, Fleet(backend.jobs.redis))
    if plan.stages:
        add_seconds(plan, spec, silent, backend.jobs)


def _fill_loading(plan: Plan, spec: JobSpec, silent: set[Stage], fleet: Fleet) -> None:
    plan.verifier_starts = verifier_starts(spec, silent)
    plan.verifier_load_seconds = fleet.load_seconds(spec.verifier.model)
    if plan.verifier_load_seconds is not None:
        plan.loading_seconds = round(plan.verifier_starts * plan.verifier_load_seconds, 1)


def _fill_shape(plan: Plan, spec: JobSpec, config: VerifierConfig) -> None:
    try:
        plan.bytes_per_token = state_bytes_per_token(spec, config)
        parameters = draft_parameters(spec.draft, config, spec.capture.layer_ids)
    except UserError as error:
        if not plan.problems:
            plan.problems = [PlanProblem(pointer=error.where, message=_text(error))]
    else:
        plan.draft_parameters, plan.draft_parameters_total = parameters, parameters.total
        plan.gpu_memory_bytes = train_memory(spec, config, parameters) if spec.train.gpus else None


def _fill_stages(
    plan: Plan, spec: JobSpec, record: DatasetRecord, config: VerifierConfig, store: LocalArtifactStore
) -> None:
    finished = _finished(spec, record, store)
    tokens = estimate_tokens(spec, record, finished.get(Stage.PREPARE), finished.get(Stage.GENERATE))
    plan.tokens, plan.steps = tokens, estimate_steps(spec, tokens)
    text, share = text_bytes(record), new_states_share(spec, record)
    plan.stages = [
        StagePlan(
            name=stage,
            disk_bytes=NOTHING if stage in finished else estimate_disk(stage, spec, config, tokens, text, share),
            reused=stage in finished,
        )
        for stage in Stage
    ]
    plan.disk_bytes = sum((stage.disk_bytes for stage in plan.stages), NOTHING)
    if plan.disk_bytes.likely > plan.store.left:
        message = (
            f"the job needs about {human_bytes(plan.disk_bytes.likely)} in the artifact store "
            f"(at least {human_bytes(plan.disk_bytes.least)}), which has {human_bytes(max(0, plan.store.left))} left"
        )
        plan.problems = [PlanProblem(pointer="", message=message)]


def _finished(spec: JobSpec, record: DatasetRecord, store: LocalArtifactStore) -> dict[Stage, Manifest]:
    """Stages of equal jobs that would be reused, from the first one on."""
    folder = find_model_folder(spec.verifier.model, spec.verifier.revision)
    found: dict[Stage, Manifest] = {}
    if folder is None:
        return found
    verifier = identify_verifier(folder).fingerprint
    given = read_dataset(store, spec.draft.vocabulary) if spec.draft.vocabulary else None
    datasets = {"dataset": record} | ({"vocabulary": given} if given else {})
    for stage in FOLLOWED:
        inputs = {str(name): found[name].digest() for name in UPSTREAM[stage]} | {"verifier": verifier}
        inputs |= {name: item.sha256 for name, item in datasets.items() if reads_dataset(stage, name, item)}
        manifest = read_manifest(store, manifest_key(stage, stage_key(stage, inputs, stage_parameters(stage, spec))))
        if manifest is None or store.damages(manifest.root, manifest.files):
            break
        found[stage] = manifest
    return found


def _text(error: UserError) -> str:
    return f"{error.message} ({error.hint})" if error.hint else error.message
