"""generate, the real one."""

from services.worker.stages.generate import run

__all__ = ["run"]
