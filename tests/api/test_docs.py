"""docs/api.md from a bare clone: every `curl` line is run in order, against the clone's own gateway and worker.

A line succeeds with a status below 400, or with the one that its comment names. Stages are scripted, but publish.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.gateway_process import ROOT, gateway_process
from tests.support.redis_server import redis_server
from tests.support.worker_process import worker_process

pytestmark = pytest.mark.api
STAGES = "tests.support.page_stages"
TIMEOUT_S = 500
EXPECTED = re.compile(r"\s+# (\d{3})$")
MARK = "== "
# `curl` in the script: it says what was called, keeps the last status, and fails where that is no success.
PRELUDE = r"""
set -euo pipefail
curl() { command curl --show-error --fail-with-body "$@"; }
refused() {
    local status
    status=$(command curl -o "$FOLDER_OF_TEST/answer" -w '%{http_code}' "${@:2}")
    cat "$FOLDER_OF_TEST/answer"
    [ "$status" = "$1" ] || { echo "answered $status, not $1" >&2; return 1; }
    jq -e ".status == $1" "$FOLDER_OF_TEST/answer" > /dev/null
}
"""


def commands(text: str) -> list[str]:
    """The lines of all `sh` blocks, but the one that says where the gateway is."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines() if line and "export EYRIE_URL" not in line]


def as_script(lines: list[str]) -> str:
    """A bash script of the lines; each is announced before it runs."""
    parts = [PRELUDE]
    for number, line in enumerate(lines):
        expected = EXPECTED.search(line)
        run = line[: expected.start()].replace("curl", f"refused {expected[1]}", 1) if expected else line
        parts.append(f"echo; echo '{MARK}{number}'\n{run}")
    return "\n".join(parts)


def test_every_line_of_the_guide_works_from_a_bare_clone(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    lines = commands((clone / "docs" / "api.md").read_text())
    assert sum("curl" in line for line in lines) >= 40
    with (
        redis_server(tmp_path / "redis") as redis,
        gateway_process(tmp_path, redis.url, root=clone) as gateway,
        worker_process(tmp_path, redis.url, STAGES, "fake-0", clone),
    ):
        environment = os.environ | {"EYRIE_URL": gateway.url, "FOLDER_OF_TEST": str(tmp_path), "no_proxy": "127.0.0.1"}
        result = subprocess.run(
            ["bash", "-c", as_script(lines)],
            cwd=clone,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    reached = [int(found) for found in re.findall(rf"^{MARK}(\d+)$", result.stdout, re.MULTILINE)]
    last = lines[reached[-1]] if reached else "nothing"
    assert result.returncode == 0, f"{last}\n{result.stderr}\n{result.stdout[-2000:]}"
    assert reached == list(range(len(lines)))
    assert "event: end" in result.stdout


def test_a_line_that_does_not_answer_as_it_says_is_noticed(tmp_path: Path) -> None:
    script = as_script(["curl -s http://127.0.0.1:9/v1    # 404"])
    environment = os.environ | {"FOLDER_OF_TEST": str(tmp_path)}
    assert subprocess.run(["bash", "-c", script], env=environment, capture_output=True, check=False).returncode
