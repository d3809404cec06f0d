"""train, the real one."""

from services.worker.stages.train import run

__all__ = ["run"]
