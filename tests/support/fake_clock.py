"""A process's own wall clock, off or set back while it runs, by libfaketime; the machine's clock is never touched."""

import importlib.util
import platform
from pathlib import Path

SUPPORTED = platform.machine() == "x86_64"  # the wheel's library is built for it alone


class FakeClock:
    """The wall clock of the processes that are started with `environment`; `set` moves it while they run.

    Monotonic clocks go on as they are: they do on a machine whose clock is set.
    """

    def __init__(self, folder: Path, offset: str) -> None:
        self.file = folder / f"clock{offset}"
        self.set(offset)

    def set(self, offset: str) -> None:
        """Put the clock off by an amount, such as `+10m` or `-600`."""
        temporary = self.file.with_suffix(".tmp")
        temporary.write_text(offset)
        temporary.replace(self.file)

    def environment(self) -> dict[str, str]:
        """Variables for the processes."""
        spec = importlib.util.find_spec("libfaketime")
        assert spec is not None
        assert spec.origin is not None
        library = Path(spec.origin).parent / "vendor" / "libfaketime" / "src" / "libfaketime.so.1"
        return {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self.file),
            "FAKETIME_NO_CACHE": "1",
            "DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }
