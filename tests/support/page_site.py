"""What the page is tested on: a real Redis, a real gateway, real workers with stages that have something to look at."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.support.gateway_process import GatewayProcess, free_port, gateway_process
from tests.support.redis_server import redis_server
from tests.support.wait import wait_until
from tests.support.worker_process import worker_process

STAGES = "tests.support.page_stages"
JOB_TIMEOUT_S = 240.0
PROMPTS = b"".join(b'{"prompt": "how much is %d and 2"}\n' % number for number in range(12))


class PageSite:
    """A gateway with workers, and calls to make and watch jobs without the page."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        self.folder, self.redis_url, self.port = folder, redis_url, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.http = httpx.Client(base_url=self.url, timeout=60)
        self._gateway = ExitStack()

    def start_gateway(self, **settings: str) -> GatewayProcess:
        """Start the gateway, also again; it always has the same address."""
        return self._gateway.enter_context(gateway_process(self.folder, self.redis_url, port=self.port, **settings))

    def stop_gateway(self) -> None:
        """End the gateway."""
        self._gateway.close()

    def dataset(self, name: str = "sums") -> str:
        """Upload a dataset."""
        response = self.http.post(f"/v1/datasets?name={name}", content=PROMPTS)
        assert response.status_code == 201, response.text
        return str(response.json()["id"])

    def submit(self, name: str, *, metadata: dict[str, str] | None = None, **document: Any) -> str:
        """Submit a job that shares no stage with another one of another name."""
        data = {"dataset": self.dataset(), "system_prompt": name, **document.pop("data", {})}
        body = {"preset": "tiny", "name": name, "data": data, "metadata": metadata or {}, **document}
        response = self.http.post("/v1/jobs", json=body)
        assert response.status_code == 201, response.text
        return str(response.json()["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        """A job as it is now."""
        answer: dict[str, Any] = self.http.get(f"/v1/jobs/{job_id}").json()
        return answer

    def wait_for(self, job_id: str, status: str) -> dict[str, Any]:
        """Wait until a job has a status; another end is a failure at once."""

        def look() -> dict[str, Any] | None:
            job = self.job(job_id)
            assert job["status"] == status or job["status"] not in {"succeeded", "failed", "cancelled"}, job["error"]
            return job if job["status"] == status else None

        return wait_until(look, JOB_TIMEOUT_S, 0.3, f"{job_id} is {status}")

    def wait_for_stage(self, job_id: str, stage: str) -> None:
        """Wait until a stage of a job runs and has counted something."""

        def runs() -> bool:
            found = next(one for one in self.job(job_id)["stages"] if one["name"] == stage)
            return found["status"] == "running" and found["progress"] is not None

        wait_until(runs, JOB_TIMEOUT_S, 0.3, f"{stage} of {job_id} runs")

    def close(self) -> None:
        """End the gateway."""
        self.http.close()
        self.stop_gateway()


@dataclass(frozen=True)
class Furniture:
    """Jobs in several states, and drafts: what every view has something to show of."""

    succeeded: str
    better: str
    failed: str
    running: str
    queued: str

    def draft(self, site: PageSite, job_id: str) -> str:
        """The draft that a job has published."""
        return str(site.job(job_id)["draft"])


@contextmanager
def page_site(folder: Path, workers: int = 2) -> Iterator[PageSite]:
    """A site that ends with the block."""
    with redis_server(folder / "redis") as redis, ExitStack() as stack:
        site = PageSite(folder, redis.url)
        stack.callback(site.close)
        site.start_gateway()
        for _ in range(workers):
            stack.enter_context(worker_process(folder, redis.url, STAGES, "fake-0,fake-1"))
        yield site


def furnish(site: PageSite) -> Furniture:
    """Make the jobs. The slow ones come last: they keep both workers, and one waits behind them."""
    gated = {"gate": {"min_acceptance_length": 1.5}}
    succeeded = site.submit("first draft", metadata={"quality": "0.7", "team": "serving"}, evaluate=gated)
    better = site.submit("better draft", metadata={"quality": "0.95", "steps": "40"}, train={"lr": 0.004})
    failed = site.submit("cannot work", metadata={"prepare": "refuse"})
    site.wait_for(succeeded, "succeeded")
    site.wait_for(better, "succeeded")
    site.wait_for(failed, "failed")
    slow = {"steps": "4000", "step_s": "0.5"}
    running = site.submit("slow one", metadata=slow, train={"gpus": 1})
    blocker = site.submit("another slow one", metadata=slow)
    site.wait_for_stage(running, "train")
    site.wait_for(blocker, "running")
    return Furniture(succeeded, better, failed, running, queued=site.submit("waits", metadata=slow))
