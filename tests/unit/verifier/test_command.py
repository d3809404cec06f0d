"""The vLLM command: flags and environment follow from settings and device alone."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from services.verifier.command import build_command
from services.verifier.model_config import Checked
from shared.verifier_settings import Device, VerifierMode, VerifierSettings

ROOT = Path(__file__).resolve().parents[3]
REVISION = "0123456789abcdef0123456789abcdef01234567"


def build(device=Device.CPU, *, layer_ids=(1, 2, 3, 4), base=None, folder=Path("/models/tiny"), cores=2, **fields):
    fields = {"model": "/models/tiny", "shared_folder": Path("/exchange"), **fields}
    checked = Checked(VerifierSettings(**fields), folder, layer_ids)
    return build_command(checked, device=device, cores=cores, base=base or {})


def value(command, flag):
    return command.argv[command.argv.index(flag) + 1]


def test_vllm_is_started_as_a_module_of_this_interpreter():
    assert build().argv[:3] == (sys.executable, "-m", "vllm.entrypoints.openai.api_server")


def test_capture_names_its_layers_connector_and_folder():
    command = build()
    speculative = json.loads(value(command, "--speculative-config"))
    transfer = json.loads(value(command, "--kv-transfer-config"))
    assert speculative["method"] == "extract_hidden_states"
    assert speculative["draft_model_config"]["hf_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 2, 3, 4]
    assert transfer["kv_connector"] == "EyrieHiddenStatesConnector"
    assert transfer["kv_connector_module_path"] == "services.verifier.connector"
    assert transfer["kv_role"] == "kv_producer"
    assert transfer["kv_connector_extra_config"] == {"shared_storage_path": "/exchange"}


def test_a_draft_is_served_without_capture():
    command = build(mode=VerifierMode.DRAFT, draft_path=Path("/drafts/one"), num_speculative_tokens=5)
    speculative = json.loads(value(command, "--speculative-config"))
    assert speculative == {"method": "eagle3", "model": "/drafts/one", "num_speculative_tokens": 5}
    assert "--kv-transfer-config" not in command.argv


def test_a_plain_verifier_neither_captures_nor_drafts():
    command = build(mode=VerifierMode.PLAIN)
    assert not {"--speculative-config", "--kv-transfer-config"} & set(command.argv)


def test_a_cpu_gets_float32_small_limits_and_the_kernel_that_has_float32():
    command = build()
    assert value(command, "--dtype") == "float32"
    assert value(command, "--attention-backend") == "CPU_MLA"
    assert value(command, "--kv-cache-memory-bytes") == str(512 * 1024**2)
    assert value(command, "--max-model-len") == "2048"
    assert "--enforce-eager" in command.argv
    assert command.environment["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"


@pytest.mark.parametrize(("cores", "given", "threads"), [(1, None, "1"), (2, None, "1"), (16, None, "8"), (2, 2, "2")])
def test_half_of_the_cores_compute_unless_told(cores, given, threads):
    assert build(cores=cores, cpu_threads=given).environment["OMP_NUM_THREADS"] == threads


def test_one_cpu_worker_shares_the_engines_process():
    assert build().environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    for command in (build(tensor_parallel_size=2), build(Device.CUDA)):
        assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in command.environment


def test_a_gpu_keeps_vllms_own_choices_where_nothing_is_set():
    command = build(Device.CUDA)
    cpu_only = {"--dtype", "--attention-backend", "--kv-cache-memory-bytes", "--max-model-len", "--enforce-eager"}
    assert not cpu_only & set(command.argv)
    assert "OMP_NUM_THREADS" not in command.environment


def test_a_gpus_limits_are_passed_on():
    command = build(
        Device.CUDA, tensor_parallel_size=8, gpu_memory_utilization=0.9, max_model_len=32768, max_num_seqs=64
    )
    flags = ("--tensor-parallel-size", "--gpu-memory-utilization", "--max-model-len", "--max-num-seqs")
    assert [value(command, flag) for flag in flags] == ["8", "0.9", "32768", "64"]


def test_kimi_runs_its_code_at_a_pinned_revision_with_its_parsers_and_text_only():
    command = build(Device.CUDA, model="moonshotai/Kimi-K2.5", folder=None, revision=REVISION, trust_remote_code=True)
    assert {"--trust-remote-code", "--enable-auto-tool-choice", "--language-model-only"} <= set(command.argv)
    for flag in ("--revision", "--code-revision", "--tokenizer-revision"):
        assert value(command, flag) == REVISION
    assert value(command, "--reasoning-parser") == "kimi_k2"
    assert value(command, "--tool-call-parser") == "kimi_k2"


def test_parsers_can_be_left_out():
    command = build(reasoning_parser="", tool_call_parser="")
    assert not {"--reasoning-parser", "--tool-call-parser", "--enable-auto-tool-choice"} & set(command.argv)


def test_a_model_on_this_machine_is_read_offline_and_a_hub_id_may_be_fetched():
    assert build().environment["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in build(folder=None).environment


def test_no_usage_is_reported_and_only_our_plugin_is_loaded():
    environment = build().environment
    assert environment["VLLM_NO_USAGE_STATS"] == "1"
    assert environment["VLLM_PLUGINS"] == "eyrie_cpu_blocks"


def test_variables_that_the_operator_set_win():
    environment = build(base={"OMP_NUM_THREADS": "7", "PATH": "/bin"}).environment
    assert environment["OMP_NUM_THREADS"] == "7"
    assert environment["PATH"] == "/bin"


def test_extra_arguments_come_last():
    assert build(extra_args=["--max-logprobs", "5"]).argv[-2:] == ("--max-logprobs", "5")


def test_another_process_reads_the_same_settings_from_the_environment(monkeypatch):
    settings = VerifierSettings(
        model="/models/tiny",
        mode=VerifierMode.DRAFT,
        draft_path=Path("/drafts/one"),
        layer_ids=[1, 2],
        reasoning_parser="",
        extra_args=["--a", "b c"],
        enforce_eager=False,
    )
    for name, text in settings.to_environ().items():
        monkeypatch.setenv(name, text)
    assert VerifierSettings() == settings


@pytest.mark.parametrize("name", sorted(VerifierSettings.model_fields))
def test_every_setting_is_described(name):
    assert VerifierSettings.model_fields[name].description


def test_of_several_hosts_the_first_serves_and_the_others_work_for_it():
    group = {"nodes": 2, "head_address": "leader", "tensor_parallel_size": 16}
    first, second = (build(Device.CUDA, node_rank=rank, **group) for rank in (0, 1))
    for rank, command in enumerate((first, second)):
        assert (value(command, "--nnodes"), value(command, "--node-rank")) == ("2", str(rank))
        assert value(command, "--master-addr") == "leader"
        assert value(command, "--speculative-config") == value(first, "--speculative-config")
        assert "VLLM_HOST_IP" not in command.environment, "the others find host 0 by its own address"
    assert build().environment["VLLM_HOST_IP"] == "127.0.0.1"
    assert first.argv[2] == "vllm.entrypoints.openai.api_server"
    assert "--headless" not in first.argv
    assert second.argv[2:6] == ("vllm.entrypoints.cli.main", "serve", "/models/tiny", "--headless")


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"nodes": 2, "node_rank": 2, "head_address": "a"}, "below 2"), ({"nodes": 2}, "head_address")],
)
def test_hosts_that_do_not_make_a_group_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        VerifierSettings(**fields)


def test_json_logs_are_vllms_and_its_servers_too():
    command = build(base={"EYRIE_LOG_FORMAT": "json"})
    config = json.loads(Path(command.environment["VLLM_LOGGING_CONFIG_PATH"]).read_text())
    assert {"vllm", "uvicorn"} <= config["loggers"].keys()
    assert "VLLM_LOGGING_CONFIG_PATH" not in build(base={"EYRIE_LOG_FORMAT": "text"}).environment
    code = f"import logging.config; logging.config.dictConfig({config!r}); logging.getLogger('vllm.x').info('loaded')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    line = json.loads(done.stderr)
    assert (line["service"], line["logger"], line["message"]) == ("verifier", "vllm.x", "loaded")
