"""The trainer's loggers (`integrations` of a job): whether this worker has them, and what they may know of it.

A logger's credentials come from the worker's environment, by name: `VARIABLES` lists those that reach the trainer, and
only when its job asks for that logger. Other variables of a logger reach no stage at all. What is not said there keeps
everything on this machine: Trackio, W&B and MLflow write files beside the run.
"""

import importlib.util
from collections.abc import Iterable, Mapping
from pathlib import Path

from shared.errors import UserError
from shared.schemas.spec import JobSpec

DEFAULT = ("trackio",)
VARIABLES: dict[str, tuple[str, ...]] = {
    "tensorboard": (),
    "trackio": ("TRACKIO_SERVER_URL", "TRACKIO_WRITE_TOKEN"),
    "wandb": ("WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_ENTITY", "WANDB_MODE", "WANDB_PROJECT"),
    "mlflow": (
        "MLFLOW_EXPERIMENT_NAME",
        "MLFLOW_TRACKING_INSECURE_TLS",
        "MLFLOW_TRACKING_PASSWORD",
        "MLFLOW_TRACKING_SERVER_CERT_PATH",
        "MLFLOW_TRACKING_TOKEN",
        "MLFLOW_TRACKING_URI",
        "MLFLOW_TRACKING_USERNAME",
    ),
}


def is_installed(name: str) -> bool:
    """Tell whether the package of a logger is there; it is not imported."""
    return importlib.util.find_spec(name) is not None


def installed_loggers() -> list[str]:
    """The loggers that trainings of this worker can have."""
    return [name for name in VARIABLES if is_installed(name)]


def require_loggers(spec: JobSpec) -> None:
    """Refuse a job that asks for a logger which this worker lacks, before its first stage.

    Raises:
        UserError: names the first one.
    """
    for place, name in enumerate(spec.integrations or []):
        if not is_installed(name):
            raise UserError(
                f"the logger {name} is not installed on this worker",
                where=f"/integrations/{place}",
                hint=f"leave it out, or install it where workers run: pip install {name}",
            )


def loggers_of(spec: JobSpec) -> tuple[list[str], list[str]]:
    """The loggers of a job's training, and those that it would have by default and this worker lacks."""
    if spec.integrations is not None:
        return list(spec.integrations), []
    return [name for name in DEFAULT if is_installed(name)], [name for name in DEFAULT if not is_installed(name)]


def worker_variables(names: Iterable[str], environment: Mapping[str, str]) -> dict[str, str]:
    """What the worker's environment says to these loggers."""
    wanted = [variable for name in names for variable in VARIABLES[name]]
    return {variable: environment[variable] for variable in wanted if variable in environment}


def trainer_variables(names: Iterable[str], folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """What the trainer's environment says to its loggers; where the worker says nothing, all stays below `folder`."""
    local = {
        "tensorboard": {},
        "trackio": {"TRACKIO_DIR": str(folder / "trackio")},
        "wandb": {"WANDB_MODE": "offline", "WANDB_DIR": str(folder), "WANDB_ERROR_REPORTING": "false"}
        | {f"WANDB_{kind}_DIR": str(folder.parent / "wandb-own") for kind in ("CACHE", "CONFIG", "DATA")},
        "mlflow": {
            "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow' / 'mlflow.db'}",
            "MLFLOW_DISABLE_TELEMETRY": "true",
        },
    }
    names = list(names)
    kept = worker_variables(names, environment)
    return {variable: value for name in names for variable, value in local[name].items()} | kept
