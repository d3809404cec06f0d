"""Vocabulary files as users bring them: good ones, and one bad one of each kind with what must be said of it."""

import io
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shared.artifact_store import file_sha256
from shared.schemas.job import now
from shared.schemas.registry import DatasetFile, DatasetRecord, files_digest

V = 512
CONTROL = (480, 481, 482, 483)
TRAP = Path("/tmp/eyrie-a-file-that-no-upload-may-make")


def arrays(tokens: Any = (*range(100, 150), *CONTROL)) -> tuple[np.ndarray, np.ndarray]:
    """`t2d` and `d2t` for some of the verifier's tokens."""
    ids = np.array(sorted(tokens))
    t2d = np.zeros(V, dtype=bool)
    t2d[ids] = True
    return t2d, ids - np.arange(len(ids))


def npy(array: Any) -> bytes:
    """An array as `.npy`, objects pickled."""
    target = io.BytesIO()
    np.save(target, np.asarray(array), allow_pickle=True)
    return target.getvalue()


def pt(value: Any, **options: Any) -> bytes:
    """Anything as `.pt`."""
    target = io.BytesIO()
    torch.save(value, target, **options)
    return target.getvalue()


class Trap:
    """Leaves a file where it is unpickled."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (TRAP,)


def deflated(content: bytes) -> bytes:
    """A zip archive with its members compressed."""
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as source, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as made:
        for entry in source.infolist():
            made.writestr(entry.filename, source.read(entry))
    return target.getvalue()


def header(shape: str, descr: str = "'<i8'") -> bytes:
    """An `.npy` file that is all header."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def good_files() -> dict[str, dict[str, bytes]]:
    """The ways in which the same vocabulary can be written."""
    t2d, d2t = arrays()
    tensors = {"t2d": torch.from_numpy(t2d), "d2t": torch.from_numpy(d2t)}
    return {
        "npy": {"t2d.npy": npy(t2d), "d2t.npy": npy(d2t)},
        "npy with the size in the name": {"t2d-54.npy": npy(t2d), "d2t-54.npy": npy(d2t)},
        "npy of small integers": {"t2d.npy": npy(t2d.astype(np.uint8)), "d2t.npy": npy(d2t.astype(np.int32))},
        "pt": {f"{name}.pt": pt(tensor) for name, tensor in tensors.items()},
        "pt with named tensors": {f"{name}.pt": pt({name: tensor}) for name, tensor in tensors.items()},
        "one pt": {"vocab_mapping.pt": pt(tensors)},
        "mixed": {"t2d.npy": npy(t2d), "d2t.pt": pt(tensors["d2t"])},
    }


