"""The artifact store in a bucket of S3-compatible storage: the second adapter of `shared.artifact_store`.

Documents live in the bucket alone. Files lie in a working folder of this machine, since stages need folders: what an
attempt writes goes up (`publish`) before its manifest is created, and what is asked for by `path` or `place` comes down
first, unless it is there already. Objects below a key are its folder; nothing is ever appended to an object.

Credentials, region and endpoint are boto3's own (`AWS_...` variables, `AWS_ENDPOINT_URL` for storage that is not AWS).
"""

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
from boto3.exceptions import Boto3Error
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from shared.artifact_store import KEY_PART, LocalArtifactStore
from shared.errors import ArtifactStoreError, UserError
from shared.integrity import Damage, size_damage
from shared.schemas.manifest import FileEntry

THREADS = 8
ATTEMPTS = 5
# A call that hangs is tried again while those who wait for it still do; the second leaves storage time to put parts
# together.
CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 5, 15
MISSING = frozenset({"404", "NoSuchKey", "NotFound"})
TAKEN = frozenset({"412", "PreconditionFailed"})
RACED = frozenset({"409", "ConditionalRequestConflict"})  # another one is creating it right now: ask again
DELETED_AT_ONCE = 1000  # S3's limit


@dataclass(frozen=True)
class Found:
    """One object: its key below the store's prefix, bytes, and when it was last written."""

    key: str
    size: int
    changed: float


