"""The manifests: valid by schema, whole, at the restricted level, and in agreement with the services' own settings."""

import copy
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from rq import Queue

from services.worker.supervision import GUARD_EXTRA_S
from services.worker.verifier_process import STOP_GRACE_S
from shared.queue import QUEUE_NAME
from shared.settings import Settings
from shared.verifier_settings import VerifierSettings
from tests.support.manifests import K8S, ROOT, Document, Pod, build, complaints, of_kind, pods, validate

OVERLAYS = ("overlays/cpu", "overlays/single-node-8gpu", "overlays/multi-node")
FOLDERS = (*OVERLAYS, "training")
SECRET, SECRET_KEYS = "eyrie-secrets", {"redis-password", "api-key"}
PROBES = {"redis": 3, "gateway": 3, "verifier": 3, "worker": 1}
PORTS = {"redis": 6379, "gateway": 8700, "worker": 9700, "verifier": 8000}
# Right where the pod's files are: a file with a password; code of a model that lies in a folder.
IN_THE_POD = {"EYRIE_REDIS_PASSWORD_FILE", "EYRIE_VERIFIER_TRUST_REMOTE_CODE"}
INVALID = (jsonschema.ValidationError, kubernetes_validate.ValidationError)

overlays = pytest.mark.parametrize("folder", OVERLAYS)
folders = pytest.mark.parametrize("folder", FOLDERS)


def variables(pod: Pod, documents: list[Document]) -> dict[str, str]:
    """The environment that the first container of a pod is given, as far as the manifests say it."""
    container = pod.containers[0]
    maps = {found["metadata"]["name"]: found["data"] for found in of_kind(documents, "ConfigMap")}
    given: dict[str, str] = {}
    for source in container.get("envFrom", []):
        given |= maps[source["configMapRef"]["name"]]
    return given | {variable["name"]: str(variable["value"]) for variable in container["env"] if "value" in variable}


def named(documents: list[Document], name: str) -> Pod:
    return next(pod for pod in pods(documents) if pod.name == name)


@folders
def test_every_document_is_valid_by_its_kinds_schema(folder: str) -> None:
    documents = build(K8S / folder)
    assert documents
    for document in documents:
        validate(document)
        assert document["kind"] == "Namespace" or document["metadata"]["namespace"] == "eyrie"
    ids = [(document["kind"], document["metadata"]["name"]) for document in documents]
    assert len(set(ids)) == len(ids)


@folders
def test_every_pod_is_restricted_and_has_its_limits(folder: str) -> None:
    found = pods(build(K8S / folder))
    assert found
    assert {f"{pod.owner}: {complaint}" for pod in found for complaint in complaints(pod)} == set()


@pytest.mark.parametrize(
    "change",
    [
        lambda pod: pod.spec["securityContext"].update(runAsNonRoot=False),
        lambda pod: pod.spec["securityContext"].update(runAsUser=0),
        lambda pod: pod.spec["securityContext"].pop("seccompProfile"),
        lambda pod: pod.spec.update(hostNetwork=True),
        lambda pod: pod.spec["volumes"].append({"name": "x", "hostPath": {"path": "/"}}),
        lambda pod: pod.spec.pop("automountServiceAccountToken"),
        lambda pod: pod.containers[0]["securityContext"].update(privileged=True),
        lambda pod: pod.containers[0]["securityContext"].update(runAsUser=0),
        lambda pod: pod.containers[0]["securityContext"].update(readOnlyRootFilesystem=False),
        lambda pod: pod.containers[0]["securityContext"].update(capabilities={"drop": ["ALL"], "add": ["SYS_ADMIN"]}),
        lambda pod: pod.containers[0].update(image="eyrie-gateway:latest"),
        lambda pod: pod.containers[0].update(image="registry.example:5000/eyrie-gateway"),
        lambda pod: pod.containers[0]["resources"].pop("limits"),
        lambda pod: pod.containers[0]["env"].append({"name": "EYRIE_API_KEY", "value": "x"}),
        lambda pod: pod.containers[0]["env"].append({"name": "EYRIE_REDIS_URL", "value": "redis://:x@redis"}),
    ],
)
def test_the_policy_notices_what_it_is_there_for(change: Callable[[Pod], Any]) -> None:
    pod = copy.deepcopy(named(build(K8S / "overlays/cpu"), "gateway"))
    assert complaints(pod) == []
    change(pod)
    assert complaints(pod) != []


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("Deployment", ("spec", "template", "spec")),
        ("NetworkPolicy", ("spec",)),
        ("ScaledJob", ("spec", "jobTargetRef", "template", "spec")),
        ("LeaderWorkerSet", ("spec", "leaderWorkerTemplate")),
        ("ServiceMonitor", ("spec",)),
    ],
)
def test_a_field_that_a_kind_does_not_have_is_noticed(kind: str, path: tuple[str, ...]) -> None:
    document = copy.deepcopy(of_kind(build(K8S / "overlays/multi-node"), kind)[0])
    place = document
    for part in path:
        place = place[part]
    place["terminationGracePeriod"] = 5
    with pytest.raises(INVALID, match="terminationGracePeriod"):
        validate(document)


