"""What `make compose-test` looks at in the containers that run: users, rights, mounts, ports, networks, secrets.

Each function takes the site and raises Failed where something is not as compose.yaml promises. They are asked of Docker
and of the kernel, not of the file: tests/unit/deploy/test_compose.py reads that.
"""

from collections.abc import Callable
from typing import Any

from tools.compose_site import Failed, Site

RUNNING = ("redis", "gateway", "worker", "verifier")
UIDS = {"redis": "999", "gateway": "10001", "worker": "10001", "verifier": "10001"}
CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=4).close()
except OSError as error:
    sys.exit(f"refused: {error}")
"""
DENIED = 1


def require(holds: object, what: str) -> None:
    """Raise Failed where something does not hold."""
    if not holds:
        raise Failed(what)


def each(site: Site) -> list[tuple[str, dict[str, Any]]]:
    """Every running container with its service's name."""
    found = [(service, container) for service in RUNNING for container in site.containers(service)]
    require({service for service, _ in found} == set(RUNNING), f"only {[service for service, _ in found]} run")
    return found


def check_health(site: Site) -> None:
    for service, container in each(site):
        require(container["State"]["Health"]["Status"] == "healthy", f"{service} is {container['State']['Health']}")
        require(container["RestartCount"] == 0, f"{service} was restarted {container['RestartCount']} times")


def check_users(site: Site) -> None:
    for service, container in each(site):
        for process in process_status(site, container):
            require(process["Uid"].split() == [UIDS[service]] * 4, f"{service}: {process['Name']}: {process['Uid']}")
            require(process["Gid"].split() == [UIDS[service]] * 4, f"{service}: {process['Name']}: {process['Gid']}")


def check_rights(site: Site) -> None:
    for service, container in each(site):
        host = container["HostConfig"]
        require(not host["Privileged"] and not host["CapAdd"], f"{service} has more rights than it may")
        require(not host["Devices"] and host["PidMode"] == "" and host["IpcMode"] == "private", f"{service}: {host}")
        for process in process_status(site, container):
            for name in ("CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb"):
                require(int(process[name], 16) == 0, f"{service}: {process['Name']} has {name} {process[name]}")
            require(process["NoNewPrivs"] == "1", f"{service}: {process['Name']} could gain privileges")


def check_mounts(site: Site) -> None:
    expected = {
        "redis": {"/data": True},
        "gateway": {"/var/lib/eyrie/store": True, "/var/lib/eyrie/exchange": False, "/models": False},
        "worker": {
            "/var/lib/eyrie/store": True,
            "/var/lib/eyrie/exchange": True,
            "/run/eyrie/gpus": True,
            "/models": False,
        },
        "verifier": {"/var/lib/eyrie/exchange": True},
    }
    for service, container in each(site):
        mounts = {mount["Destination"]: mount["RW"] for mount in container["Mounts"]}
        secrets = {target for target in mounts if target.startswith("/run/secrets/")}
        require(not any(mounts[target] for target in secrets), f"{service} could change its secrets")
        volumes = {target: mounts[target] for target in mounts.keys() - secrets}
        require(volumes == expected[service], f"{service} has {volumes}")
        for target, writable in [*volumes.items(), ("/", False), ("/etc", False), ("/tmp", True)]:  # noqa: S108
            touched = site.execute(container, "sh", "-c", f"touch {target}/.probe && rm {target}/.probe")
            outcome = "can be" if touched.returncode == 0 else "cannot be"
            require((touched.returncode == 0) is writable, f"{service}: {target} {outcome} written: {touched.stderr}")


def check_limits(site: Site) -> None:
    for service, container in each(site):
        host = container["HostConfig"]
        require(host["ReadonlyRootfs"] and host["Init"], f"{service}: root filesystem or init")
        require(host["Memory"] > 0 and host["PidsLimit"] > 0, f"{service} has no limit of memory or processes")
        require(container["Config"]["StopTimeout"] >= 20, f"{service} is stopped within {container['Config']}")
        labels = container["Config"]["Labels"]
        require(labels.get("org.opencontainers.image.title") == f"eyrie-{service}", f"{service}: {labels}")


