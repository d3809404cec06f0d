"""prepare, the real one."""

from services.worker.stages.prepare import run

__all__ = ["run"]
