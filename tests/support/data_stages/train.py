"""train, scripted: what is tested is the data before it."""

from tests.support.light_stages.scripted import run

__all__ = ["run"]