def bad_npy() -> dict[str, tuple[bytes, bytes, str]]:
    """`t2d.npy`, `d2t.npy` and what is said, by kind."""
    t2d, d2t = arrays()
    ids = np.flatnonzero(t2d)
    good_t, good_d = npy(t2d), npy(d2t)
    negative, beyond, unsorted, twice, shifted = (d2t.copy() for _ in range(5))
    negative[0], beyond[-1] = -1, V
    unsorted[:2] = ids[1], ids[0] - 1
    twice[1] = d2t[0] - 1
    shifted += 1
    half = t2d.astype(np.int64) * 2
    return {
        "ids instead of offsets": (good_t, npy(ids), "token ids themselves"),
        "an offset below": (good_t, npy(negative), "token -1, which is outside"),
        "an offset beyond": (good_t, npy(beyond), "which is outside"),
        "out of order": (good_t, npy(unsorted), "must ascend"),
        "a token twice": (good_t, npy(twice), "does not come after"),
        "an unmarked token": (good_t, npy(shifted), "is not marked in t2d.npy"),
        "fewer entries": (good_t, npy(d2t[:-1]), "has 53 entries, but t2d.npy marks 54"),
        "no entries": (npy(np.zeros(V, dtype=bool)), npy(d2t[:0]), "0 entries"),
        "huge offsets": (good_t, npy(d2t + 2**62), "which is outside"),
        "unsigned offsets": (good_t, npy(d2t.astype(np.uint64) + 2**63), "which is outside"),
        "of another verifier": (npy(t2d[:-1]), good_d, "each of the verifier's 512 tokens"),
        "swapped": (good_d, good_t, "swapped"),
        "not 0 or 1": (npy(half), good_d, "entry 100 is 2"),
        "floats in t2d": (npy(t2d.astype(float)), good_d, "wanted are booleans"),
        "floats in d2t": (good_t, npy(d2t.astype(float)), "wanted are integers"),
        "two dimensions": (good_t, npy(d2t[None]), "wanted are integers"),
        "a scalar": (good_t, npy(7), "wanted are integers"),
        "text": (npy(t2d.astype(str)), good_d, "wanted are booleans"),
        "objects": (npy(t2d.astype(object)), good_d, "not a usable .npy file"),
        "a pickle with code": (npy([Trap()]), good_d, "not a usable .npy file"),
        "a bare pickle": (pickle.dumps(Trap()), good_d, "not a usable .npy file"),
        "a pickled dictionary": (good_t, npy({"d2t": d2t}), "not a usable .npy file"),
        "truncated": (good_t, good_d[:-8], "not a usable .npy file"),
        "only the magic": (good_t, good_d[:6], "not a usable .npy file"),
        "empty": (good_t, b"", "not a usable .npy file"),
        "a shape of petabytes": (good_t, header("(1125899906842624,)"), "not a usable .npy file"),
        "a shape that overflows": (good_t, header("(4294967296, 4294967296)"), "not a usable .npy file"),
        "a header of megabytes": (good_t, header(" " * 60000 + "(54,)"), "not a usable .npy file"),
        "a header that nests": (good_t, header("(" * 9000 + ")" * 9000), "not a usable .npy file"),
        "a header with code": (good_t, header("(__import__('os').getpid(),)"), "not a usable .npy file"),
        "records": (good_t, header("(1,)", "[('a', '<i8')]") + bytes(8), "wanted are integers"),
        "an archive": (good_t, pt(torch.zeros(2)), "not a usable .npy file"),
    }


def bad_pt() -> dict[str, tuple[bytes, str]]:
    """`d2t.pt` and what is said, by kind."""
    d2t = torch.from_numpy(arrays()[1])
    good = pt(d2t)
    return {
        "code": (pt({"d2t": d2t, "more": Trap()}), "more than tensors"),
        "a pickle": (pickle.dumps(Trap()), "weights only"),
        "an old format": (pt(d2t, _use_new_zipfile_serialization=False), "weights only"),
        "compressed": (deflated(good), "compressed"),
        "truncated": (good[: len(good) // 2], "weights only"),
        "no archive": (b"PK\x03\x04" + bytes(100), "weights only"),
        "a list": (pt([1, 2]), "holds list"),
        "floats": (pt(d2t.float()), "holds a tensor of type torch.float32"),
        "sparse": (pt(d2t.to_sparse()), "holds a tensor"),
        "without content": (pt(d2t.to("meta")), "holds a tensor"),
        "a view of one number": (pt(torch.zeros(1, dtype=torch.int64).expand(1 << 40)), "holds a tensor"),
        "two dimensions": (pt(d2t[None]), "shape (1, 54)"),
        "ids instead of offsets": (pt(d2t + torch.arange(len(d2t))), "token ids themselves"),
    }


def write_vocabulary(folder: Path, files: dict[str, bytes]) -> DatasetRecord:
    """A dataset's folder of kind `vocabulary`, as the gateway makes it."""
    (folder / "files").mkdir(parents=True)
    entries = []
    for name, content in sorted(files.items()):
        path = folder / "files" / name
        path.write_bytes(content)
        kind = "npy" if name.endswith("npy") else "pt"
        sha256 = file_sha256(path)
        entries.append(
            DatasetFile(path=f"files/{name}", name=name, format=kind, rows=0, bytes=len(content), sha256=sha256)
        )
    record = DatasetRecord(
        id=folder.name,
        kind="vocabulary",
        name="x",
        rows=0,
        bytes=sum(entry.bytes for entry in entries),
        sha256=files_digest(entries),
        files=entries,
        created_at=now(),
    )
    (folder / "dataset.json").write_text(record.model_dump_json())
    return record