class ObjectArtifactStore(LocalArtifactStore):
    """Keys below `s3://BUCKET/PREFIX`, with `folder` as this machine's working folder.

    Args:
        presign_s: how long a download's address is good for; None: files pass through the gateway.

    Raises:
        UserError: the URL names no bucket.
    """

    remote = True

    def __init__(self, url: str, folder: Path, presign_s: int | None = None) -> None:
        super().__init__(folder)
        parts = urlsplit(url)
        if parts.scheme != "s3" or not parts.netloc:
            raise UserError(
                f"{url} names no bucket", where="EYRIE_STORE_URL", hint="give s3://BUCKET or s3://BUCKET/PREFIX"
            )
        self.bucket, self.prefix, self.presign_s = parts.netloc, parts.path.strip("/"), presign_s
        config = Config(
            signature_version="s3v4",
            retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=READ_TIMEOUT_S,
            max_pool_connections=4 * THREADS,
        )
        self.client: Any = boto3.client("s3", config=config)

    def path(self, key: str) -> Path:
        self._fetch(key)
        return super().path(key)

    def place(self, key: str) -> Path:
        self._fetch(key)
        return super().place(key)

    def exists(self, key: str) -> bool:
        return next(self._below(key, limit=1), None) is not None or super().exists(key)

    def read(self, key: str) -> bytes:
        with self._errors(key):
            body: bytes = self.client.get_object(Bucket=self.bucket, Key=self._name(key))["Body"].read()
        return body

    def write(self, key: str, content: bytes) -> None:
        with self._errors(key):
            self.client.put_object(Bucket=self.bucket, Key=self._name(key), Body=content)

    def create(self, key: str, content: bytes) -> bool:
        for _ in range(ATTEMPTS):
            try:
                with self._errors(key, passed=TAKEN | RACED):
                    self.client.put_object(Bucket=self.bucket, Key=self._name(key), Body=content, IfNoneMatch="*")
                return True
            except ClientError as error:
                if _code(error) in TAKEN:
                    # Put again since an answer got lost: what took the place may be what was sent first.
                    return _was_repeated(error) and self.read(key) == content
        raise ArtifactStoreError("the object is being created again and again", where=key)

    def publish(self, key: str) -> None:
        """Upload the file `key`, or all files below it; large ones in parts."""
        root = super().place(key)
        files = [root] if root.is_file() else [path for path in sorted(root.rglob("*")) if path.is_file()]
        self._each(self._upload, [(path.relative_to(self.root).as_posix(), path) for path in files])

    def adopt(self, key: str, file: Path) -> None:
        super().adopt(key, file)
        self.publish(key)

    def list(self, prefix: str) -> Iterator[str]:
        names = set(super().list(prefix))
        start = f"{self._name(prefix)}/"
        with self._errors(prefix):
            pages = self.client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self.bucket, Prefix=start, Delimiter="/"):
                names |= {part["Prefix"][len(start) :].rstrip("/") for part in page.get("CommonPrefixes", [])}
                names |= {item["Key"][len(start) :] for item in page.get("Contents", [])}
        yield from sorted(filter(KEY_PART.fullmatch, names))

    def delete(self, key: str) -> None:
        self._remove([found.key for found in self._below(key)])
        super().delete(key)

    def move(self, key: str, target: str) -> None:
        """Copy and delete, file by file: not at once, unlike on a filesystem."""
        objects = list(self._below(key))
        if not objects:
            return super().move(key, target)
        self._each(self._copy, [(found.key, target + found.key[len(key) :]) for found in objects])
        self._remove([found.key for found in objects])
        local = super().place(key)
        if local.is_dir():
            shutil.rmtree(local, ignore_errors=True)
        else:
            local.unlink(missing_ok=True)
        return None

    def measure(self, key: str) -> tuple[int, float]:
        objects = list(self._below(key))
        if not objects:
            return super().measure(key)
        return sum(found.size for found in objects), max(found.changed for found in objects)

    def now(self) -> float:
        """The storage's own clock, to the second, as it stands in its answers."""
        with self._errors(""):
            answer = self.client.list_objects_v2(Bucket=self.bucket, MaxKeys=1)
        return parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"]).timestamp()

    def damages(self, root: str, files: Iterable[FileEntry]) -> Sequence[Damage]:
        held = {found.key: found.size for found in self._below(root)}
        sizes = ((entry, held.get(f"{root}/{entry.path}")) for entry in files)
        return [damage for entry, size in sizes if (damage := size_damage(entry, size)) is not None]

    def download_url(self, key: str, filename: str) -> str | None:
        if self.presign_s is None or next(self._below(key, limit=1), None) is None:
            return None
        asked = {"ResponseContentDisposition": f'attachment; filename="{filename}"'}
        given = {"Bucket": self.bucket, "Key": self._name(key), **asked}
        with self._errors(key):
            url: str = self.client.generate_presigned_url("get_object", Params=given, ExpiresIn=self.presign_s)
        return url

    def _fetch(self, key: str) -> None:
        """Bring down what is not here, or shorter: a log that grew since; what is longer here is this machine's own."""
        wanted = []
        for found in self._below(key):
            local = super().place(found.key)
            if not local.is_file() or local.stat().st_size < found.size:
                wanted.append((found.key, local))
        self._each(self._download, wanted)

    def _download(self, key: str, local: Path) -> None:
        local.parent.mkdir(parents=True, exist_ok=True)
        staged = self.staging_file()
        try:
            with self._errors(key):
                self.client.download_file(self.bucket, self._name(key), str(staged))
            staged.replace(local)
        except KeyError:  # deleted since it was listed
            staged.unlink(missing_ok=True)
        except BaseException:
            staged.unlink(missing_ok=True)
            raise

    def _upload(self, key: str, local: Path) -> None:
        with self._errors(key):
            self.client.upload_file(str(local), self.bucket, self._name(key))

    def _copy(self, key: str, target: str) -> None:
        with self._errors(key):
            self.client.copy({"Bucket": self.bucket, "Key": self._name(key)}, self.bucket, self._name(target))

    def _remove(self, keys: Iterable[str]) -> None:
        names = [{"Key": self._name(key)} for key in keys]
        for start in range(0, len(names), DELETED_AT_ONCE):
            batch = {"Objects": names[start : start + DELETED_AT_ONCE], "Quiet": True}
            with self._errors(""):
                answer = self.client.delete_objects(Bucket=self.bucket, Delete=batch)
            if errors := answer.get("Errors"):
                raise ArtifactStoreError(f"the bucket did not delete: {errors[0]['Message']}", where=errors[0]["Key"])

    def _below(self, key: str, limit: int | None = None) -> Iterator[Found]:
        """The object `key`, or those below it."""
        name, cut = self._name(key), len(self.prefix) + 1 if self.prefix else 0
        with self._errors(key):
            pages = self.client.get_paginator("list_objects_v2")
            page_size = {"PageSize": 1 + limit} if limit else {}
            for page in pages.paginate(Bucket=self.bucket, Prefix=name, PaginationConfig=page_size):
                for item in page.get("Contents", []):
                    if item["Key"] == name or item["Key"].startswith(f"{name}/"):
                        yield Found(item["Key"][cut:], item["Size"], item["LastModified"].timestamp())

    def _each(self, action: Callable[[str, Any], None], items: Sequence[tuple[str, Any]]) -> None:
        if not items:
            return
        with ThreadPoolExecutor(THREADS) as pool:
            for _ in pool.map(lambda pair: action(*pair), items):
                pass

    def _name(self, key: str) -> str:
        super()._path(key)  # refuses what is no key
        return f"{self.prefix}/{key}" if self.prefix else key

    @contextmanager
    def _errors(self, key: str, passed: frozenset[str] = frozenset()) -> Iterator[None]:
        try:
            yield
        except ClientError as error:
            if _code(error) in passed:
                raise
            if _code(error) in MISSING:
                raise KeyError(key) from None
            raise _translate(error, key) from error
        except BotoCoreError as error:
            raise _translate(error, key) from error
        except Boto3Error as error:  # what boto3 makes of a transfer that failed; what happened is its context
            raise _translate(error.__context__ or error, key) from error


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _was_repeated(error: ClientError) -> bool:
    return int(error.response["ResponseMetadata"].get("RetryAttempts", 0)) > 0


def _translate(error: BaseException, key: str) -> ArtifactStoreError:
    hint = "look at EYRIE_STORE_URL, AWS_ENDPOINT_URL and the credentials"
    return ArtifactStoreError(f"the artifact store's bucket cannot be used: {error}", where=key, hint=hint)
