"""API keys: made, listed, deleted, and found again by what a request brings.

The artifact store has `api-keys/ID.json` for each, with the SHA-256 of the key and never the key. Redis plays no part,
so that keys outlive it. One more key may come from the file that `EYRIE_API_KEY_FILE` names; it is read at start,
stands nowhere else, and is called `file`.
"""

import hashlib
import hmac
import logging
import secrets
import threading
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from shared.artifact_store import LocalArtifactStore
from shared.errors import ArtifactStoreError, UserError
from shared.ids import is_id, new_id
from shared.schemas.job import now
from shared.schemas.spec import Document
from shared.stored_documents import read_document

log = logging.getLogger(__name__)
FOLDER = "api-keys"
FILE_KEY = "file"
PREFIX = "eyk_"
KEY_BYTES = 32
MIN_CHARACTERS = 16
KNOWN_FOR_S = 2.0  # a key that another gateway deleted works here no longer than this
UNKNOWN_FOR_S = 0.2  # one that it made works here after this; wrong keys cost no more than so many looks at the store


class KeptKey(Document):
    """What the artifact store has of a key."""

    id: str
    name: str | None = None
    sha256: str
    created_at: datetime


class ApiKeyView(BaseModel):
    """A key, without what it is."""

    id: str = Field(examples=["key_01krw2x9q8c3v5t7n4mp"])
    object: Literal["api_key"] = "api_key"
    name: str | None = Field(None, description="A name for people.", examples=["ci"])
    source: Literal["api", "file"] = Field("api", description="`file`: the one that EYRIE_API_KEY_FILE names.")
    created_at: datetime | None = Field(None, description="Null for the file's.")


class NewApiKeyView(ApiKeyView):
    """A key that was just made."""

    key: str = Field(description="The key itself. It is shown this once.", examples=["eyk_..."])


class ApiKeys:
    """The keys of a service; each gateway knows them anew every `KNOWN_FOR_S`.

    Args:
        first: the key out of the file, if there is one.
        clock: seconds that only grow.
    """

    def __init__(
        self, artifacts: LocalArtifactStore, first: str | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.artifacts = artifacts
        self._first = {FILE_KEY: digest(first)} if first is not None else {}
        self._clock = clock
        self._kept: dict[str, KeptKey] = {}
        self._known_at: float | None = None
        self._lock = threading.Lock()

    @property
    def has_first(self) -> bool:
        """Whether a file gave a key."""
        return bool(self._first)

    def has_any(self) -> bool:
        """Tell whether there is a key at all.

        Raises:
            ArtifactStoreError: that cannot be known.
        """
        return self.has_first or bool(self._names())

    def create(self, name: str | None) -> NewApiKeyView:
        """Make a key."""
        key = PREFIX + secrets.token_urlsafe(KEY_BYTES)
        kept = KeptKey(id=new_id("key"), name=name, sha256=digest(key), created_at=now())
        self.artifacts.write(_document(kept.id), kept.model_dump_json().encode())
        self._known_at = None
        return NewApiKeyView(id=kept.id, name=name, created_at=kept.created_at, key=key)

    def delete(self, key_id: str) -> bool:
        """Make a key useless; False where there is none."""
        if not is_id(key_id, "key") or not self.artifacts.exists(_document(key_id)):
            return False
        self.artifacts.delete(_document(key_id))
        self._known_at = None
        return True

    def views(self) -> list[ApiKeyView]:
        """All keys, newest first; the file's comes last."""
        self.refresh()
        made = sorted(self._kept.values(), key=lambda key: key.id, reverse=True)
        shown = [ApiKeyView(id=key.id, name=key.name, created_at=key.created_at) for key in made]
        return [*shown, *(ApiKeyView(id=FILE_KEY, source="file") for _ in self._first)]

    def find(self, key: str) -> str | None:
        """The id of a key, or None; the store may have to be looked at."""
        found = self.find_known(key)
        if found is None and not self._is_known(UNKNOWN_FOR_S):
            self.refresh()
            found = self.find_known(key)
        return found

    def find_known(self, key: str) -> str | None:
        """The id of a key that is known to work, without a look at the store.

        All stored hashes are compared, in a time that does not depend on what is equal.
        """
        wanted, found = digest(key), None
        for key_id, known in self._digests().items():
            if hmac.compare_digest(wanted, known):
                found = key_id
        return found

    def exists(self, key_id: str) -> bool:
        """Tell whether a key that was found before still works."""
        if key_id not in self._digests() and not self._is_known(UNKNOWN_FOR_S):
            self.refresh()
        return key_id in self._digests()

    def refresh(self) -> None:
        """Read what other gateways made and deleted. While the store is away, what was known holds."""
        with self._lock:
            try:
                kept = {name: self._kept.get(name) or self._read(name) for name in self._names()}
                self._kept = {name: key for name, key in kept.items() if key is not None}
            except ArtifactStoreError as error:
                log.warning("the API keys cannot be read, those that were known hold: %s", error)
            self._known_at = self._clock()

    def _names(self) -> list[str]:
        names = [name.removesuffix(".json") for name in self.artifacts.list(FOLDER)]
        return [name for name in names if is_id(name, "key")]

    def _is_known(self, seconds: float) -> bool:
        return self._known_at is not None and self._clock() - self._known_at < seconds

    def _digests(self) -> dict[str, str]:
        kept = self._kept if self._is_known(KNOWN_FOR_S) else {}
        return self._first | {key.id: key.sha256 for key in kept.values()}

    def _read(self, key_id: str) -> KeptKey | None:
        return read_document(self.artifacts, _document(key_id), KeptKey, "the key does not work")


def digest(secret: str) -> str:
    """What is kept of a secret: keys are random, so that a plain SHA-256 gives nothing away."""
    return hashlib.sha256(secret.encode()).hexdigest()


def read_first_key(file: Path | None) -> str | None:
    """The first key, out of its file; white space around it does not count.

    Raises:
        UserError: the file cannot be read, or what it holds is no key.
    """
    if file is None:
        return None
    hint = "make one with: openssl rand -base64 32"
    try:
        key = file.read_bytes().decode("ascii").strip()
    except OSError as error:
        message = f"the file of the first API key cannot be read: {error.strerror}"
        raise UserError(message, where=f"EYRIE_API_KEY_FILE={file}", hint=hint) from None
    except UnicodeDecodeError:
        key = "\0"
    if not key.isprintable() or " " in key:
        message = "an API key has printable ASCII characters and no spaces"
        raise UserError(message, where=f"EYRIE_API_KEY_FILE={file}", hint=hint)
    if len(key) < MIN_CHARACTERS:
        message = f"the API key has {len(key)} characters, and needs {MIN_CHARACTERS}"
        raise UserError(message, where=f"EYRIE_API_KEY_FILE={file}", hint=hint)
    return key


def _document(key_id: str) -> str:
    return f"{FOLDER}/{key_id}.json"
