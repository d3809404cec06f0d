"""`make chaos`: every nemesis at full strength, then one line of JSON with what was counted.

    python -m tools.chaos [--seed N] [pytest's arguments]

The line holds `passed`, `failed`, `violations`, `resume_seconds` (from kill -9 in mid-training to the successor's first
step), and what each nemesis did. The exit code is not 0 when anything failed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Run the suite, show its progress, and print the line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="chooses targets and moments; a failure names its seed")
    arguments, pytest_arguments = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="eyrie-chaos-") as folder:
        report = Path(folder) / "junit.xml"
        environment = {
            **os.environ,
            "EYRIE_CHAOS": "full",
            "EYRIE_CHAOS_SEED": str(arguments.seed),
            "EYRIE_CHAOS_RESULTS": folder,
        }
        command = [sys.executable, "-m", "pytest", "tests/chaos", "-v", f"--junit-xml={report}", *pytest_arguments]
        code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        print(json.dumps(summary(report, Path(folder)) | {"seed": arguments.seed}))
    return code


def summary(report: Path, folder: Path) -> dict[str, Any]:
    """The figures of a run, from pytest's report and from what each test has kept."""
    # S314: pytest has just written it
    suite = ElementTree.parse(report).getroot().find("testsuite") if report.exists() else None  # noqa: S314
    tests, failed = 0, 1
    if suite is not None:
        failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        tests = int(suite.get("tests", 0)) - int(suite.get("skipped", 0))
    kept = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    resumed = kept.pop("resume", {})
    control = kept.pop("control_plain_rq", {})
    return {
        "passed": max(0, tests - failed),
        "failed": failed,
        "violations": sum(len(figures["violations"]) for figures in kept.values()),
        "resume_seconds": resumed.get("seconds"),
        "resumed_from_step": resumed.get("from_step"),
        "control_lost_jobs": control.get("lost"),
        "control_strikes": control.get("counts", {}).get("sigterm"),
        "jobs": sum(figures["jobs"] for figures in kept.values()),
        "nemeses": {name: figures["counts"] for name, figures in kept.items()},
    }


if __name__ == "__main__":
    sys.exit(main())
