"""Our run, said in the words of speculators' `TrainConfig`."""

from speculators.train.config import TrainConfig

from services.worker.training.run_config import DRAFT_CONFIG_NAME, LOGS_NAME, RunConfig

# The mask token matters to block drafts only; resolving it would need the verifier's processor, which Kimi lacks.
UNUSED_MASK_TOKEN = 0
CUDA_LOG_EVERY = 10  # each logged step synchronises the GPU
TOKEN_PREFETCH = 4  # batches each loader process keeps ready


def library_config(run: RunConfig) -> TrainConfig:
    """Build the typed configuration that `speculators.train.cli.main` takes."""
    return TrainConfig.from_flat({**_model(run), **_data(run), **_training(run)})


def split_ratio(num_train: int, num_val: int) -> float:
    """The ratio for which `int(n * ratio)` is `num_train` whatever way it is rounded."""
    return (num_train + 0.5) / (num_train + num_val)


def _model(run: RunConfig) -> dict[str, object]:
    draft = run.draft
    return {
        "speculator_type": draft.algorithm,
        "verifier_name_or_path": str(run.verifier),
        "draft_config": str(run.run / DRAFT_CONFIG_NAME),
        "target_layer_ids": run.layer_ids,
        "draft_vocab_size": draft.vocab_size,
        "d2t_path": str(run.vocab / "d2t.npy"),
        "t2d_path": str(run.vocab / "t2d.npy"),
        "mask_token_id": UNUSED_MASK_TOKEN,
        "norm_before_residual": draft.norm_before_residual,
        "norm_before_fc": draft.norm_before_fc,
        "norm_output": draft.norm_output,
        "draft_attn_impl": run.attention,
    }


def _data(run: RunConfig) -> dict[str, object]:
    return {
        "data_path": str(run.dataset),
        "hidden_states_path": None,
        "train_data_ratio": split_ratio(run.num_train, run.num_val),
        "total_seq_len": run.train.pack_length,
        "hidden_states_dtype": run.dtype,
        "num_workers": run.train.num_workers,
        "prefetch_factor": TOKEN_PREFETCH,
        "on_missing": "raise",
    }


def _training(run: RunConfig) -> dict[str, object]:
    train = run.train
    return {
        "seed": train.seed,
        "ttt_steps": train.ttt_steps,
        "ttt_step_loss_decay": train.ttt_step_loss_decay,
        "loss_implementation": "eager" if run.device == "cpu" else "fused",
        "optimizer": train.optimizer,
        "lr": train.lr,
        "weight_decay": train.weight_decay,
        "scheduler_type": train.scheduler,
        "scheduler_warmup_ratio": train.warmup_ratio,
        "epochs": train.epochs,
        "max_steps": train.max_steps,
        "log_freq": 1 if run.device == "cpu" else CUDA_LOG_EVERY,
        "save_path": str(run.run / "library"),
        "no_resume_from_checkpoint": True,
        "logger": ",".join(run.integrations),
        "log_dir": str(run.run / LOGS_NAME),
        "run_name": run.run_name,
    }
