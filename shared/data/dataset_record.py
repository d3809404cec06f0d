"""The record in a dataset's folder."""

from pathlib import Path

from shared.schemas.registry import ONLY_SOURCE, DatasetRecord


def read_record(folder: Path) -> DatasetRecord:
    """The record of a dataset's folder."""
    return DatasetRecord.model_validate_json((folder / "dataset.json").read_bytes())


def source_names(record: DatasetRecord) -> list[str]:
    """Names of the dataset's sources, in order; a folder of ready-made rows is one."""
    return [ONLY_SOURCE] if record.kind == "rows" else [file.name for file in record.files]
