"""vocab, the real one."""

from services.worker.stages.vocab import run

__all__ = ["run"]
