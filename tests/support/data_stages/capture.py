"""capture, the real one."""

from services.worker.stages.capture import run

__all__ = ["run"]
