"""Where the assistant speaks in a conversation, and what a row needs so that something is learnt from it.

The worker makes rows by these rules, the gateway shows by them what a job would make.
"""

from collections.abc import Iterator

from shared.data.refusal import RowRejected
from shared.data.rendering import Message


def speaking_turns(messages: list[Message], generate: bool) -> Iterator[tuple[list[Message], Message | None]]:
    """Yield each place where the assistant speaks: the messages since the last one, and what the dataset has there.

    Args:
        generate: the verifier writes the answers; it also speaks after a last user or tool turn.
    """
    before: list[Message] = []
    for message in messages:
        if message["role"] == "assistant":
            yield before, message
            before = []
        else:
            before.append(message)
    if generate and before and before[-1]["role"] in ("user", "tool"):
        yield before, None


def check_answer(answer_ids: list[int]) -> None:
    """Refuse an answer from which nothing is learnt: its last id has no state, so one id alone has none before it.

    Raises:
        RowRejected
    """
    if len(answer_ids) < 2:
        message = f"an answer of {len(answer_ids)} tokens has none to learn from"
        raise RowRejected("no_supervised_token", message)


def check_prompt(prompt_ids: list[int], max_seq_len: int) -> None:
    """Refuse a prompt that leaves no room for an answer.

    Raises:
        RowRejected
    """
    if len(prompt_ids) >= max_seq_len:
        message = f"a prompt of {len(prompt_ids)} tokens leaves no room in data.max_seq_len {max_seq_len}"
        raise RowRejected("prompt_too_long", message)


def clip_answer(prompt_ids: list[int], answer_ids: list[int], max_seq_len: int) -> list[int]:
    """The part of an answer that a row of `max_seq_len` positions has room for; the last id needs no position."""
    return answer_ids[: max_seq_len - len(prompt_ids) + 1]


def check_mask(loss_mask: list[int], max_seq_len: int) -> None:
    """Refuse a mask that supervises nothing in the first `max_seq_len` positions.

    The first position does not count: no state comes before it.

    Raises:
        RowRejected
    """
    if any(loss_mask[1:max_seq_len]):
        return
    if any(loss_mask[max_seq_len:]):
        message = f"the first supervised token lies beyond data.max_seq_len {max_seq_len}"
        raise RowRejected("prompt_too_long", message)
    raise RowRejected("no_supervised_token", "the loss mask has no 1 after its first position")
