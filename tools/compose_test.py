"""Runs the whole of compose.yaml's profile `cpu`: `make compose-test`, or `python3 -m tools.compose_test`.

Needs a Docker engine with compose and buildx, and Python 3.11; nothing of Eyrie has to be installed. Builds the images,
starts the services, looks at the containers, trains a draft over REST, scales to three workers on faked GPUs, and stops
one in mid-training. Afterwards all that it made is gone but Docker's build cache. The last line is one JSON object:
`passed`, `failed`, `seconds`, `image_mib`, and `problems`. The exit code is 0 where nothing failed.
"""

import argparse
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from tools.compose_checks import CHECKS, require
from tools.compose_site import FAKED_GPUS, ROOT, Failed, Site, require_engine, run, wait_until

PROMPTS = ROOT / "assets" / "prompts" / "demo.jsonl"
READY_TIMEOUT_S = 900.0
JOB_TIMEOUT_S = 1800.0
ENDED = ("succeeded", "failed", "cancelled")
WORKERS = 3
SMALL = {"preset": "tiny", "data": {"limit": 120}, "evaluate": {"baseline": "none", "max_prompts": 8}}
LONG = {
    "train": {"gpus": 1, "epochs": 30, "checkpoint_every_s": 5},
    "evaluate": {"mode": "offline", "baseline": "none"},
}


class Run:
    """One test: its site, and what passed and failed so far."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.passed, self.problems = 0, list[str]()
        self.image_mib: dict[str, int] = {}
        self.dataset = ""

    def step(self, name: str, action: Callable[[], Any], *, vital: bool = False) -> Any:
        """One check. What all later ones need is vital: then its failure ends the test."""
        started = time.monotonic()
        try:
            result = action()
        except Failed as error:
            self.problems.append(f"{name}: {error}".splitlines()[0])
            print(f"FAILED  {name}\n{error}", flush=True)
            if vital:
                raise
            return None
        self.passed += 1
        print(f"ok      {name} ({time.monotonic() - started:.0f} s){f': {result}' if result else ''}", flush=True)
        return result

    def all(self) -> None:
        """Every step, in order."""
        site = self.site
        self.step("there is an engine", require_engine, vital=True)
        self.step("a clone is laid out", site.prepare, vital=True)
        self.step("the base image is there", site.make_base, vital=True)
        self.step("the images are built", site.build, vital=True)
        self.image_mib = self.step("the images have sizes", site.image_mib, vital=True)
        self.step("the profile cpu starts", self.start, vital=True)
        for name, check in CHECKS.items():
            self.step(name, lambda check=check: check(site))
        self.step("a draft is trained over REST", self.train)
        self.step("three workers are up", self.scale, vital=True)
        jobs = self.step("three jobs train on GPUs and workers of their own", self.spread, vital=True)
        self.step("a stopped worker's training is finished by another", lambda: self.stop_one(jobs))
        self.step("nothing was restarted and nobody complains", self.look_back)

    def start(self) -> None:
        self.site.compose("up", "--detach", "--wait", "--wait-timeout", str(int(READY_TIMEOUT_S)), timeout_s=1000)

    def train(self) -> str:
        """Upload prompts, submit a job, wait for its draft, and look at it."""
        status, dataset = self.site.request("POST", "/v1/datasets?name=demo", data=PROMPTS.read_bytes())
        require(status == 201, f"upload: {status}: {dataset}")
        self.dataset = dataset["id"]
        job = self.wait(self.submit({"train": {"epochs": 3, "gpus": 1}}), ENDED)
        require(job["status"] == "succeeded", f"the job {job['status']}: {job['error']}")
        files = {file["path"] for file in self.site.get(f"/v1/drafts/{job['draft']}/files")["data"]}
        require({"config.json", "model.safetensors"} <= files, f"the draft has {sorted(files)}")
        suite = stage(job, "evaluate")["summary"]["suites"]["heldout"]
        length = suite["trained"]["acceptance_length"]
        require(length > 1, f"acceptance length {length}")
        return f"{job['draft']}, acceptance length {length:.2f}"

    def scale(self) -> str:
        command = ("up", "--detach", "--wait", "--no-recreate", "--scale", f"worker={WORKERS}")
        self.site.compose(*command, timeout_s=READY_TIMEOUT_S)
        hosts = sorted(container["Config"]["Hostname"] for container in self.site.containers("worker"))
        workers = wait_until(lambda: sorted(w["host"] for w in self.site.get("/v1/workers")["data"]), 60, "workers")
        require(workers == hosts and len(hosts) == WORKERS, f"workers {workers} in containers {hosts}")
        gpus = [gpu["id"] for gpu in self.site.get("/v1/gpus")["data"]]
        require(gpus == FAKED_GPUS.split(","), f"GPUs {gpus}")
        return ", ".join(hosts)

    def spread(self) -> dict[str, dict[str, Any]]:
        """Three trainings at once; the holder of each job's GPU, while all of them train."""
        jobs = [self.submit({**LONG, "train": {**LONG["train"], "seed": seed}}) for seed in range(WORKERS)]

        def held() -> dict[str, dict[str, Any]] | None:
            for job_id in jobs:
                job = self.site.get(f"/v1/jobs/{job_id}")
                require(job["status"] in ("queued", "running"), f"{job_id} {job['status']}: {job['error']}")
                if job["progress"]["stage"] != "train" or not job["progress"]["step"]:
                    return None
            leased = [gpu for gpu in self.site.get("/v1/gpus")["data"] if gpu["status"] == "leased"]
            return {gpu["holder"]["job_id"]: {**gpu["holder"], "gpu": gpu["id"]} for gpu in leased}

        holders = wait_until(held, JOB_TIMEOUT_S, "three jobs train at once")
        require(holders.keys() == set(jobs), f"leases of {sorted(holders)} for {sorted(jobs)}")
        for what in ("gpu", "host", "worker"):
            require(len({holder[what] for holder in holders.values()}) == WORKERS, f"{what} shared: {holders}")
        return {job_id: {"gpu": holder["gpu"], "host": holder["host"]} for job_id, holder in holders.items()}

    def stop_one(self, jobs: dict[str, dict[str, Any]]) -> str:
        """Stop the worker of one job as an operator does; the others are cancelled, so that somebody is free."""
        victim, holder = sorted(jobs.items())[0]
        (container,) = [c for c in self.site.containers("worker") if c["Config"]["Hostname"] == holder["host"]]
        run(["docker", "stop", container["Id"]], timeout_s=200)
        code = json.loads(run(["docker", "inspect", container["Id"]]))[0]["State"]["ExitCode"]
        require(code == 0, f"the stopped worker ended with {code}")
        for other in sorted(jobs)[1:]:
            status, answer = self.site.request("POST", f"/v1/jobs/{other}/cancel")
            require(status in (200, 202, 409), f"cancel: {status}: {answer}")  # 409: it has ended
        job = self.wait(victim, ENDED)
        require(job["status"] == "succeeded", f"the job {job['status']}: {job['error']}")
        first, last = job["attempts"][0], job["attempts"][-1]
        require(first["worker"] == holder["host"] and first["reason"] == "handed_over", f"attempts: {job['attempts']}")
        require(last["worker"] != holder["host"], f"attempts: {job['attempts']}")
        resumed = stage(job, "train")["summary"]["resumed_from"]
        require(resumed > 0, f"the training began again from step {resumed}")
        return f"from {first['worker']} to {last['worker']}, resumed from step {resumed}"

    def look_back(self) -> None:
        CHECKS["every service is healthy and was never restarted"](self.site)
        free = [gpu["status"] for gpu in self.site.get("/v1/gpus")["data"]]
        require(set(free) == {"free"}, f"GPUs are {free}")

    def submit(self, changes: dict[str, Any]) -> str:
        document = {**SMALL, **changes, "data": {**SMALL["data"], "dataset": self.dataset}}
        document["evaluate"] = {**SMALL["evaluate"], **changes.get("evaluate", {})}
        status, job = self.site.request("POST", "/v1/jobs", document)
        require(status in (200, 201, 202), f"submit: {status}: {job}")
        return str(job["id"])

    def wait(self, job_id: str, statuses: tuple[str, ...]) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            job: dict[str, Any] = self.site.get(f"/v1/jobs/{job_id}")
            return job if job["status"] in statuses else None

        found: dict[str, Any] = wait_until(look, JOB_TIMEOUT_S, f"{job_id} is {' or '.join(statuses)}")
        return found


