"""What must be true before vLLM is started: model, layer ids, shared folder, draft and port.

In: `VerifierSettings`. Out: `Checked` (the model's folder and the layer ids to capture), or a `VerifierConfigError`
that says what is wrong, where, and what to do.
"""

import json
import os
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shared.errors import UserError
from shared.verifier_config import VerifierConfig, find_model_folder, read_verifier_config
from shared.verifier_settings import ENV_PREFIX, VerifierMode, VerifierSettings, default_layer_ids

# Layers of hub ids that need not be on this machine to be known.
KNOWN_LAYERS = {"moonshotai/Kimi-K2.5": 61}


class VerifierConfigError(UserError):
    """The verifier cannot be started as asked."""


@dataclass(frozen=True)
class Checked:
    """Settings that hold: `folder` is None for a hub id not on this machine; `layer_ids` is empty unless capturing."""

    settings: VerifierSettings
    folder: Path | None
    layer_ids: tuple[int, ...]


def check(settings: VerifierSettings) -> Checked:
    """Check everything that can be known without loading the model.

    Raises:
        VerifierConfigError: the model's folder or `config.json` is missing or unusable, layer ids do not fit, the
            shared folder cannot be written, the draft is not one, or the port is taken.
    """
    folder, config = _read_model(settings)
    layer_ids: tuple[int, ...] = ()
    if settings.mode is VerifierMode.CAPTURE:
        layer_ids = resolve_layer_ids(settings.layer_ids, config, where=str(folder or settings.model))
        check_shared_folder(settings.shared_folder)
    if settings.mode is VerifierMode.DRAFT and settings.draft_path is not None:
        check_draft(settings.draft_path)
    check_port(settings.host, settings.port)
    return Checked(settings, folder, layer_ids)


def resolve_layer_ids(asked: Sequence[int] | None, config: VerifierConfig | None, *, where: str) -> tuple[int, ...]:
    """The states to capture, ascending, the final one always last.

    `config` is None where the model is not on this machine: `where`, its hub id, has to be a known one then.

    Raises:
        VerifierConfigError: an id is given twice or lies outside 1 to the number of layers, there is no default, or
            the number of layers is unknown.
    """
    name = ENV_PREFIX + "LAYER_IDS"
    final = config.num_hidden_layers if config is not None else KNOWN_LAYERS.get(where)
    if final is None:
        raise VerifierConfigError(
            "the model is not on this machine, so its number of layers is unknown",
            where=where,
            hint="fetch the model first, or give a folder that holds it",
        )
    if asked is None:
        try:
            return tuple(default_layer_ids(final))
        except ValueError as error:
            raise VerifierConfigError(str(error), where=where, hint=f"set {name}") from None
    if not asked:
        raise VerifierConfigError(
            "no layer id is given", where=name, hint=f"give ids from 1 to {final}, or leave it unset"
        )
    if repeated := sorted({k for k in asked if list(asked).count(k) > 1}):
        raise VerifierConfigError(f"layer ids {repeated} are given twice", where=name, hint="give each id once")
    if outside := sorted(k for k in asked if not 1 <= k <= final):
        raise VerifierConfigError(
            f"layer ids {outside} do not exist: the model has {final} layers",
            where=name,
            hint=f"give ids from 1 to {final}; {final} is the final state",
        )
    return tuple(sorted({*asked, final}))


def check_shared_folder(folder: Path) -> None:
    """Create the folder where it is missing and write a file into it.

    Raises:
        VerifierConfigError: it is not a folder or cannot be written by this user.
    """
    where = str(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".writable-"):
            pass
    except OSError as error:
        raise VerifierConfigError(
            f"the shared folder cannot be written: {error.strerror}",
            where=where,
            hint=f"set {ENV_PREFIX}SHARED_FOLDER to a folder that user {os.getuid()}, also the workers', can write",
        ) from None


def check_draft(folder: Path) -> None:
    """Look at a draft's folder: config and weights are there.

    Raises:
        VerifierConfigError: something is missing.
    """
    hint = f"point {ENV_PREFIX}DRAFT_PATH to the folder of a finished draft"
    if not folder.is_dir():
        raise VerifierConfigError("there is no such draft folder", where=str(folder), hint=hint)
    _read_json(folder, hint)
    if not any(folder.glob("*.safetensors")):
        raise VerifierConfigError("the draft's folder has no weights (*.safetensors)", where=str(folder), hint=hint)


def check_port(host: str, port: int) -> None:
    """Bind the port once, as vLLM will.

    Raises:
        VerifierConfigError: it is taken, or the address is not one of this machine's.
    """
    hint = f"stop what listens there, or set {ENV_PREFIX}PORT and {ENV_PREFIX}HOST"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except socket.gaierror as error:
        raise VerifierConfigError(
            f"the host is not known: {error.strerror}", where=f"{host}:{port}", hint=hint
        ) from None
    except OSError as error:
        raise VerifierConfigError(
            f"the port cannot be used: {error.strerror}", where=f"{host}:{port}", hint=hint
        ) from None


def _read_model(settings: VerifierSettings) -> tuple[Path | None, VerifierConfig | None]:
    try:
        folder = find_model_folder(settings.model, settings.revision)
        if folder is None:
            return None, None
        _read_json(folder, f"point {ENV_PREFIX}MODEL to the folder of a complete checkpoint")
        return folder, read_verifier_config(folder)
    except VerifierConfigError:
        raise
    except UserError as error:
        raise VerifierConfigError(
            error.message, where=error.where, hint=error.hint or f"check {ENV_PREFIX}MODEL"
        ) from None


def _read_json(folder: Path, hint: str) -> None:
    path = folder / "config.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise VerifierConfigError("the folder has no config.json", where=str(folder), hint=hint) from None
    except OSError as error:
        raise VerifierConfigError(f"config.json cannot be read: {error.strerror}", where=str(path), hint=hint) from None
    except ValueError as error:
        raise VerifierConfigError(f"config.json is not JSON: {error}", where=str(path), hint=hint) from None
    if not isinstance(document, dict) or not isinstance(document.get("text_config", {}), dict):
        raise VerifierConfigError("config.json is not an object", where=str(path), hint=hint)
