"""publish, the real one."""

from services.worker.stages.publish import run

__all__ = ["run"]
