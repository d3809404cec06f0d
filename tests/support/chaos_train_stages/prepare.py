"""prepare, scripted."""

from tests.support.chaos_stages.scripted import run

__all__ = ["run"]
