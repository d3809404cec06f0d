"""Checks of GPUs and of the attention implementations that run on them; each asks a process of its own."""

import importlib.util

from services.cli.doctor.checks import Finding
from services.cli.doctor.child import ProbeFailed, ask

GIB = 1024**3


def check_gpus(timeout_s: float) -> Finding:
    """The GPUs that NVML finds."""
    try:
        answer = ask("gpus", timeout_s)
    except ProbeFailed as error:
        return Finding("problem", f"NVML {error}", "try nvidia-smi: the driver may hang, and need a restart")
    if "error" in answer:
        hint = "try nvidia-smi; the driver and its library must be of one version, and a container needs the runtime"
        return Finding("problem", f"NVML cannot be used: {answer['error']}", hint, answer)
    if not answer.get("gpus"):
        hint = "the tiny preset runs on the CPU; Kimi-K2.5 needs GPUs"
        return Finding("info", f"no GPU: {answer.get('absent') or 'the driver finds none'}", hint, answer)
    names = [f"{gpu['name']} ({gpu['memory_bytes'] / GIB:.0f} GiB)" for gpu in answer["gpus"]]
    listing = ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))
    return Finding("ok", f"{listing}, driver {answer['driver']}, CUDA {answer['cuda']:g}", details=answer)


def check_transformers_attention(timeout_s: float) -> Finding:
    """What transformers offers for training."""
    absent = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if absent:
        return Finding("info", f"{' and '.join(absent)} not installed", "workers need them (extra `train`)")
    try:
        answer = ask("transformers_attention", timeout_s)
    except ProbeFailed as error:
        return Finding("problem", f"transformers {error}", "install torch and transformers of the versions in locks/")
    offered = [name for name, obstacle in answer["implementations"].items() if obstacle is None]
    summary = f"{answer['device']}: {', '.join(offered)}"
    if "sdpa" not in offered:
        hint = "this torch does not fit this machine's CUDA: install the build for its driver"
        return Finding("problem", f"{summary}; sdpa: {answer['implementations'].get('sdpa')}", hint, answer)
    return Finding("ok", summary, details=answer)


def check_vllm_attention(timeout_s: float) -> Finding:
    """What vLLM offers for the verifier and for drafts."""
    if importlib.util.find_spec("vllm") is None:
        return Finding("info", "vLLM is not installed", "verifiers and evaluation need it (extra `verifier`)")
    try:
        answer = ask("vllm_attention", timeout_s)
    except ProbeFailed as error:
        return Finding("problem", f"vLLM {error}", "install vLLM and torch of the versions in locks/")
    uses = answer["uses"]
    summary = "; ".join(f"{use}: {', '.join(found['offered']) or 'none'}" for use, found in uses.items())
    summary = f"{answer['platform']}: {summary}"
    without = [use for use, found in uses.items() if not found["offered"]]
    if without:
        hint = "vLLM has no attention for this machine: its details say why of each backend (--output json)"
        return Finding("problem", f"{summary}; the {' and '.join(without)} cannot be served here", hint, answer)
    return Finding("ok", summary, details=answer)
