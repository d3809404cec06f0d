"""What the fleet hears of a verifier that a run starts: what it serves, how far it has loaded, and that it is gone."""

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from services.worker.loading_log import LoadingState
from shared.ids import new_id
from shared.schemas.fleet import VerifierCapture, VerifierState, VerifierStatus
from shared.schemas.job import now
from shared.verifier_config import VerifierConfig
from shared.verifier_settings import VerifierMode, VerifierSettings


class VerifierReport:
    """One verifier's life, from its start to its end; a context.

    Args:
        show: told of every change.
        forget: told the verifier's id when it is gone.
        draft: what it serves beside the model, as people call it.
    """

    def __init__(
        self,
        settings: VerifierSettings,
        config: VerifierConfig,
        show: Callable[[VerifierState], None],
        forget: Callable[[str], None],
        *,
        stage: str | None = None,
        gpus: Sequence[str] = (),
        draft: str | None = None,
    ) -> None:
        self._show, self._forget, self._started = show, forget, time.monotonic()
        self.state = VerifierState(
            id=new_id("verifier"),
            kind="managed",
            model=settings.served_model_name or settings.model,
            status=VerifierStatus.LOADING,
            num_layers=config.num_hidden_layers,
            hidden_size=config.hidden_size,
            vocab_size=config.vocab_size,
            max_model_len=settings.max_model_len,
            capture=_capture(settings),
            draft=draft,
            stage=stage,
            gpus=list(gpus),
            checked_at=now(),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._forget(self.state.id)

    def loading(self, state: LoadingState) -> None:
        """It is still loading."""
        self._change(status_message=state.message, loaded=state.loaded)

    def ready(self, url: str) -> None:
        """It answers."""
        took_s = round(time.monotonic() - self._started, 3)
        self._change(status=VerifierStatus.READY, url=url, status_message="answers", loaded=None, load_seconds=took_s)

    def _change(self, **fields: object) -> None:
        self.state = self.state.model_copy(update={**fields, "checked_at": now()})
        self._show(self.state)


def _capture(settings: VerifierSettings) -> VerifierCapture | None:
    if settings.mode is not VerifierMode.CAPTURE:
        return None
    exchange = str(settings.shared_folder.absolute())
    return VerifierCapture(
        enabled=True, layer_ids=settings.layer_ids or [], modes=["inline", "prefill"], exchange=exchange
    )
