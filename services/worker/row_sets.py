"""Which stage runs make equal rows of equal content: an index in the store, `rowsets/ROWSET/KEY`.

A run enters its stage key below the key of its row set; later runs of the same set find its folders there, and take
over the rows that they have in common.
"""

import contextlib
from pathlib import Path

from shared.artifact_store import LocalArtifactStore
from shared.manifests import read_manifest
from shared.schemas.job import Stage

MOST_SIBLINGS = 16  # folders that are looked through for rows


class RowSets:
    """The index of one store."""

    def __init__(self, store: LocalArtifactStore) -> None:
        self.store = store

    def siblings(self, stage: Stage, key: str, rowset: str | None) -> list[Path]:
        """Enter a run, and return the folders of the others in its set, newest first.

        Args:
            key: the run's stage key.
            rowset: see `rowset_key`; None: the stage has no such set.
        """
        if rowset is None:
            return []
        self.store.create(f"rowsets/{rowset}/{key}", b"")
        others = [other for other in self.store.list(f"rowsets/{rowset}") if other != key]
        for other in others:
            if not self.store.exists(f"stages/{stage}/{other}"):  # cleared away
                self.store.delete(f"rowsets/{rowset}/{other}")
        folders = [folder for other in others for folder in self._folders(f"stages/{stage}/{other}")]
        return sorted(folders, key=_age, reverse=True)[:MOST_SIBLINGS]

    def _folders(self, prefix: str) -> list[Path]:
        """`out` of a finished run, else the `work` folders of its attempts."""
        manifest = read_manifest(self.store, f"{prefix}/manifest.json")
        if manifest is not None:
            with contextlib.suppress(KeyError):  # removed by now
                return [self.store.path(manifest.root)]
        works = [f"{prefix}/attempts/{token}/work" for token in self.store.list(f"{prefix}/attempts")]
        return [self.store.path(work) for work in works if self.store.exists(work)]


def _age(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:  # removed by now
        return 0.0
