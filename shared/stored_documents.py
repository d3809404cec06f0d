"""Reads documents of the artifact store as what they stand for; a damaged one costs itself only."""

import logging
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from shared.artifact_store import LocalArtifactStore

log = logging.getLogger(__name__)

Document = TypeVar("Document", bound=BaseModel)


def read_document(
    store: LocalArtifactStore, key: str, kind: type[Document], consequence: str = "it counts as absent"
) -> Document | None:
    """The document at `key`; None where there is none, or it cannot be read, which is logged.

    Args:
        consequence: of its damage, for whoever reads the log.

    Raises:
        ArtifactStoreError: the store cannot be read.
    """
    try:
        return kind.model_validate_json(store.read(key))
    except KeyError:
        return None
    except ValidationError:
        log.error("%s in the artifact store cannot be read: %s", key, consequence)
        return None
