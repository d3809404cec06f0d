"""Pages of lists that are kept as names."""

from collections.abc import Sequence

from services.gateway.problems import Problem


def page_of(ids: Sequence[str], after: str | None, limit: int) -> tuple[Sequence[str], bool]:
    """The entries after `after`, at most `limit`, and whether more follow.

    Raises:
        Problem: 422, there is no entry `after`.
    """
    first = 0
    if after is not None:
        if after not in ids:
            raise unknown_after(after)
        first = ids.index(after) + 1
    return ids[first : first + limit], len(ids) > first + limit


def unknown_after(after: str) -> Problem:
    """The page before cannot have ended with this id."""
    message = f"there is no entry {after!r}; give the id of the last entry of the page before"
    field = {"source": "query", "pointer": "/after", "message": message}
    return Problem(422, message, errors=[field])
