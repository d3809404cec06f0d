"""vLLM's argument list and environment for one verifier. Pure: reads nothing but its arguments.

The server is started as a module, since the console script of vLLM's CPU build
looks for a distribution named `vllm` and fails.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.verifier.model_config import Checked
from shared.verifier_settings import Device, VerifierMode, VerifierSettings

CONNECTOR = "EyrieHiddenStatesConnector"
CONNECTOR_MODULE = "services.verifier.connector"
PLUGIN = "eyrie_cpu_blocks"
JSON_LOGGING = Path(__file__).with_name("json_logging.json")
CPU_MAX_MODEL_LEN, CPU_MAX_NUM_SEQS, CPU_MAX_BATCHED_TOKENS = 2048, 32, 2048


@dataclass(frozen=True)
class Command:
    """What to execute: `argv`, and the whole `environment`."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]


def build_command(checked: Checked, *, device: Device, cores: int, base: Mapping[str, str]) -> Command:
    """Build the command of a checked verifier.

    Args:
        checked: settings that `model_config.check` has passed.
        device: CPU or CUDA, decided by the caller.
        cores: cores that this process may use.
        base: the environment to add to; its own values for vLLM's variables win.
    """
    settings = checked.settings
    on_cpu = device is Device.CPU
    argv = [sys.executable, "-m", *_server(settings)]
    argv += _identity(settings)
    argv += _limits(settings, on_cpu)
    argv += _parsers(settings)
    argv += _mode(checked)
    return Command((*argv, *settings.extra_args), _environment(settings, checked, on_cpu, cores, base))


def _server(settings: VerifierSettings) -> list[str]:
    """vLLM's server; on hosts but the first, what serves no requests and works for the first one."""
    if settings.nodes == 1:
        return ["vllm.entrypoints.openai.api_server", "--model", settings.model]
    group = ["--nnodes", str(settings.nodes), "--node-rank", str(settings.node_rank)]
    group += ["--master-addr", str(settings.head_address)]
    if settings.node_rank == 0:
        return ["vllm.entrypoints.openai.api_server", "--model", settings.model, *group]
    return ["vllm.entrypoints.cli.main", "serve", settings.model, "--headless", *group]


def _identity(settings: VerifierSettings) -> list[str]:
    argv = ["--host", settings.host, "--port", str(settings.port), "--seed", str(settings.seed)]
    if settings.revision:
        argv += ["--revision", settings.revision, "--tokenizer-revision", settings.revision]
        if settings.trust_remote_code:
            argv += ["--code-revision", settings.revision]
    if settings.trust_remote_code:
        argv.append("--trust-remote-code")
    if settings.served_model_name:
        argv += ["--served-model-name", settings.served_model_name]
    return argv


def _limits(settings: VerifierSettings, on_cpu: bool) -> list[str]:
    values: dict[str, object] = {
        "--tensor-parallel-size": settings.tensor_parallel_size,
        "--max-model-len": settings.max_model_len or (CPU_MAX_MODEL_LEN if on_cpu else None),
        "--max-num-seqs": settings.max_num_seqs or (CPU_MAX_NUM_SEQS if on_cpu else None),
        "--max-num-batched-tokens": settings.max_num_batched_tokens or (CPU_MAX_BATCHED_TOKENS if on_cpu else None),
        "--gpu-memory-utilization": None if on_cpu else settings.gpu_memory_utilization,
        "--kv-cache-memory-bytes": int(settings.cpu_kv_cache_gib * 1024**3) if on_cpu else None,
        # On CPUs with AMX vLLM would take a kernel for latent attention that has no float32.
        "--attention-backend": "CPU_MLA" if on_cpu else None,
        "--dtype": settings.dtype or ("float32" if on_cpu else None),
    }
    argv = [text for flag, value in values.items() if value is not None for text in (flag, str(value))]
    eager = on_cpu if settings.enforce_eager is None else settings.enforce_eager
    if eager:
        argv.append("--enforce-eager")
    if settings.language_model_only:
        argv.append("--language-model-only")
    return argv


def _parsers(settings: VerifierSettings) -> list[str]:
    argv: list[str] = []
    if settings.reasoning_parser:
        argv += ["--reasoning-parser", settings.reasoning_parser]
    if settings.tool_call_parser:
        argv += ["--tool-call-parser", settings.tool_call_parser, "--enable-auto-tool-choice"]
    return argv


def _mode(checked: Checked) -> list[str]:
    settings = checked.settings
    if settings.mode is VerifierMode.DRAFT:
        draft = {
            "method": "eagle3",
            "model": str(settings.draft_path),
            "num_speculative_tokens": settings.num_speculative_tokens,
        }
        return ["--speculative-config", json.dumps(draft)]
    if settings.mode is VerifierMode.CAPTURE:
        return [
            "--speculative-config",
            json.dumps(_capture(checked)),
            "--kv-transfer-config",
            json.dumps(_transfer(settings)),
        ]
    return []


def _capture(checked: Checked) -> dict[str, Any]:
    ids = list(checked.layer_ids)
    return {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": ids}},
    }


def _transfer(settings: VerifierSettings) -> dict[str, Any]:
    return {
        "kv_connector": CONNECTOR,
        "kv_connector_module_path": CONNECTOR_MODULE,
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"shared_storage_path": str(settings.shared_folder.absolute())},
    }


def _environment(
    settings: VerifierSettings, checked: Checked, on_cpu: bool, cores: int, base: Mapping[str, str]
) -> dict[str, str]:
    ours = {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_PLUGINS": PLUGIN,
        "TOKENIZERS_PARALLELISM": "false",
    }
    if settings.nodes == 1:
        ours["VLLM_HOST_IP"] = "127.0.0.1"  # vLLM's own processes, all on this host
    if base.get("EYRIE_LOG_FORMAT") == "json":
        ours["VLLM_LOGGING_CONFIG_PATH"] = str(JSON_LOGGING)  # of vLLM and of its uvicorn
    if checked.folder is not None:
        ours |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if on_cpu:
        # vLLM would bind threads to cores of its own choice. Half of the cores are left to the engine and to those who
        # ask: with a thread on every core all wait at each step for the one whose core is busy.
        threads = settings.cpu_threads or max(1, cores // 2)
        ours |= {
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(threads),
            "OMP_WAIT_POLICY": "PASSIVE",
        }
        if settings.tensor_parallel_size == 1:
            # The model runs in the engine's process instead of one more below it, which costs half a start and a
            # hand-over a step. The server keeps its engine in a process of its own whatever this says.
            ours["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    return ours | dict(base)
