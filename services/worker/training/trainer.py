"""speculators' trainer with Eyrie's resume points, metrics, best weights and exports.

The library trains: this subclass only uses its overridable methods. `services.worker.training.main` puts it where
`speculators.train.cli.main` looks the trainer up.
"""

import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from speculators.train.trainer import Trainer, TrainerConfig

from services.worker.training import cpu_adapter, packed_loss, run_result
from services.worker.training.acceptance import acceptance_length, expected_acceptance, full_accuracies
from services.worker.training.events import LIBRARY_METRICS, EventWriter, LastRecord, keep_earlier_metrics
from services.worker.training.export import export_draft
from services.worker.training.hidden_noise import HiddenNoise
from services.worker.training.metric_names import flat_train_metrics, is_finite
from services.worker.training.resume_state import Position, ResumePoint, find_point, fingerprint, save_point
from services.worker.training.row_books import Reached, mark_reached, on_any_rank, trained_batches
from services.worker.training.run_config import EXPORT_NAME, METRICS_NAME, EpochResult, RunConfig
from services.worker.training.step_plan import plan_steps
from services.worker.training.stop_signal import StopSignal, TrainingStoppedError
from shared.errors import DivergedError, InternalError


class EyrieTrainer(Trainer):
    """One rank's trainer.

    Args:
        model, config, train_loader, val_loader: as the library gives them.
        run: the run's own configuration.
        writer: where events and metrics go; silent on all ranks but the first.
    """

    def __init__(
        self,
        model: Any,
        config: TrainerConfig,
        train_loader: Any,
        val_loader: Any = None,
        *,
        run: RunConfig,
        writer: EventWriter,
    ) -> None:
        self.run, self.writer, self.records = run, writer, LastRecord()
        self.sampler = train_loader.batch_sampler
        rows = len(self.sampler.lengths)
        self.plan = plan_steps(self.sampler._generate_batches, rows, config.num_epochs, config.max_steps)
        self.stop = StopSignal()
        self.started = time.monotonic()
        self.saved_at = self.started
        self.point: ResumePoint | None = find_point([run.run, *run.earlier], fingerprint(run))
        self.position = (
            self.point.position if self.point else Position(epoch=0, local_step=0, step=0, fingerprint=fingerprint(run))
        )
        self.resumed_from = self.position.step
        self.seconds_before = self.position.seconds
        self.best_path = self.point.best_path() if self.point else None
        super().__init__(
            model,
            config._replace(num_epochs=self.plan.epochs, scheduler_total_steps=self.plan.total),
            train_loader,
            val_loader,
        )

    @property
    def draft(self) -> Any:
        """The speculators model, out of its DDP wrapper."""
        return getattr(self.model, "module", self.model)

    def trained(self) -> dict[str, torch.Tensor]:
        """Parameters that training changes, by name."""
        return {name: p for name, p in self.draft.named_parameters() if p.requires_grad}

    def setup_trainer(self) -> None:
        """Take the position from the resume point instead of the library's folders."""
        super().setup_trainer()
        if self.run.device == "cpu":
            cpu_adapter.steer(self)
        self.current_epoch = self.position.epoch
        self._resume_local_step = self.position.local_step
        self.global_step = self.position.step

    def setup_model(self) -> None:
        """Export the untrained draft, then load the resume point's weights before the ranks share them."""
        self.draft.verifier_norm.variance_epsilon = self.run.verifier_norm_eps
        if self.rank == 0:
            self._export("untrained", None)
        if self.point is not None:
            unexpected = self.draft.load_state_dict(self.point.weights(), strict=False)[1]
            if unexpected:
                raise InternalError("the resume point does not fit the draft", where=str(unexpected))
        super().setup_model()

    def setup_optimizer(self) -> None:
        """Restore optimizers, schedulers and random states after the library made them."""
        super().setup_optimizer()
        source = self.run.run / METRICS_NAME
        if self.point is not None:
            self.point.restore(self.optimizers, self.schedulers)
            source = self.point.metrics
        if self.rank == 0:
            keep_earlier_metrics(source, self.run.run, self.position.step)

    def run_training(self) -> None:
        """Train, validate, export. The library's own signal handling is left out: it stops in mid-step."""
        self.stop.install()
        metrics = logging.getLogger(LIBRARY_METRICS)
        metrics.addHandler(self.records)
        metrics.propagate = False  # sixteen lines a step in the stage's log
        self._hook_model()
        self.writer.event(
            "started",
            step=self.position.step,
            total_steps=self.plan.total,
            epochs=self.plan.epochs,
            resumed_from=self.resumed_from,
        )
        Trainer.run_training.__wrapped__(self)
        reached = self._rows_reached()
        if self.rank == 0:
            self._finish(reached)

    def train_epoch(self, epoch: int, *, step_callback: Callable[[], None] | None = None) -> None:
        """Train one epoch; `step_callback` runs after each step, after ours."""
        batches = list(self.sampler._generate_batches(epoch))
        done = self._resume_local_step if epoch == self.current_epoch else 0

        def after_step() -> None:
            nonlocal done
            self._after_step(epoch, done, batches[done])
            done += 1
            if step_callback is not None:
                step_callback()

        super().train_epoch(epoch, step_callback=after_step)

    def val_epoch(self, epoch: int) -> dict[str, float] | None:
        """Validate, and add what the accuracies foretell for vLLM.

        Raises:
            DivergedError: the validation loss is not finite.
        """
        metrics = super().val_epoch(epoch)
        if metrics is None:
            return None
        values = {name.removesuffix("_epoch"): value for name, value in metrics.items()}
        values["loss"] = packed_loss.total_loss(values)
        self._require_finite(values["loss"], "validation loss")
        accepted = expected_acceptance(full_accuracies(values), self.run.coverage)
        values["estimated_acceptance_length"] = acceptance_length(accepted)
        self.writer.metrics("val", self.global_step, epoch, values)
        return values

    def maybe_save_checkpoint(self, epoch: int | str, local_step: int = 0) -> None:
        """The library's bfloat16 checkpoints are not used."""

    def maybe_update_best(self, epoch: int, val_metrics: dict[str, float] | None) -> None:
        """Keep the weights with the longest estimated acceptance (equal: lower loss), and a resume point."""
        if val_metrics is None:
            raise InternalError("the trainer has no validation rows")
        last = EpochResult(epoch=epoch, step=self.global_step, metrics=val_metrics)
        best = self.position.best
        if best is None or _rank(last) > _rank(best):
            best = last
            if self.rank == 0:
                self._keep_best(epoch)
        self.position = self.position.model_copy(
            update={"epoch": epoch + 1, "local_step": 0, "best": best, "last": last}
        )
        self._save_point()

    def _after_step(self, epoch: int, index: int, batch: Any) -> None:
        ranks = dist.get_world_size() if self.is_distributed else 1
        tokens = int(self.sampler.lengths[batch].sum()) - len(batch)
        self.position = self.position.model_copy(
            update={
                "epoch": epoch,
                "local_step": index + 1,
                "step": self.global_step,
                "tokens": self.position.tokens + tokens * ranks,
                "samples": self.position.samples + len(batch) * ranks,
            }
        )
        if logged := self.records.take():
            values = flat_train_metrics(logged, len(batch), ranks)
            self._require_finite(values["loss"], "training loss")
            self.writer.metrics("train", self.global_step, epoch, values)
        if time.monotonic() - self.saved_at >= self.run.train.checkpoint_every_s:
            self._save_point()

    def _require_finite(self, loss: float, what: str) -> None:
        if not is_finite(loss):
            raise DivergedError(
                f"the {what} is {loss}",
                where=f"step {self.global_step}",
                hint="lower train.lr, or look at the hidden states of the rows",
            )

    def _hook_model(self) -> None:
        """Steer every forward pass, in training and validation, from outside of the library's compiled function."""
        noise = HiddenNoise(self.run.train.hidden_noise, self.run.train.seed, self.rank)

        def before(model: Any, args: Any, batch: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            self._check_stop()
            if batch.pop("error_records", 0):
                raise InternalError(
                    "the trainer could not use a row: its file of hidden states holds other token ids",
                    where="capture/dataset",
                )
            return args, packed_loss.numbered_mask(noise(model, batch, self.global_step))

        def after(model: Any, _args: Any, output: Any) -> None:
            if not model.training:
                packed_loss.weigh_by_positions(output[2])

        self.draft.register_forward_pre_hook(before, with_kwargs=True)
        self.draft.register_forward_hook(after)

    def _check_stop(self) -> None:
        """Before each batch: the state is consistent here, in training as in validation."""
        if not self.stop.requested(self.is_distributed):
            return
        if self.position.step > self.resumed_from:
            self._save_point()
        raise TrainingStoppedError

    def _save_point(self) -> None:
        self.saved_at = time.monotonic()
        if self.rank != 0:
            return
        weights = self.trained()
        if not all(bool(torch.isfinite(weight).all()) for weight in weights.values()):
            raise DivergedError("a weight is not finite", where=f"step {self.global_step}")
        seconds = self.seconds_before + time.monotonic() - self.started
        position = self.position.model_copy(update={"seconds": seconds})
        save_point(self.run.run, position, weights, self.optimizers, self.schedulers, self.best_path)
        self.writer.event("checkpoint", step=position.step, epoch=position.epoch)

    def _keep_best(self, epoch: int) -> None:
        path = self.run.run / f"best_{epoch}.safetensors"
        temporary = path.with_suffix(f".{os.getpid()}")
        save_file({k: v.detach().float().cpu().contiguous() for k, v in self.trained().items()}, temporary)
        temporary.replace(path)
        earlier, self.best_path = self.best_path, path
        if earlier is not None and earlier.parent == self.run.run and earlier != path:
            earlier.unlink(missing_ok=True)

    def _export(self, name: str, weights: Mapping[str, torch.Tensor] | None) -> Path:
        folder = self.run.run / EXPORT_NAME / name
        folder.parent.mkdir(exist_ok=True)
        export_draft(
            self.draft,
            folder,
            dtype=self.run.export_dtype,
            shape=self.run.shape,
            verifier_name=self.run.verifier_name,
            weights=weights,
        )
        return folder

    def _rows_reached(self) -> Reached:
        """By row of the dataset, training rows first: whether any rank has trained or validated on it."""
        self.sampler._cached_generated_batches = (-1, [])  # a resumed epoch has left only its rest there
        trained = trained_batches(self.sampler._generate_batches, self.position.step)
        held_out = self.val_loader.batch_sampler
        validated = (batch for epoch in range(self.position.epoch) for batch in held_out._generate_batches(epoch))
        reached = np.concatenate(
            [mark_reached(trained, len(self.sampler.lengths)), mark_reached(validated, len(held_out.lengths))]
        )
        return on_any_rank(reached) if self.is_distributed else reached

    def _finish(self, reached: Reached) -> None:
        """Export best and last, and say what was reached."""
        best, last = self.position.best, self.position.last
        if best is None or last is None or self.best_path is None:
            raise InternalError("training ended without a validation")
        self._export("best", load_file(self.best_path))
        if last.epoch != best.epoch:
            self._export("last", None)
        run_result.write(self, best, last, reached)


def _rank(result: EpochResult) -> tuple[float, float]:
    return result.metrics["estimated_acceptance_length"], -result.metrics["loss"]
