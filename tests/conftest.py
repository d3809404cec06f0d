"""What all tests share: nothing is fetched from a hub, and a test's folder decides its marker."""

import os
import signal
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MARKED_FOLDERS = ("integration", "e2e")

# Before any library reads them. Tests run on what they make themselves.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# Who was started in the background ignores Ctrl-C, and so would all that the tests start and interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = item.path.relative_to(HERE).parts[0] if item.path.is_relative_to(HERE) else ""
        if folder in MARKED_FOLDERS:
            item.add_marker(folder)
