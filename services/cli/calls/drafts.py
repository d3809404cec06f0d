"""Calls on drafts: list, show, lineage, files, download."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import httpx

from services.cli.calls.base import PAGE, TIMEOUT_S, Calls, JsonObject, address
from services.cli.download import Advance, fetch_file, require_own_files


class DraftCalls(Calls):
    """`/v1/drafts`."""

    def list_drafts(self, limit: int = PAGE, **filters: str | None) -> list[JsonObject]:
        """The newest `limit` drafts; filters are `verifier`, `gate`, `tag` and `job`."""
        return self._list("/v1/drafts", limit, filters)

    def get_draft(self, draft_id: str) -> JsonObject:
        """One draft with its evaluation."""
        return self._get(address("drafts", draft_id))

    def tag_draft(self, draft_id: str, tag: str) -> JsonObject:
        """Give a draft a tag; another draft that has it loses it."""
        return self._object("PUT", address("drafts", draft_id, "tags", tag), repeat=True)

    def untag_draft(self, draft_id: str, tag: str) -> JsonObject:
        """Take a tag from a draft."""
        return self._delete(address("drafts", draft_id, "tags", tag))

    def delete_draft(self, draft_id: str) -> JsonObject:
        """Remove a draft from the registry."""
        return self._delete(address("drafts", draft_id))

    def compare_drafts(self, draft_ids: Sequence[str]) -> JsonObject:
        """Drafts side by side: acceptance by suite, and what differs in their job documents."""
        return self._get("/v1/drafts/compare", params={"draft": list(draft_ids)})

    def get_lineage(self, draft_id: str, *, rehash: bool = False) -> JsonObject:
        """What a draft was made from; with `rehash` the gateway reads every file again, however long that takes."""
        timeout = httpx.Timeout(TIMEOUT_S, read=None if rehash else TIMEOUT_S)
        params = {"verify": "full" if rehash else "sizes"}
        return self._get(address("drafts", draft_id, "lineage"), params=params, timeout=timeout)

    def list_draft_files(self, draft_id: str) -> list[JsonObject]:
        """Files of a draft."""
        return cast("list[JsonObject]", self._get(address("drafts", draft_id, "files"))["data"])

    def download_draft(self, draft_id: str, folder: Path, advance: Advance | None = None) -> list[Path]:
        """Bring all files of a draft into `folder`, each checked against its SHA-256.

        What is there already is kept, and what was broken off goes on where it ended. Nothing is overwritten: where a
        file of other content is in the way, nothing is downloaded.

        Raises:
            ApiError
            OSError: a file cannot be written.
        """
        return self.download_files(self.list_draft_files(draft_id), folder, advance)

    def download_files(self, files: list[JsonObject], folder: Path, advance: Advance | None = None) -> list[Path]:
        """Bring files that the API lists into `folder`, as `download_draft` does."""
        require_own_files(files, folder)
        return [fetch_file(self._http, file, folder, advance) for file in files]
