"""Rows: `GET /v1/jobs/{id}/rows` and `/v1/jobs/{id}/rows/{row_id}`, what a job trains on, with the loss mask.

Order: as stored, training rows first once capture is done. Filter: `split`. Paging: `limit` and `after` (the id of the
last row).
"""

import itertools
from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field

from services.gateway.deps import BackendDep, JobDep, Limit
from services.gateway.detokenizer import texts_of
from services.gateway.stored_rows import RowSummary, Split, StoredRow, find_row, page_of_rows, rows_of
from services.gateway.wire import Page
from shared.schemas.job import JobRecord
from shared.settings import Settings

router = APIRouter(
    prefix="/v1/jobs/{job_id}/rows",
    tags=["rows"],
    responses={409: {"description": "The job has no rows yet"}},
)
MAX_SEGMENTS_AS_TEXT = 200


class Segment(BaseModel):
    """A run of ids under one value of the loss mask."""

    supervised: bool
    start: int = Field(description="Place of its first id in `input_ids`.")
    token_ids: list[int]
    text: str | None = None


class RowView(RowSummary):
    """One row with its mask."""

    input_ids: list[int]
    loss_mask: list[int]
    last_id: int | None = Field(description="The target of the last state; learnt, and without a state of its own.")
    segments: list[Segment]
    text_source: str = Field(description="Where the texts come from, or why there are none.")


@router.get("")
def list_rows(
    record: JobDep,
    backend: BackendDep,
    limit: Limit = 50,
    after: Annotated[str | None, Query(max_length=200, description="Id of the last row of the page before.")] = None,
    split: Annotated[Split | None, Query(description="Only rows of this split.")] = None,
) -> Page[RowSummary]:
    """List a job's rows."""
    found, has_more = page_of_rows(rows_of(backend.artifacts, record), after, limit, split)
    return Page(data=found, has_more=has_more)


@router.get("/{row_id}")
def get_row(record: JobDep, backend: BackendDep, row_id: Annotated[str, Path()]) -> RowView:
    """Show a row with its mask: runs of ids that are learnt and runs that are context, as text where the job's verifier
    still runs."""
    row = find_row(rows_of(backend.artifacts, record), row_id)
    segments = segments_of(row)
    source = _add_texts(record, backend.settings, segments)
    return RowView(
        **row.summary.model_dump(),
        input_ids=row.input_ids,
        loss_mask=row.loss_mask,
        last_id=row.last_id,
        segments=segments,
        text_source=source,
    )


def segments_of(row: StoredRow) -> list[Segment]:
    """The row's ids as runs of equal mask."""
    segments: list[Segment] = []
    start = 0
    for value, run in itertools.groupby(row.loss_mask):
        end = start + sum(1 for _ in run)
        segments.append(Segment(supervised=bool(value), start=start, token_ids=row.input_ids[start:end]))
        start = end
    return segments


def _add_texts(record: JobRecord, settings: Settings, segments: list[Segment]) -> str:
    """Fill in the texts where they can be had; says where they come from."""
    verifier = record.spec.verifier
    endpoint = verifier.endpoint or (None if verifier.managed else settings.verifier_url)
    if endpoint is None:
        return "no text: the worker starts this job's verifier itself, and stops it"
    if len(segments) > MAX_SEGMENTS_AS_TEXT:
        return f"no text: the mask changes more than {MAX_SEGMENTS_AS_TEXT} times"
    texts = texts_of(endpoint, verifier.model, [segment.token_ids for segment in segments])
    if texts is None:
        return "no text: the job's verifier does not answer, or serves another model now"
    for segment, text in zip(segments, texts, strict=True):
        segment.text = text
    return "the job's verifier"
