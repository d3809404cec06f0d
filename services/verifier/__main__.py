"""Starts the verifier: checks the settings, then becomes vLLM.

    EYRIE_VERIFIER_MODEL=assets/tiny-verifier EYRIE_VERIFIER_DEVICE=cpu python -m services.verifier [--check]

In: `EYRIE_VERIFIER_...`. Out: vLLM under the same process id, so that signals reach it. Bad input ends with one line
on standard error and status 2. `--check` stops after the checks and prints the command.
"""

import argparse
import json
import os
import shlex
import sys
from pathlib import Path

from pydantic import ValidationError
from pydantic_settings import SettingsError

from services.verifier.command import Command, build_command
from services.verifier.model_config import Checked, VerifierConfigError, check
from shared.verifier_settings import ENV_PREFIX, Device, VerifierMode, VerifierSettings, capture_note_name

NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


def main(arguments: list[str] | None = None) -> int:
    """Check, then replace this process by vLLM; returns only after `--check` (0) or bad input (2)."""
    parser = argparse.ArgumentParser(prog="python -m services.verifier", description="Starts vLLM as Eyrie's verifier.")
    parser.add_argument("--check", action="store_true", help="check the settings, print the command and stop")
    options = parser.parse_args(arguments)
    try:
        checked, command = prepare()
    except (VerifierConfigError, ValidationError, SettingsError) as error:
        print(f"verifier: {_one_line(error)}", file=sys.stderr)
        return 2
    if not options.check:
        announce(checked)
        os.execvpe(command.argv[0], command.argv, dict(command.environment))  # noqa: S606 - becoming vLLM is the point
    print(shlex.join(command.argv))
    return 0


def prepare() -> tuple[Checked, Command]:
    """Read and check the settings, and build the command.

    Raises:
        ValidationError, SettingsError: a variable does not parse.
        VerifierConfigError: the verifier cannot be started as asked.
    """
    settings = VerifierSettings()
    device = detect_device() if settings.device is Device.AUTO else settings.device
    cores = len(os.sched_getaffinity(0))
    checked = check(settings)
    return checked, build_command(checked, device=device, cores=cores, base=os.environ)


def announce(checked: Checked) -> None:
    """Leave a note in the shared folder that says which layers are captured, for the workers to hold jobs against."""
    settings = checked.settings
    if settings.mode is VerifierMode.CAPTURE and settings.node_rank == 0:
        note = settings.shared_folder / capture_note_name(settings.served_model_name or settings.model)
        note.write_text(json.dumps({"layer_ids": list(checked.layer_ids)}), encoding="utf-8")


def detect_device() -> Device:
    """CUDA where NVIDIA's driver is loaded, else CPU; needs no torch."""
    return Device.CUDA if NVIDIA_DRIVER.exists() else Device.CPU


def _one_line(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return " ".join(str(error).split())
    parts = []
    for item in error.errors():
        name = ENV_PREFIX + str(item["loc"][0]).upper() + ": " if item["loc"] else ""
        parts.append(name + item["msg"].removeprefix("Value error, "))
    return "; ".join(parts)


if __name__ == "__main__":
    sys.exit(main())
