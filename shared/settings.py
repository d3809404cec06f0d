"""Settings of all services, from the environment (`EYRIE_...`), with one meaning everywhere."""

import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Self
from urllib.parse import quote, urlsplit, urlunsplit

from pydantic import AliasChoices, Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.errors import UserError
from shared.logs import LogFormat


class Settings(BaseSettings):
    """What a deployment decides. Jobs decide the rest."""

    model_config = SettingsConfigDict(
        env_prefix="EYRIE_", extra="ignore", populate_by_name=True, hide_input_in_errors=True
    )

    redis_url: str = Field(
        "redis://127.0.0.1:6379/0",
        validation_alias=AliasChoices("EYRIE_REDIS_URL", "REDIS_URL"),
        description="Redis with jobs, queue and leases.",
    )
    redis_password_file: Path | None = Field(
        None, description="File with Redis's password, where the URL has none: a URL shows in `docker inspect`."
    )
    store_root: Path = Field(Path("var/store"), description="Artifact store: a folder that gateway and workers share.")
    store_url: str = Field(
        "", description="Bucket with the artifact store (`s3://BUCKET/PREFIX`); empty: it is `EYRIE_STORE_ROOT`."
    )
    store_presign_s: int | None = Field(
        None, ge=1, description="Seconds that a download's address in the bucket is good for; none: gateways send it."
    )
    exchange_root: Path = Field(
        Path("var/exchange"), description="Folder where the verifier leaves hidden states for the workers."
    )
    gateway_host: str = Field("127.0.0.1", description="Address that the gateway listens on.")
    gateway_port: int = Field(8700, ge=1, le=65535, description="Port that the gateway listens on.")
    api_key_file: Path | None = Field(
        None, description="File with the first API key; read by the gateway when it starts."
    )
    insecure_no_api_key: bool = Field(
        False, description="Let a gateway without any API key listen where other machines can reach it."
    )
    webhook_hosts: str = Field(
        "", description="Hosts (`host` or `host:port`, with commas) that webhooks may go to; empty: there are none."
    )
    webhook_retry_s: float = Field(5.0, gt=0, description="First wait before a webhook is sent again.")
    verifier_url: str | None = Field(
        None,
        pattern=r"^(https?://[^/@]+(/.*)?)?$",
        description="Base URL of the fleet's own verifier, without /v1; every job shows it, so no password in it.",
    )
    gpus: str = Field(
        "",
        validation_alias=AliasChoices("EYRIE_GPUS", "GPUS"),
        description="GPUs of this worker, such as `0,1`; empty: all that NVML finds.",
    )
    gpu_lock_folder: Path = Field(
        Path(tempfile.gettempdir()) / "eyrie-gpus",
        description="Folder of this host, shared by its workers, with a lock for each GPU.",
    )
    worker_burst: bool = Field(
        False,
        description="Have a worker take one job, or none when none waits, and end: for autoscaled Kubernetes jobs.",
    )
    worker_metrics_port: int | None = Field(
        None, ge=1, le=65535, description="Port of a worker's own `/metrics`; none: it opens none."
    )
    worker_metrics_host: str = Field("127.0.0.1", description="Address of a worker's own `/metrics`.")
    log_format: LogFormat = Field("text", description="`text`, or `json`: one JSON object a line.")
    max_upload_bytes: int = Field(64 * 1024**3, ge=1, description="Largest dataset file.")
    max_row_bytes: int = Field(16 * 1024**2, ge=1024, description="Longest line of a dataset file.")
    store_quota_bytes: int | None = Field(
        None, ge=1, description="Bytes that the artifact store may hold; a stage that would go beyond is stopped."
    )
    store_min_free_bytes: int | None = Field(
        None, ge=0, description="Bytes left free on the store's volume; none: 1 % of it, at most 256 MiB."
    )
    max_queued_jobs: int = Field(10000, ge=1, description="Jobs that may wait; more are refused.")
    max_attempts: int = Field(5, ge=1, description="Attempts at a job whose worker is lost.")
    retention_days: float = Field(30.0, ge=0, description="Days that outputs are kept which nothing refers to.")
    retry_wait_s: float = Field(15.0, ge=0, description="First wait before a failed job is tried again by itself.")
    run_lease_s: int = Field(20, ge=3, description="Seconds after which a silent run counts as lost.")
    stop_grace_s: int = Field(60, ge=1, description="Seconds between SIGTERM and SIGKILL for a stage.")
    sse_keep_alive_s: float = Field(15.0, gt=0, description="Seconds between two keep-alive comments of a stream.")
    reconcile_interval_s: float = Field(3.0, gt=0, description="Seconds between two looks of the reconciler.")

    @field_validator(
        *("api_key_file", "redis_password_file", "worker_metrics_port"),
        *("store_presign_s", "store_quota_bytes", "store_min_free_bytes"),
        mode="before",
    )
    @classmethod
    def _nothing_is_none(cls, value: object) -> object:
        return None if value == "" else value

    @field_validator("redis_password_file")
    @classmethod
    def _is_a_password(cls, file: Path | None, info: ValidationInfo) -> Path | None:
        if file is not None:
            read_password(file)
            if urlsplit(info.data.get("redis_url", "")).password:
                raise ValueError("EYRIE_REDIS_URL has a password already: take it out of there")
        return file

    @model_validator(mode="after")
    def _password_into_url(self) -> Self:
        if self.redis_password_file is not None:
            parts = urlsplit(self.redis_url)
            user, host = parts.username or "", parts.netloc.rsplit("@", 1)[-1]
            password = quote(read_password(self.redis_password_file), safe="")
            url = urlunsplit(parts._replace(netloc=f"{user}:{password}@{host}"))
            self.__dict__["redis_url"] = url  # an assignment would count as somebody's own choice of a URL
        return self


def read_password(file: Path) -> str:
    """The password in a file; white space around it does not count.

    Raises:
        ValueError: the file cannot be read, or is empty.
    """
    try:
        password = file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ValueError(f"{file} cannot be read by user {os.getuid()}: {error.strerror}") from None
    if not password:
        raise ValueError(f"{file} is empty: write the password into it")
    return password


@cache
def get_settings() -> Settings:
    """The settings of this process, read once.

    Raises:
        UserError: a variable does not hold what it should.
    """
    try:
        return Settings()
    except ValidationError as error:
        wrong = (f"{variable_name(item['loc'])}: {item['msg']}" for item in error.errors())
        text = "; ".join(wrong).replace(": Value error, ", ": ")
        raise UserError(text, hint="correct the environment variable") from None


def variable_name(place: tuple[int | str, ...]) -> str:
    """The environment variable of a setting; those with several names are called by one of them already."""
    name = str(place[0]).upper()
    return name if name.startswith("EYRIE_") or name in ("REDIS_URL", "GPUS") else f"EYRIE_{name}"
