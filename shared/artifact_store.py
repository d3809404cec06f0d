"""The artifact store: datasets, stage outputs, job documents and drafts, by key.

A key is a relative path with `/`. Documents are small and written whole; large files are written by stages into an
attempt's folder (`folder`), go up with `publish`, and become visible only through a manifest that is created
exclusively. This adapter keeps everything below one directory, where `publish` has nothing to do; `shared.object_store`
is the other one. What other modules need of a store is exactly its public methods.
"""

import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from shared.errors import ArtifactStoreError
from shared.integrity import Damage, absent_or_cut, file_sha256
from shared.schemas.manifest import FileEntry

__all__ = ["LocalArtifactStore", "file_sha256", "link_or_copy"]
KEY_PART = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.:@=-]*$")
CHUNK_BYTES = 1 << 20
STAGING = "staging"


class LocalArtifactStore:
    """Keys below `root` on one filesystem (a shared volume when services run on several hosts).

    Attributes:
        remote: whether files have to travel: `path`, `place` and `publish` may take minutes then.
    """

    remote = False

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    def folder(self, key: str) -> Path:
        """Create the folder `key` if need be and return where it lies on this machine."""
        path = self._path(key)
        with _store_errors(key):
            path.mkdir(parents=True, exist_ok=True)
        return path

    def path(self, key: str) -> Path:
        """Where an existing file or folder lies on this machine.

        Raises:
            KeyError: there is no such key, or it is a link that leaves the store.
        """
        path = self._path(key)
        with _store_errors(key):
            if LocalArtifactStore.exists(self, key) and path.resolve().is_relative_to(self.root.resolve()):
                return path
        raise KeyError(key)

    def place(self, key: str) -> Path:
        """Where a file or folder lies on this machine, or would lie: nothing need be there."""
        return self._path(key)

    def publish(self, key: str) -> None:
        """Have other machines see the file `key`, or all files below it, as they are now."""

    def damages(self, root: str, files: Iterable[FileEntry]) -> Sequence[Damage]:
        """What is gone, or has another size, of the files of a manifest; their content is not read."""
        return [*absent_or_cut(self.place(root), files)]

    def download_url(self, key: str, filename: str) -> str | None:
        """An address where GET has the file for a while without asking the gateway; None: there is none."""
        return None

    def exists(self, key: str) -> bool:
        with _store_errors(key), suppress(FileNotFoundError, NotADirectoryError):
            self._path(key).stat()  # Path.exists hides in some versions that it could not look
            return True
        return False

    def read(self, key: str) -> bytes:
        """The bytes of a document.

        Raises:
            KeyError: there is no such document.
        """
        try:
            return self._path(key).read_bytes()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            raise KeyError(key) from None
        except OSError as error:
            raise _translate(error, key) from error

    def write(self, key: str, content: bytes) -> None:
        """Write or replace a document; a reader sees the old one or the new one, never a part."""
        path = self._path(key)
        with _store_errors(key):
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._staged(content)
            os.replace(temporary, path)
            _sync_folder(path.parent)

    def create(self, key: str, content: bytes) -> bool:
        """Create a document unless there is one; of several callers exactly one gets True."""
        path = self._path(key)
        with _store_errors(key):
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._staged(content)
            try:
                os.link(temporary, path)
            except FileExistsError:
                return False
            finally:
                temporary.unlink()
            _sync_folder(path.parent)
        return True

    def adopt(self, key: str, file: Path) -> None:
        """Move a finished file from `staging_file` to `key`, whole."""
        path = self._path(key)
        with _store_errors(key):
            path.parent.mkdir(parents=True, exist_ok=True)
            os.replace(file, path)
            _sync_folder(path.parent)

    def staging_file(self) -> Path:
        """A new path on the store's own filesystem for a file that is still being written."""
        with _store_errors(STAGING):
            folder = self.root / STAGING
            folder.mkdir(parents=True, exist_ok=True)
        return folder / secrets.token_hex(12)

    def list(self, prefix: str) -> Iterator[str]:
        """Names directly below `prefix`, sorted; nothing where there is no such folder.

        What no key can be called (`.nfs...`, `lost+found`) is not the store's, and left out.
        """
        try:
            names = os.listdir(self._path(prefix))
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise _translate(error, prefix) from error
        yield from sorted(filter(KEY_PART.fullmatch, names))

    def delete(self, key: str) -> None:
        """Remove a document or a folder with everything in it; it may be absent."""
        path = self._path(key)
        with _store_errors(key):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def move(self, key: str, target: str) -> None:
        """Rename a document or a folder with everything in it, at once; a document at `target` is replaced.

        What was moved counts as changed now.

        Raises:
            KeyError: there is no `key`.
        """
        source, path = self.path(key), self._path(target)
        with _store_errors(key):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.replace(source, path)
            except FileNotFoundError:
                raise KeyError(key) from None
            os.utime(path)
            _sync_folder(path.parent)

    def measure(self, key: str) -> tuple[int, float]:
        """Bytes of a document, or of all files of a folder, and when one was last changed, by the clock of `now`.

        Raises:
            KeyError: there is no such key.
        """
        root = self.path(key)
        size, changed = 0, 0.0
        below = [Path(folder, name) for folder, folders, names in os.walk(root) for name in folders + names]
        for path in [root, *below]:
            with suppress(FileNotFoundError):
                found = path.lstat()
                size += 0 if stat.S_ISDIR(found.st_mode) else found.st_size
                changed = max(changed, found.st_mtime)
        return size, changed

    def now(self) -> float:
        """What the store's own clock says, in seconds: a file that is written now bears this time.

        Machines that share a volume may have other clocks; differences of file times are right all the same.
        """
        probe = self._staged(b"")
        try:
            return probe.stat().st_mtime
        finally:
            probe.unlink(missing_ok=True)

    def make_root(self) -> None:
        """Create the store's own folder, where nothing has been written yet."""
        with _store_errors(""):
            self.root.mkdir(parents=True, exist_ok=True)

    def free_bytes(self) -> int:
        """Bytes that can still be written; the root has to be there, since another volume may lie above it."""
        with _store_errors(""):
            return shutil.disk_usage(self.root).free

    def total_bytes(self) -> int:
        """Size of the volume; likewise."""
        with _store_errors(""):
            return shutil.disk_usage(self.root).total

    def used_bytes(self, prefix: str = "") -> int:
        """Bytes of all files below `prefix` (everything, where it is empty); hard links of one file count once."""
        seen: set[tuple[int, int]] = set()
        total, folders = 0, [self._path(prefix) if prefix else self.root]
        while folders:
            for status in _statuses(folders.pop(), folders):
                if (status.st_dev, status.st_ino) not in seen:
                    seen.add((status.st_dev, status.st_ino))
                    total += status.st_size
        return total

    def _staged(self, content: bytes) -> Path:
        temporary = self.staging_file()
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            temporary.unlink(missing_ok=True)  # half a file on a full volume is space lost
            raise
        return temporary

    def _path(self, key: str) -> Path:
        parts = key.split("/")
        if not all(KEY_PART.fullmatch(part) for part in parts):
            raise KeyError(key)
        return self.root.joinpath(*parts)


def link_or_copy(source: Path, target: Path) -> None:
    """Make `target` the same file as `source`, by hard link where the filesystem can."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except FileExistsError:
        target.unlink()
        link_or_copy(source, target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
            raise
        shutil.copyfile(source, target)


def _statuses(folder: Path, folders: list[Path]) -> Iterator[os.stat_result]:
    """Yield the status of each file in a folder, and add its folders to the list; what goes meanwhile is left out."""
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
                else:
                    yield entry.stat(follow_symlinks=False)


@contextmanager
def _store_errors(key: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _translate(error, key) from error


def _translate(error: OSError, key: str) -> ArtifactStoreError:
    hints = {
        errno.ENOSPC: "free some space, or give the store a larger volume",
        errno.EDQUOT: "the store's quota is used up",
        errno.EACCES: "the store's folder must be writable for the uid that the services run under",
        errno.EROFS: "the store's folder is mounted read-only",
    }
    code = error.errno or 0
    return ArtifactStoreError(
        f"the artifact store cannot be used: {os.strerror(code) if code else error}",
        where=key,
        hint=hints.get(code, ""),
    )


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