@folders
def test_what_a_pod_names_is_there(folder: str) -> None:
    documents = build(K8S / folder)
    around = build(K8S / "overlays/multi-node") if folder == "training" else []
    names = {(found["kind"], found["metadata"]["name"]) for found in [*documents, *around]}
    for pod in pods(documents):
        assert ("ServiceAccount", pod.spec["serviceAccountName"]) in names
        for volume in pod.spec["volumes"]:
            if "persistentVolumeClaim" in volume:
                assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in names
            if "secret" in volume:
                assert volume["secret"]["secretName"] == SECRET
                assert {item["key"] for item in volume["secret"]["items"]} <= SECRET_KEYS
        for container in pod.containers:
            mounted = {mount["name"] for mount in container["volumeMounts"]}
            assert mounted == {volume["name"] for volume in pod.spec["volumes"]} | pod.claims
            for source in container.get("envFrom", []):
                assert ("ConfigMap", source["configMapRef"]["name"]) in names
            for variable in container.get("env", []):
                if source := variable.get("valueFrom", {}).get("configMapKeyRef"):
                    assert ("ConfigMap", source["name"]) in names


@overlays
def test_a_service_finds_its_pods_and_their_port(folder: str) -> None:
    documents = build(K8S / folder)
    for service in of_kind(documents, "Service"):
        selector = service["spec"]["selector"].items()
        found = [pod for pod in pods(documents) if selector <= pod.labels.items()]
        assert found, service["metadata"]["name"]
        for pod in found:
            ports = {port["name"]: port["containerPort"] for port in pod.containers[0]["ports"]}
            for port in service["spec"]["ports"]:
                assert ports[port["targetPort"]] == port["port"] == PORTS[pod.name]


@overlays
def test_probes_are_where_they_belong(folder: str) -> None:
    documents = build(K8S / folder)
    for pod in pods(documents):
        if pod.labels.get("eyrie.dev/role") == "peer":  # serves nothing
            continue
        probes = {name for name in pod.containers[0] if name.endswith("Probe")}
        assert len(probes) == PROBES[pod.name], pod.owner
        assert "readinessProbe" in probes
    gateway = named(documents, "gateway").containers[0]
    assert gateway["livenessProbe"]["httpGet"]["path"] == gateway["startupProbe"]["httpGet"]["path"] == "/healthz"
    assert gateway["readinessProbe"]["httpGet"]["path"] == "/readyz"


