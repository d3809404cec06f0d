"""`python -m services.worker.health` tells whether a worker of this host lives; Redis asks for a password here."""

import os
import subprocess
import sys

from redis import Redis

from services.worker.supervision import SECRET_VARIABLES
from tests.support.wait import wait_until
from tests.support.worker_site import ROOT, Site

PASSWORD = "p@ss/word"


def health(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "services.worker.health"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_healthy_while_a_worker_beats_and_not_before_or_after(site: Site) -> None:
    file = site.folder / "password"
    file.write_text(PASSWORD)
    Redis.from_url(site.redis.url).config_set("requirepass", PASSWORD)
    unknown = {name: value for name, value in os.environ.items() if name not in SECRET_VARIABLES}
    known = {**unknown, "EYRIE_REDIS_URL": site.redis.url, "EYRIE_REDIS_PASSWORD_FILE": str(file)}

    before = health(known)
    assert before.returncode == 1
    assert "not heard of a worker" in before.stdout

    worker = site.start_worker(EYRIE_REDIS_PASSWORD_FILE=str(file))
    healthy = wait_until(lambda: (found := health(known)).returncode == 0 and found, 60, what="the worker is healthy")
    assert healthy.stdout.startswith("healthy: ")

    worker.terminate()
    worker.wait(30)
    assert health(known).returncode == 1

    refused = health({**known, "EYRIE_REDIS_PASSWORD_FILE": str(site.folder / "nothing")})
    assert refused.returncode == 1
    assert "EYRIE_REDIS_PASSWORD_FILE" in refused.stdout
