"""vocab, scripted."""

from tests.support.light_stages.scripted import run

__all__ = ["run"]
