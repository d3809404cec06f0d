"""vocab, scripted."""

from tests.support.page_stages.scripted import run

__all__ = ["run"]
