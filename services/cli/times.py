"""Times as people give them on the command line: RFC 3339, a date, or how long ago."""

import re
from datetime import UTC, datetime, timedelta

from services.cli.errors import BadInput

AGO = re.compile(r"(\d{1,6})([smhdw])")
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def moment(text: str | None) -> str | None:
    """A time in RFC 3339. One without an offset is the local time of this machine; `12h` is twelve hours ago.

    Raises:
        BadInput: it is no time.
    """
    if text is None:
        return None
    if ago := AGO.fullmatch(text):
        return (datetime.now(UTC) - timedelta(**{UNITS[ago[2]]: int(ago[1])})).isoformat()
    try:
        return datetime.fromisoformat(text).astimezone().isoformat()
    except (ValueError, OverflowError):
        raise BadInput(f"{text} is no time: give 2026-01-31, 2026-01-31T12:00:00Z, or 30m, 12h, 7d ago") from None
