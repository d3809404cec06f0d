"""One inspection: reads a dataset as the prepare stage reads it, then measures and shows what is kept.

In: a request and the dataset's folder. Out: an `Inspection`. Rows are judged, found equal, taken by weight and held out
by the code of the prepare stage, so the counts are those that a job would report.
"""

import asyncio
import time
from contextlib import nullcontext
from pathlib import Path

from services.gateway.inspection.documents import (
    DataPart,
    Inspection,
    InspectionProgress,
    InspectionRequest,
    SampleView,
)
from services.gateway.inspection.rendering import Renderer
from services.gateway.inspection.request import request_key
from services.gateway.inspection.sampling import RowSampler
from services.gateway.inspection.tally import Lengths, RowCounts
from services.gateway.inspection.verifier import TokenizerClient
from services.gateway.inspection.vocabulary import inspect_vocabulary
from shared.data.control_tokens import added_tokens, end_token_ids
from shared.data.dataset_record import read_record
from shared.data.files import read_rows
from shared.data.mixture import MIN_CONVERSATIONS, choose_rows, chosen, open_index
from shared.data.refusal import RowRejected
from shared.data.row_index import RowIndex
from shared.data.row_reader import RowReader
from shared.errors import UserError
from shared.schemas.job import now
from shared.schemas.prepared import Prepared
from shared.verifier_config import read_verifier_config

SAMPLES_SHOWN = 3
UNKNOWN_VERIFIER = (
    "this gateway does not have the verifier's files: rows with its control tokens, or with ids that it does not have, "
    "are not found here; a job's prepare stage rejects them"
)
ALL_REFUSED = "none of the rendered rows could be used, `refused` says why: a job's generate stage would refuse them"
LATER_PROMPTS = (
    "prompts of later turns are shown and measured with the dataset's own answers, in the place of those that the "
    "verifier has yet to write"
)


class DryRun:
    """Runs one request.

    Args:
        dataset: the dataset's folder.
        work: a folder for what does not fit into memory.

    Attributes:
        progress: may be read by another thread meanwhile.
    """

    def __init__(self, request: InspectionRequest, dataset: Path, work: Path) -> None:
        self.request, self.dataset, self.work = request, dataset, work
        self.data, self.record = request.spec.data, read_record(dataset)
        self.verifier = Path(request.verifier_folder) if request.verifier_folder else None
        self.progress = InspectionProgress(phase="reading")
        self.counts = RowCounts()
        self.sampler = RowSampler(request.sample, self.data.seed)
        self.used: set[tuple[str, int]] = set()
        self.ready = Lengths(self.data.max_seq_len)  # of all rows that came as token ids
        self.warnings = [] if self.verifier else [UNKNOWN_VERIFIER]

    def inspect(self) -> Inspection:
        """Read, choose, render.

        Raises:
            UserError: a file is damaged.
            ArtifactStoreError: a file is gone.
        """
        started = time.monotonic()
        found = Inspection(
            key=request_key(self.request),
            dataset=self.record.id,
            kind=self.record.kind,
            data=self.data.model_dump(mode="json", include=set(DataPart.model_fields)),
            verifier=self.request.spec.verifier.model,
            created_at=now(),
        )
        if self.record.kind == "vocabulary":
            found.vocabulary, found.problem = inspect_vocabulary(self.dataset, self.record, self.verifier)
        else:
            self._inspect_rows(found)
        found.warnings = self.warnings
        found.seconds = round(time.monotonic() - started, 3)
        return found

    def _inspect_rows(self, found: Inspection) -> None:
        with open_index(self.work / "rows.sqlite", self.record, self.data) as index:
            self._read(index)
            found.problem = self._select(index)
            self._count(index, split=found.problem is None)
            rows = self.sampler.chosen(self.used, self.counts.kept)
        self.progress.phase = "rendering"
        lengths, samples, trouble = asyncio.run(self._render(rows))
        found.rows, found.kept, found.val = self.counts.rows.total(), self.counts.kept.total(), self.counts.held_out
        found.train = found.kept - found.val
        found.sources, found.mended = self.counts.sources(), dict(sorted(self.counts.mended.items()))
        found.rejected, found.refused = self.counts.rejects.by_reason(), lengths.refusals.by_reason()
        found.tokens, found.samples = lengths.summary(found.kept), samples or None
        found.why_not_rendered, found.provisional = trouble or self.request.why_not_rendered, trouble is not None
        if found.tokens and not found.samples and not found.why_not_rendered:
            found.why_not_rendered = ALL_REFUSED

    def _read(self, index: RowIndex) -> None:
        """Judge every row."""
        tokens = added_tokens(self.verifier).values() if self.verifier else ()
        vocab_size = read_verifier_config(self.verifier).vocab_size if self.verifier else None
        reader = RowReader(self.data, tokens, vocab_size)
        for number, raw in enumerate(read_rows(self.dataset, self.record), 1):
            self.counts.rows[raw.source] += 1
            try:
                row = reader.read(raw)
                index.add(row)
            except RowRejected as refusal:
                index.reject(raw.source, raw.line, refusal)
            else:
                self.counts.mended.update(row.notes)
                self.sampler.add(row)
                if "input_ids" in row.content:
                    self.ready.add_ready(row)
            self.progress.rows = number
            self.progress.share = number / max(number, self.record.rows)

    def _select(self, index: RowIndex) -> str | None:
        """Take and hold out rows as a job would; return why it could not."""
        usable = index.taken().total()
        if usable < MIN_CONVERSATIONS:
            return f"{usable} usable conversations are too few: a job needs {MIN_CONVERSATIONS} different ones at least"
        try:
            choose_rows(index, self.dataset, self.record, self.data)
        except UserError as error:
            return str(error)
        return None

    def _count(self, index: RowIndex, *, split: bool) -> None:
        """Count what is kept and what is not, and find out which of the candidates are kept."""
        candidates = self.sampler.candidates()
        if split:
            for source, line, _, taken, held_out in chosen(index):
                if taken:
                    self.counts.kept[source] += 1
                    self.counts.held_out += held_out
                    if (source, line) in candidates:
                        self.used.add((source, line))
        else:
            self.counts.kept.update({index.sources[number]: rows for number, rows in index.taken().items()})
            self.used = candidates
        for reject in index.rejects():
            self.counts.rejects.add(reject.source, reject.line, RowRejected(reject.reason, reject.message))

    async def _render(self, rows: list[Prepared]) -> tuple[Lengths, list[SampleView], str | None]:
        """Measure the chosen rows and show some; also why not all could be."""
        served = self.request.served
        async with TokenizerClient(served) if served else nullcontext() as client:
            ends = end_token_ids(self.verifier) if self.verifier else set[int]()
            renderer = Renderer(client, self.data, ends, self.progress)
            done = await renderer.render(rows)
            shown = [one for one in done if one.turns][:SAMPLES_SHOWN]
            samples = [await renderer.show(one) for one in shown]
        lengths = Lengths(self.data.max_seq_len)
        for one in sorted(done, key=lambda one: (one.row.source, one.row.line)):
            lengths.add(one)
        if self.data.generate and any(len(one.lengths) > 1 for one in done):
            self.warnings.append(LATER_PROMPTS)
        all_ready = self.ready.conversations == self.counts.kept.total()
        return (self.ready if all_ready else lengths), samples, renderer.problem
