"""Many requests to the verifier at the same time, and one error that says what went wrong."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


async def for_each(items: Iterable[T], concurrency: int, work: Callable[[T], Awaitable[None]]) -> None:
    """Await `work(item)` for all items, `concurrency` at a time.

    Raises:
        Exception: the first error that `work` raised, as it is; what was under way is cancelled.
    """
    waiting = iter(items)

    async def keep_working() -> None:
        for item in waiting:
            await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(keep_working())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