def stage(job: dict[str, Any], name: str) -> dict[str, Any]:
    """One stage of a job."""
    return next(stage for stage in job["stages"] if stage["name"] == name)


def main(arguments: list[str] | None = None) -> int:
    """Run everything, clean up, and print a line of JSON whatever happens."""
    parser = argparse.ArgumentParser(prog="python3 -m tools.compose_test", description="Tests compose.yaml for real.")
    parser.add_argument("--base-image", default=os.environ.get("EYRIE_BASE_IMAGE"), help="absent: made by debootstrap")
    parser.add_argument("--build-network", default="host", choices=("host", "default"), help="network of the build")
    parser.add_argument("--keep-images", action="store_true", help="leave the images")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    started = time.monotonic()
    site = Site(options.base_image, options.build_network)
    test = Run(site)
    try:
        test.all()
    except Failed:
        pass
    except BaseException as error:
        traceback.print_exc(file=sys.stdout)
        test.problems.append(f"{type(error).__name__}: {error}")
    if test.problems:
        print(site.logs(), flush=True)
    try:
        test.step("all that was started is gone", lambda: site.remove(keep_images=options.keep_images))
    except BaseException as error:
        traceback.print_exc(file=sys.stdout)
        test.problems.append(f"cleaning up: {type(error).__name__}: {error}")
    report = {
        "passed": test.passed,
        "failed": len(test.problems),
        "seconds": round(time.monotonic() - started, 1),
        "image_mib": test.image_mib,
        "problems": test.problems,
    }
    print(json.dumps(report), flush=True)
    return 1 if test.problems else 0


if __name__ == "__main__":
    sys.exit(main())
