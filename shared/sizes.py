"""Sizes as people read them."""

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def human_bytes(count: float) -> str:
    """Bytes in the unit that suits them: 512 B, 1.5 MiB."""
    for unit in UNITS:
        if abs(count) < 1024 or unit == UNITS[-1]:
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == UNITS[0] else f"{count:.1f} {unit}"