@overlays
def test_the_settings_are_those_that_the_services_read(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = build(K8S / folder)
    known = {f"EYRIE_{name}".upper() for name in Settings.model_fields}
    known |= {f"EYRIE_VERIFIER_{name}".upper() for name in VerifierSettings.model_fields}
    for pod in pods(documents):
        given = variables(pod, documents) if pod.name != "redis" else {}
        assert {name for name in given if name.startswith("EYRIE_")} <= known
        with monkeypatch.context() as patch:
            for name in given.keys() - IN_THE_POD:
                patch.setenv(name, given[name])
            if pod.name != "verifier":
                assert not given or Settings().log_format == "json"
                continue
            patch.setenv("EYRIE_VERIFIER_HEAD_ADDRESS", "leader")  # LeaderWorkerSet's
            settings = VerifierSettings()
            gpus = int(pod.containers[0]["resources"]["limits"].get("nvidia.com/gpu", "0"))
            assert gpus * settings.nodes in (0, settings.tensor_parallel_size)


@overlays
def test_a_pod_is_given_longer_to_end_than_its_service_takes(folder: str) -> None:
    documents = build(K8S / folder)
    worker = named(documents, "worker")
    stop_s = int(variables(worker, documents)["EYRIE_STOP_GRACE_S"]) + GUARD_EXTRA_S + STOP_GRACE_S
    assert worker.spec["terminationGracePeriodSeconds"] > stop_s
    assert worker.spec["shareProcessNamespace"] is True, "as process 1 it would not hear SIGTERM while Redis is away"
    assert named(documents, "gateway").spec["terminationGracePeriodSeconds"] > 10 + 5  # uvicorn's, and preStop's


@overlays
def test_verifier_and_worker_are_one_user_and_share_the_exchange_folder(folder: str) -> None:
    documents = build(K8S / folder)
    both = [pod for pod in pods(documents) if pod.name in ("worker", "verifier")]
    assert len({pod.spec["securityContext"]["runAsUser"] for pod in both}) == 1
    for pod in both:
        volumes = {volume["name"]: volume for volume in pod.spec["volumes"]}
        (mount,) = [mount for mount in pod.containers[0]["volumeMounts"] if mount["name"] == "exchange"]
        assert volumes["exchange"]["persistentVolumeClaim"]["claimName"] == "eyrie-exchange"
        given = variables(pod, documents)
        name = "EYRIE_EXCHANGE_ROOT" if pod.name == "worker" else "EYRIE_VERIFIER_SHARED_FOLDER"
        assert mount["mountPath"] == given[name]
    claims = {found["metadata"]["name"]: found["spec"] for found in of_kind(documents, "PersistentVolumeClaim")}
    assert claims["eyrie-exchange"]["accessModes"] == claims["eyrie-store"]["accessModes"] == ["ReadWriteMany"]


@folders
def test_no_service_has_the_name_of_one_that_a_controller_makes(folder: str) -> None:
    """Pods of a group find each other by a headless Service; another one of its name would keep it from being made."""
    documents = build(K8S / folder) + (build(K8S / "overlays/multi-node") if folder == "training" else [])
    made = [found["metadata"]["name"] for found in of_kind(documents, "LeaderWorkerSet")]
    made += [found["spec"]["network"]["subdomain"] for found in of_kind(documents, "JobSet")]
    ours = [found["metadata"]["name"] for found in of_kind(documents, "Service")]
    assert len({*made, *ours}) == len(made) + len(ours)


def test_a_gateway_stays_up_when_another_one_goes() -> None:
    documents = build(K8S / "overlays/cpu")
    (gateway,) = [found for found in of_kind(documents, "Deployment") if found["metadata"]["name"] == "gateway"]
    assert gateway["spec"]["replicas"] == 2
    (budget,) = of_kind(documents, "PodDisruptionBudget")
    assert budget["spec"]["minAvailable"] == 1
    assert budget["spec"]["selector"] == gateway["spec"]["selector"]


def test_redis_keeps_what_it_is_given() -> None:
    script = named(build(K8S / "base"), "redis").containers[0]["command"][-1]
    for option in ("--appendonly yes", "--appendfsync always", "--maxmemory-policy noeviction"):
        assert option in script
    assert "requirepass $(cat /run/secrets/eyrie/redis-password)" in script


def test_a_scale_in_kills_no_run() -> None:
    documents = build(K8S / "overlays/multi-node")
    (scaled,) = of_kind(documents, "ScaledJob")
    spec = scaled["spec"]
    assert spec["rollout"]["strategy"] == "gradual"
    assert spec["scalingStrategy"]["strategy"] == "accurate"
    assert "activeDeadlineSeconds" not in spec["jobTargetRef"]
    assert spec["jobTargetRef"]["backoffLimit"] == 0
    worker = named(documents, "worker")
    assert variables(worker, documents)["EYRIE_WORKER_BURST"] == "true"
    assert worker.spec["restartPolicy"] == "Never"
    (trigger,) = spec["triggers"]
    assert trigger["metadata"]["listName"] == Queue.redis_queue_namespace_prefix + QUEUE_NAME
    assert trigger["metadata"]["listLength"] == "1"
    (authentication,) = of_kind(documents, "TriggerAuthentication")
    assert authentication["metadata"]["name"] == trigger["authenticationRef"]["name"]
    (password,) = authentication["spec"]["secretTargetRef"]
    assert (password["name"], password["key"], password["parameter"]) == (SECRET, "redis-password", "password")


@folders
def test_gpus_are_asked_for_whole(folder: str) -> None:
    for pod in pods(build(K8S / folder)):
        for container in pod.containers:
            wanted = container["resources"]["requests"].get("nvidia.com/gpu")
            assert wanted == container["resources"]["limits"].get("nvidia.com/gpu")
            assert (wanted is not None) == container["image"].endswith("-gpu")
            tolerated = {taint["key"] for taint in pod.spec.get("tolerations", [])}
            assert (wanted is not None) == ("nvidia.com/gpu" in tolerated), "nodes with GPUs are tainted"


def reaches(documents: list[Document], source: str, target: str, port: int) -> bool:
    """Whether the policies let pods named `source` of this namespace open a port of pods named `target`."""
    return allowed(documents, source, target, port, "Egress") and allowed(documents, target, source, port, "Ingress")


def allowed(documents: list[Document], pod: str, other: str, port: int, way: str) -> bool:
    policies = [policy["spec"] for policy in of_kind(documents, "NetworkPolicy")]
    mine = [spec for spec in policies if way in spec["policyTypes"] and selects(spec["podSelector"], pod)]
    assert mine, f"no policy closes {pod}"
    peer = {"Egress": "to", "Ingress": "from"}[way]
    for rule in [rule for spec in mine for rule in spec.get(way.lower(), [])]:
        ports = [entry["port"] for entry in rule.get("ports", [])]
        for place in rule[peer]:
            here = "ipBlock" not in place and place.get("namespaceSelector", {}) == {}
            if here and (not ports or port in ports) and selects(place.get("podSelector", {}), other):
                return True
    return False


def selects(selector: Document, name: str) -> bool:
    if not all(value == name for value in selector.get("matchLabels", {}).values()):
        return False
    return all(name in entry["values"] for entry in selector.get("matchExpressions", []))


@overlays
def test_the_network_has_these_ways_and_no_others(folder: str) -> None:
    documents = build(K8S / folder)
    names = {pod.name for pod in pods(documents)}
    ways = {(a, b) for a in names for b in names if reaches(documents, a, b, PORTS[b])}
    wanted = {("gateway", "redis"), ("worker", "redis")}
    if "verifier" in names:
        wanted |= {("gateway", "verifier"), ("worker", "verifier")}
    if folder == "overlays/multi-node":
        wanted |= {("verifier", "verifier")}
    assert ways == wanted
    closed = [found for found in of_kind(documents, "NetworkPolicy") if found["metadata"]["name"] == "default-deny"]
    assert [found["spec"] for found in closed] == [{"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}]


def test_the_namespace_enforces_the_restricted_level() -> None:
    (namespace,) = of_kind(build(K8S / "base"), "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_what_is_applied_before_the_overlay_names_its_namespace() -> None:
    _, *others = yaml.safe_load_all((K8S / "base" / "namespace.yaml").read_text())
    assert others
    assert {found["metadata"]["namespace"] for found in others} == {"eyrie"}


def test_the_secret_is_made_of_files_that_git_does_not_take(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    shutil.copytree(K8S / "secrets", folder)
    for key in SECRET_KEYS:
        (folder / key).write_text("x" * 64)
    (secret,) = build(folder)
    validate(secret)
    assert (secret["metadata"]["name"], secret["metadata"]["namespace"]) == (SECRET, "eyrie")
    assert set(secret["data"]) == SECRET_KEYS
    assert set((K8S / "secrets" / ".gitignore").read_text().split()) >= SECRET_KEYS


@pytest.mark.parametrize("path", ["k8s/secrets/kustomization.yaml", "docs/kubernetes.md"])
def test_the_secret_is_made_without_line_ends(path: str) -> None:
    """KEDA and Prometheus send what is in the Secret; Redis, gateway and workers cut white space off."""
    made = re.findall(r"openssl rand[^>]*>", (ROOT / path).read_text())
    assert made
    assert all("| tr -d '\\n' >" in command for command in made)


def test_the_alerts_are_those_of_prometheus_without_the_operator() -> None:
    (rules,) = of_kind(build(K8S / "overlays/multi-node"), "PrometheusRule")
    plain = yaml.safe_load((ROOT / "observability/prometheus/alerts.yaml").read_text())
    assert rules["spec"]["groups"] == plain["groups"]


def test_every_service_that_shows_figures_is_scraped_under_the_name_that_alerts_use() -> None:
    documents = build(K8S / "overlays/multi-node")
    scraped = set()
    for monitor in of_kind(documents, "ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        (endpoint,) = monitor["spec"]["endpoints"]
        labelled = [one for one in of_kind(documents, "Service") if "labels" in one["metadata"]]
        found = [one for one in labelled if wanted <= one["metadata"]["labels"].items()]
        assert [port["name"] for one in found for port in one["spec"]["ports"]] == [endpoint["port"]]
        scraped.add(endpoint["relabelings"][0]["replacement"])
    assert scraped == {"eyrie-gateway", "eyrie-worker", "eyrie-verifier"}


def test_training_over_nodes_starts_every_rank_once() -> None:
    documents = build(K8S / "training")
    (jobset,) = of_kind(documents, "JobSet")
    (job,) = jobset["spec"]["replicatedJobs"]
    (pod,) = pods(documents)
    script = pod.containers[0]["command"][-1]
    nodes, ranks = (int(number) for number in re.findall(r"--(?:nnodes|nproc-per-node) (\d+)", script))
    spec = job["template"]["spec"]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (nodes, nodes, "Indexed")
    assert pod.containers[0]["resources"]["limits"]["nvidia.com/gpu"] == str(ranks)
    name, subdomain = f"{jobset['metadata']['name']}-{job['name']}-0-0", jobset["spec"]["network"]["subdomain"]
    assert f"--master-addr {name}.{subdomain} " in script
    (grace_s,) = re.findall(r"--shutdown-timeout (\d+)", script)
    assert pod.spec["terminationGracePeriodSeconds"] > int(grace_s)
