"""How far a verifier is, read from vLLM's own sentences."""

from pathlib import Path

from services.worker.loading_log import LoadingLog, LoadingState

LINES = [
    "(EngineCore pid=1) INFO 03-01 [gpu_model_runner.py:5040] Starting to load model /models/Kimi-K2.5...\n",
    "\rLoading safetensors checkpoint shards:   0% Completed | 0/64 [00:00<?, ?it/s]\n",
    "\rLoading safetensors checkpoint shards:  25% Completed | 16/64 [00:10<00:30,  1.6it/s]\n",
    "INFO [default_loader.py:502] Loading weights took 41.20 seconds\n",
    "INFO [backends.py:1167] Dynamo bytecode transform time: 9.10 s\n",
    "Capturing CUDA graphs (decode, FULL):  50%|#####     | 17/34 [00:01<00:01]\r",
    "INFO [core.py:403] init engine (profile, create kv cache, warmup model) took 90.00 s\n",
]


def test_each_sentence_is_told_once_and_half_lines_wait(tmp_path: Path) -> None:
    path = tmp_path / "verifier.log"
    path.write_text("Loading safetensors checkpoint shards: 99% Completed | 63/64 [of an earlier run]\n")
    log, told = LoadingLog(path), list[LoadingState]()
    log.tell(told.append)
    for line in LINES:
        with path.open("a", newline="") as file:
            file.write(line[:20])
            file.flush()
            log.tell(told.append)
            file.write(line[20:])
        log.tell(told.append)
    assert [(state.message, state.loaded) for state in told] == [
        ("starts vLLM", None),
        ("loads the weights", None),
        ("has loaded 0 of 64 files of weights", 0.0),
        ("has loaded 16 of 64 files of weights", 0.25),
        ("has loaded the weights and warms up", None),
        ("compiles", None),
        ("captures CUDA graphs, 50 %", None),
        ("opens its port", None),
    ]


def test_what_is_said_of_weights_by_vllm_is_what_is_looked_for() -> None:
    import importlib.util

    vllm = Path(importlib.util.find_spec("vllm").submodule_search_locations[0])  # found, not imported
    source = (vllm / "model_executor/model_loader/weight_utils.py").read_text()
    assert '"Loading safetensors checkpoint shards"' in source
    assert "{percentage:3.0f}% Completed | {n_fmt}/{total_fmt} [" in source