def check_ports(site: Site) -> None:
    published = {}
    for service, container in each(site):
        for port, places in (container["NetworkSettings"]["Ports"] or {}).items():
            for place in places or []:
                published[service, port] = f"{place['HostIp']}:{place['HostPort']}"
    require(published == {("gateway", "8700/tcp"): f"127.0.0.1:{site.port}"}, f"published: {published}")


def check_networks(site: Site) -> None:
    """Who reaches whom, tried out with a connection from inside."""
    containers = {service: container for service, container in each(site) if service != "redis"}
    for service, target, port, reached in (
        ("gateway", "redis", 6379, True),
        ("gateway", "verifier", 8000, True),
        ("worker", "redis", 6379, True),
        ("worker", "verifier", 8000, True),
        ("verifier", "redis", 6379, False),
        ("verifier", "gateway", 8700, True),  # they share a network; it needs a key there
    ):
        tried = site.execute(containers[service], "python3", "-c", CONNECT, target, str(port))
        require(tried.returncode in (0, DENIED), tried.stderr)
        require((tried.returncode == 0) is reached, f"{service} to {target}: {tried.stderr.strip() or 'connected'}")
    redis = site.containers("redis")[0]
    for target in ("verifier", "gateway"):
        found = site.execute(redis, "getent", "hosts", target)
        require((found.returncode == 0) is (target == "gateway"), f"redis knows {target}: {found.stdout}")


def check_redis(site: Site) -> None:
    redis = site.containers("redis")[0]
    refused = site.execute(redis, "redis-cli", "ping")
    require("NOAUTH" in refused.stdout + refused.stderr, f"Redis answers without a password: {refused.stdout}")
    for name, value in {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}.items():
        command = f'REDISCLI_AUTH="$(cat /run/secrets/redis-password)" redis-cli config get {name}'
        answer = site.execute(redis, "sh", "-c", command).stdout.split()
        require(answer == [name, value], f"Redis: {answer}")


def check_secrets(site: Site) -> None:
    """No secret shows in an environment, in a command line, in an image or in a log."""
    secrets = [site.secret(name) for name in ("redis-password", "eyrie-api-key")]
    said = site.logs(100_000)
    for service, container in each(site):
        environment = site.execute(
            container, "sh", "-c", "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline | tr '\\0' ' '"
        )
        shown = f"{environment.stdout} {container['Config']} {container['Args']}"
        require(not any(secret in shown for secret in secrets), f"{service} shows a secret")
    require(not any(secret in said for secret in secrets), "a log shows a secret")


def check_key(site: Site) -> None:
    for path, key, status in (
        ("/healthz", None, 200),
        ("/v1/jobs", None, 401),
        ("/metrics", None, 401),
        ("/v1/jobs", "not-the-key-at-all-0000", 401),
        ("/v1/jobs", "", 200),
    ):
        answer, _ = site.request("GET", path, key=key)
        require(answer == status, f"GET {path} answers {answer}, not {status}")


def process_status(site: Site, container: dict[str, Any]) -> list[dict[str, str]]:
    """What the kernel says of every process of a container, but for the one that asks."""
    command = "for f in /proc/[0-9]*; do cat $f/status && echo END; done 2>/dev/null"
    texts = site.execute(container, "sh", "-c", command).stdout.split("END\n")
    processes = [dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line) for text in texts]
    found = [process for process in processes if "NoNewPrivs" in process]
    require(found, "no process shows itself")
    return found


CHECKS: dict[str, Callable[[Site], None]] = {
    "every service is healthy and was never restarted": check_health,
    "every process runs under its fixed uid": check_users,
    "no process has a capability or can gain one": check_rights,
    "mounts are those of compose.yaml, and the root is read-only": check_mounts,
    "memory and processes are limited, and stops are not rushed": check_limits,
    "only the gateway is published, on loopback": check_ports,
    "only gateway and workers reach verifier and Redis": check_networks,
    "Redis asks for its password, writes at once and evicts nothing": check_redis,
    "no secret shows": check_secrets,
    "the API asks for its key": check_key,
}
