"""Asks the fleet's own verifier what it serves, so that a job for another model is refused when it is submitted."""

import logging
import threading
import time

import httpx

from shared.schemas.spec import JobSpec
from shared.served_models import name_of, served_models
from shared.submission import FieldError, SubmissionError

log = logging.getLogger(__name__)
TIMEOUT_S = 2.0
KEPT_S = 15.0  # an answer, or that there was none, stands so long


class FleetVerifier:
    """The verifier at `EYRIE_VERIFIER_URL`. Jobs that name an endpoint of their own are none of its business."""

    def __init__(self, url: str | None, transport: httpx.BaseTransport | None = None) -> None:
        self.url = url
        self._http = httpx.Client(timeout=TIMEOUT_S, trust_env=False, transport=transport)
        self._lock = threading.Lock()
        self._asked_at = -KEPT_S
        self._served: dict[str, str] | None = None

    def check(self, spec: JobSpec) -> None:
        """Make sure that the verifier serves what a submitted document wants; before its endpoint is filled in.

        One that does not answer is no reason to refuse a job: it may be up when the job's turn comes, and the generate
        stage asks it again.

        Raises:
            SubmissionError: it serves another model.
        """
        if not self.url or spec.verifier.endpoint or spec.verifier.managed:
            return
        served = self._ask()
        if served is None:
            log.warning("the verifier at %s could not be asked which model it serves", self.url)
            return
        if name_of(served, spec.verifier.model) is None:
            raise SubmissionError(
                [
                    FieldError(
                        "/verifier/model",
                        f"the service's verifier serves {', '.join(served) or 'nothing'}, the job wants "
                        f"{spec.verifier.model} (preset {spec.preset}): give the preset or model that is served, or "
                        "`verifier.endpoint` or `verifier.managed` for one that serves yours",
                    )
                ]
            )

    def _ask(self) -> dict[str, str] | None:
        with self._lock:
            if time.monotonic() - self._asked_at >= KEPT_S:
                self._served = self._fetch()
                self._asked_at = time.monotonic()
            return self._served

    def _fetch(self) -> dict[str, str] | None:
        try:
            response = self._http.get(f"{str(self.url).rstrip('/')}/v1/models")
            return served_models(response.raise_for_status().json())
        except (httpx.HTTPError, httpx.InvalidURL, ValueError):
            return None
