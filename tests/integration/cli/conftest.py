"""One service for all tests of the command line: a gateway that asks for a key, a light worker; and `eyrie`."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from services.cli.main import main
from shared.schemas.job import JobRecord, JobStatus
from tests.support.gateway_process import GatewayProcess, gateway_process
from tests.support.verifier_stub import VerifierStub
from tests.support.webhook_receiver import Receiver, webhook_receiver
from tests.support.worker_site import Site
from tools.embedded_redis import start_redis

KEY = "a-key-of-the-tests-0123456789"


@dataclass
class Service:
    """What runs, the file with its API key, and who hears of ended jobs."""

    site: Site
    gateway: GatewayProcess
    key_file: Path
    hooks: Receiver

    @property
    def environment(self) -> dict[str, str]:
        """What `eyrie` needs to find it."""
        return {"EYRIE_URL": self.gateway.url, "EYRIE_API_KEY_FILE": str(self.key_file)}


@dataclass
class Shell:
    """`eyrie` in this process; what it printed to standard error is in `errors`."""

    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch
    errors: str = ""

    def __call__(self, *arguments: str, code: int = 0) -> str:
        self.monkeypatch.setattr(sys, "argv", ["eyrie", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = self.capsys.readouterr()
        self.errors = printed.err
        assert (ended.value.code or 0) == code, printed
        return printed.out

    def json(self, *arguments: str, code: int = 0) -> Any:
        """The result as JSON."""
        return json.loads(self(*arguments, "--output", "json", code=code))

    def lines(self, *arguments: str, code: int = 0) -> list[Any]:
        """A stream as JSON lines."""
        return [json.loads(line) for line in self(*arguments, "--output", "json", code=code).splitlines()]


@pytest.fixture(scope="package")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("service")
    (folder / "exchange").mkdir()
    key_file = folder / "key"
    key_file.write_text(f"{KEY}\n")
    with VerifierStub(folder / "exchange") as stub:
        site = Site(folder, stub, start_redis(folder / "redis"))
        try:
            with (
                webhook_receiver() as hooks,
                gateway_process(
                    folder, site.redis.url, api_key_file=str(key_file), webhook_hosts=f"127.0.0.1:{hooks.port}"
                ) as gateway,
            ):
                site.start_worker()
                yield Service(site, gateway, key_file, hooks)
        finally:
            site.close()


@pytest.fixture
def shell(service: Service, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    for name, value in service.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("EYRIE_API_KEY", raising=False)
    return Shell(capsys, monkeypatch)


@pytest.fixture(scope="package")
def finished(service: Service) -> JobRecord:
    job_id = service.site.submit(name="nightly", metadata={"team": "search"})
    return service.site.wait_for(job_id, JobStatus.SUCCEEDED)


@pytest.fixture(scope="package")
def failed(service: Service, finished: JobRecord) -> JobRecord:
    """It reuses what the finished one has made, and its training cannot work."""
    again = {"data": {"dataset": finished.spec.data.dataset}, "train": {"lr": 2e-3}}
    job_id = service.site.submit(**again, metadata={"train": "refuse"})
    return service.site.wait_for(job_id, JobStatus.FAILED)
