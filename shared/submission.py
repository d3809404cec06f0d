"""Checks of a resolved job document before it is accepted: whether the job can work at all.

In: a `JobSpec` that is valid in itself. Out: the same with its verifier's endpoint filled in, or a
`SubmissionError` that names every field that is wrong. Pydantic has checked types and bounds before;
here is what needs a look at the artifact store and at the verifier's folder.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from shared.artifact_store import LocalArtifactStore
from shared.dataset_kinds import kind_problems, rows_without_states
from shared.draft_shape import draft_shape, require_trainable_size
from shared.draft_vocabulary import check_draft_vocabulary, settle_vocabulary
from shared.errors import UserError
from shared.ids import is_id
from shared.schemas.spec import JobSpec
from shared.verifier_config import VerifierConfig, capture_layer_ids, find_model_folder, read_verifier_config
from shared.verifier_settings import COMMIT
from shared.verifier_weights import has_weights, locate_verifier_tensors

HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?$")
REVISION = re.compile(r"^[A-Za-z0-9][\w./-]*$")


@dataclass(frozen=True)
class FieldError:
    """One field of a document and what is wrong with it."""

    pointer: str
    message: str


class SubmissionError(UserError):
    """A document that cannot work; `errors` has one entry a field."""

    def __init__(self, errors: list[FieldError]) -> None:
        super().__init__("the job document cannot be accepted", where=errors[0].pointer)
        self.errors = errors


def check_submission(spec: JobSpec, store: LocalArtifactStore, verifier_url: str | None) -> JobSpec:
    """Return the document as it shall be stored.

    Args:
        verifier_url: the fleet's own verifier, taken when the document names no way to reach one.

    Raises:
        SubmissionError
    """
    complete = _with_endpoint(spec, verifier_url)
    errors = [
        *_reach_errors(complete, store),
        *_reference_errors(complete, store),
        *_layer_errors(complete),
    ]
    try:
        complete = settle_vocabulary(complete, store)
    except UserError as error:
        errors.append(FieldError(error.where, _text(error)))
        draft = complete.draft.model_copy(update={"vocab_size": 1})  # unknown; not worth a second complaint
        complete = complete.model_copy(update={"draft": draft})
    try:
        config = _verifier_config(complete)
    except UserError as error:
        errors.append(FieldError("/verifier/model", str(error)))
    except OSError as error:
        errors.append(FieldError("/verifier/model", f"the verifier's folder cannot be read: {error.strerror}"))
    else:
        if config is not None:
            complete = _within_context(complete, config.context)
            errors.extend([*_shape_errors(complete, config), *_length_errors(complete, config)])
            errors.extend(_vocabulary_errors(complete, store, config) if not errors else [])
    if errors:
        raise SubmissionError(errors)
    return complete


def _with_endpoint(spec: JobSpec, verifier_url: str | None) -> JobSpec:
    if spec.verifier.endpoint or spec.verifier.managed or not verifier_url:
        return spec
    verifier = spec.verifier.model_copy(update={"endpoint": verifier_url})
    return spec.model_copy(update={"verifier": verifier})


def _within_context(spec: JobSpec, context: int | None) -> JobSpec:
    """With a managed verifier's length as short as its context, where the document does not ask for one."""
    managed = spec.verifier.managed
    if managed is None or context is None or managed.max_model_len <= context:
        return spec
    if "max_model_len" in managed.model_fields_set:
        return spec
    shorter = managed.model_copy(update={"max_model_len": context})
    return spec.model_copy(update={"verifier": spec.verifier.model_copy(update={"managed": shorter})})


def _reach_errors(spec: JobSpec, store: LocalArtifactStore) -> Iterator[FieldError]:
    verifier = spec.verifier
    unreachable = bool(not verifier.endpoint and verifier.managed is None)
    stateless = rows_without_states(spec, store) if unreachable else 0
    if stateless:
        yield FieldError(
            "/verifier",
            f"{stateless} rows bring no hidden states, more than data.max_bad_fraction, and there is no verifier to "
            "ask: give `endpoint` or `managed`",
        )
    if stateless is None:
        yield FieldError(
            "/verifier",
            "there is no way to reach the verifier: give `endpoint` (the URL of a running one) or `managed` "
            "(the worker starts it), or set EYRIE_VERIFIER_URL for the whole service",
        )
    if verifier.endpoint and (problem := _url_problem(verifier.endpoint)):
        yield FieldError("/verifier/endpoint", f"the endpoint {problem}")
    remote_code = verifier.managed is not None and verifier.managed.trust_remote_code
    pinned = COMMIT.fullmatch(verifier.revision or "")
    if remote_code and not pinned and not Path(verifier.model).is_absolute():
        yield FieldError(
            "/verifier/revision",
            "`trust_remote_code` on a hub model needs `revision` to be a commit of 40 hexadecimal digits: "
            "what a branch or a tag names can change, and its code would run here",
        )


def _url_problem(url: str) -> str | None:
    """What keeps `url` from being the base URL of a verifier, if anything. Never repeats what may be a password."""
    try:
        parts = urlsplit(url)
        if parts.username is not None or parts.password is not None:
            return "holds a user name or password, which everyone who may see the job could read: leave them out"
        usable = bool(parts.hostname) and parts.port != 0 and url.isprintable() and " " not in url
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment:
        return f"{url!r} is not the URL of a server, such as http://verifier:8000"
    if parts.path.rstrip("/").endswith("/v1"):
        return f"{url!r} ends in /v1: give the server's URL without it"
    return None


