"""Names of the files of a vocabulary: `t2d` and `d2t`, one array each, or both in one file."""

import re
from collections.abc import Iterable

from shared.errors import UserError

FILE_NAME = re.compile(r"(?P<array>t2d|d2t)(-\d+)?\.(npy|pt)")
BOTH_NAME = "vocab_mapping.pt"
WANTED = "t2d.npy and d2t.npy (or .pt), or vocab_mapping.pt with both tensors"


def is_vocabulary_name(name: str) -> bool:
    """Whether a file is called like one of a vocabulary."""
    return name == BOTH_NAME or FILE_NAME.fullmatch(name) is not None


def vocabulary_names(names: Iterable[str]) -> dict[str, str]:
    """Which file holds which array: `{"t2d": name, "d2t": name}`.

    Raises:
        UserError: one is absent, or there are several.
    """
    found: dict[str, list[str]] = {"t2d": [], "d2t": []}
    for name in sorted(names):
        match = FILE_NAME.fullmatch(name)
        for array in [match["array"]] if match else ["t2d", "d2t"] if name == BOTH_NAME else []:
            found[array].append(name)
    for array, holders in found.items():
        if len(holders) != 1:
            what = f"{len(holders)} files with {array} ({', '.join(holders)})" if holders else f"no {array}"
            raise UserError(f"the vocabulary has {what}", hint=f"give {WANTED}")
    return {array: holders[0] for array, holders in found.items()}
