"""Identifiers with a prefix, sortable by time of creation."""

import re
import secrets
import time

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32, lower case
ID_PATTERN = re.compile(r"^[a-z]+_[0-9a-hjkmnp-tv-z]{20}$")


def new_id(prefix: str) -> str:
    """Return `prefix_` and 20 characters: 9 of milliseconds since 1970, 11 (55 bits) of chance."""
    stamp, chance = time.time_ns() // 1_000_000, secrets.randbits(55)
    return f"{prefix}_{_base32(stamp, 9)}{_base32(chance, 11)}"


def is_id(text: str, prefix: str) -> bool:
    """Tell whether `text` is an identifier that `new_id(prefix)` could have made."""
    return text.startswith(f"{prefix}_") and ID_PATTERN.fullmatch(text) is not None


def _base32(number: int, width: int) -> str:
    digits = [ALPHABET[(number >> (5 * place)) & 31] for place in range(width)]
    return "".join(reversed(digits))