def _reference_errors(spec: JobSpec, store: LocalArtifactStore) -> Iterator[FieldError]:
    datasets = {"/data/dataset": spec.data.dataset} | {
        f"/evaluate/suites/{place}/dataset": suite.dataset
        for place, suite in enumerate(spec.evaluate.suites)
        if suite.dataset
    }
    for pointer, dataset in datasets.items():
        if not is_id(dataset, "ds") or not store.exists(f"datasets/{dataset}/dataset.json"):
            yield FieldError(pointer, f"there is no dataset {dataset!r}: upload one with POST /v1/datasets")
    for pointer, message in kind_problems(spec, store):
        yield FieldError(pointer, message)
    draft = spec.evaluate.compare_to
    if draft and (not is_id(draft, "draft") or not store.exists(f"drafts/{draft}.json")):
        yield FieldError("/evaluate/compare_to", f"there is no draft {draft!r}: GET /v1/drafts lists them")


def _layer_errors(spec: JobSpec) -> Iterator[FieldError]:
    layers = spec.capture.layer_ids
    if layers is None:
        return
    if not layers:
        yield FieldError("/capture/layer_ids", "give at least one layer, or leave the field out")
    if len(set(layers)) != len(layers):
        yield FieldError("/capture/layer_ids", "the layers must differ from each other")


def _verifier_config(spec: JobSpec) -> VerifierConfig | None:
    """The verifier's dimensions, or None where only the workers can see them."""
    model, revision = spec.verifier.model, spec.verifier.revision
    if revision and (not REVISION.fullmatch(revision) or ".." in revision):
        raise UserError("the revision must be the name of a branch, tag or commit", where=revision)
    if not Path(model).is_absolute() and (not HUB_ID.fullmatch(model) or ".." in model):
        raise UserError(
            "this is neither an absolute path nor a hub id",
            where=model,
            hint="give the absolute path of a model folder as the workers see it, or `owner/name`",
        )
    if not Path(model).is_absolute() and Path(model).is_dir():
        raise UserError(
            "this is a folder where the gateway happens to run, and may be another one for the workers",
            where=model,
            hint="give its absolute path",
        )
    folder = find_model_folder(model, revision)
    if folder is None:
        return None
    config = read_verifier_config(folder)
    if has_weights(folder):  # else only the workers have them
        locate_verifier_tensors(folder)
    return config


def require_fitting_shape(spec: JobSpec, config: VerifierConfig) -> None:
    """The checks of layers and draft that submission leaves out where only the workers can see the verifier.

    Raises:
        UserError: the first thing that does not fit.
    """
    for error in _shape_errors(spec, config):
        raise UserError(error.message, where=error.pointer)


def _shape_errors(spec: JobSpec, config: VerifierConfig) -> Iterator[FieldError]:
    last = config.num_hidden_layers - 1
    for place, layer in enumerate(spec.capture.layer_ids or []):
        if layer > last:
            yield FieldError(
                f"/capture/layer_ids/{place}",
                f"layer {layer} is not in 1..{last}; the final layer is always kept beside these",
            )
    try:
        auxiliary = spec.capture.layer_ids or capture_layer_ids(None, config.num_hidden_layers)[:-1]
        shape = draft_shape(spec.draft, config.raw)
        require_trainable_size(shape, spec.draft.vocab_size, len(auxiliary))
    except UserError as error:
        yield FieldError(error.where if error.where.startswith("/") else "/draft", _text(error))


def _vocabulary_errors(spec: JobSpec, store: LocalArtifactStore, config: VerifierConfig) -> Iterator[FieldError]:
    folder = find_model_folder(spec.verifier.model, spec.verifier.revision)
    if folder is None:
        return
    try:
        check_draft_vocabulary(spec, store, folder, config.vocab_size)
    except UserError as error:
        yield FieldError(error.where if error.where.startswith("/") else "/verifier/model", _text(error))


def _length_errors(spec: JobSpec, config: VerifierConfig) -> Iterator[FieldError]:
    """Lengths that the verifier cannot read or write: prompt and answer share its context."""
    context, whose = config.context, "the verifier's context"
    managed = spec.verifier.managed
    if context is not None and managed is not None and managed.max_model_len > context:
        yield FieldError("/verifier/managed/max_model_len", f"{whose} is {context} tokens")
    elif managed is not None:
        context, whose = managed.max_model_len, "verifier.managed.max_model_len"
    if context is None:
        return
    if spec.data.max_seq_len > context:
        yield FieldError("/data/max_seq_len", f"rows of {spec.data.max_seq_len} tokens: {whose} is {context}")
    answers = {"/data/sampling/max_tokens": spec.data.sampling.max_tokens} if spec.data.generate else {}
    for pointer, tokens in {**answers, "/evaluate/max_tokens": spec.evaluate.max_tokens}.items():
        if tokens is not None and tokens >= context:
            yield FieldError(pointer, f"{tokens} tokens leave no room for a prompt: {whose} is {context}")


def _text(error: UserError) -> str:
    return f"{error.message} ({error.hint})" if error.hint else error.message
