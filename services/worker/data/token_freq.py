"""Reads a `token_freq.pt`: `python -m services.worker.data.token_freq PATH`.

Out: one line of JSON, `{"counts": {"ID": COUNT}}` or `{"error": "..."}`.
"""

import json
import sys
from pathlib import Path
from typing import Any

from services.worker.data.tensor_files import load_pt
from shared.errors import UserError


def read_token_freq(path: Path) -> dict[int, int]:
    """The counts of a file as speculators writes it: a dictionary of ids and counts.

    Raises:
        UserError: it holds something else.
    """
    content: Any = load_pt(path)
    if not isinstance(content, dict):
        raise UserError(f"holds {type(content).__name__}, wanted is a dictionary of token ids and counts")
    for id_, count in content.items():
        if type(id_) is not int or type(count) is not int:
            raise UserError(f"has {str(id_)[:40]!r}: {str(count)[:40]!r}, wanted are whole numbers")
    return content


def main(arguments: list[str]) -> int:
    """Print what the file holds."""
    try:
        answer: dict[str, Any] = {"counts": read_token_freq(Path(arguments[0]))}
    except UserError as error:
        answer = {"error": error.message}
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
