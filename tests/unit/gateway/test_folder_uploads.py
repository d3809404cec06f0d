"""Folders as tar streams: what they may hold, however the bytes come; everything else is refused by name."""

import gzip
import hashlib
import io
import itertools
import tarfile

import pyarrow as pa
import pytest

from services.gateway.checksums import Checksum
from services.gateway.folder_uploads import FolderUpload
from services.gateway.problems import Problem
from shared.errors import UserError
from shared.settings import Settings
from tests.support.ready_folders import archive, content_of, edited, make_rows, with_entry, write_folder
from tests.support.vocabularies import good_files

pytestmark = pytest.mark.data
ROWS = make_rows(5)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return content_of(write_folder(tmp_path_factory.mktemp("rows") / "x", ROWS, shards=2))


@pytest.fixture
def receive(tmp_path):
    numbers = itertools.count()

    def take(content, piece=1 << 16, sha256=None, **settings):
        upload = FolderUpload(tmp_path / f"staged-{next(numbers)}", Settings(**settings))
        try:
            for start in range(0, len(content), piece):
                upload.take(content[start : start + piece])
            kind, rows = upload.finish(Checksum(sha256, "query", "/sha256") if sha256 else None)
        finally:
            upload.close()
        return upload, kind, rows

    return take


def outer(files):
    return archive(files, format=tarfile.USTAR_FORMAT)


def with_headers(files):
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as made:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(content), 1700000000.25
            made.addfile(entry, io.BytesIO(content))
    return target.getvalue()


GOOD = {
    "ustar": outer,
    "gnu": lambda files: archive(files, format=tarfile.GNU_FORMAT),
    "pax": lambda files: archive(files, format=tarfile.PAX_FORMAT),
    "pax with headers for each": with_headers,
    "gzip": lambda files: gzip.compress(outer(files)),
    "gzip in two members": lambda files: gzip.compress(outer(files)[:700]) + gzip.compress(outer(files)[700:]),
    "gzip with padding": lambda files: gzip.compress(outer(files)) + bytes(1024),
    "the folder itself": lambda files: archive(files, top="my-rows/"),
    "with a leading dot": lambda files: archive(files, top="./"),
}


@pytest.mark.parametrize("kind", GOOD)
def test_a_folder_arrives_whole_however_it_is_packed(kind, files, receive):
    upload, what, rows = receive(GOOD[kind](files))
    assert (what, rows) == ("rows", 5)
    assert content_of(upload.target / "files") == files
    assert {name: file.sha256 for name, file in upload.files.items()} == {
        name: hashlib.sha256(content).hexdigest() for name, content in files.items()
    }
    assert sum(file.rows for file in upload.files.values()) == 5


@pytest.mark.parametrize("piece", [1, 511, 513])
def test_how_the_bytes_are_cut_on_their_way_does_not_matter(piece, receive):
    files = good_files()["npy"]
    for content in (outer(files), gzip.compress(outer(files))):
        upload, what, _ = receive(content, piece)
        assert what == "vocabulary"
        assert content_of(upload.target / "files") == files


def test_a_folder_made_by_tar_itself_is_taken(tmp_path, receive):
    folder = write_folder(tmp_path / "my rows", ROWS, beside=True)
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as made:
        made.add(folder, "my rows")
    assert receive(target.getvalue())[1:] == ("rows", 5)


@pytest.mark.parametrize("kind", good_files())
def test_vocabularies_are_recognised(kind, receive):
    assert receive(outer(good_files()[kind]))[1] == "vocabulary"


def kind_of(value):
    return lambda entry: setattr(entry, "type", value)


def named(name):
    return lambda entry: setattr(entry, "name", name)


def pax(**headers):
    return lambda entry: setattr(entry, "pax_headers", {key.replace("_", "."): value for key, value in headers.items()})


HOSTILE = {
    "a symbolic link": (kind_of(tarfile.SYMTYPE), b"", "symbolic link"),
    "a hard link": (kind_of(tarfile.LNKTYPE), b"", "hard link"),
    "a device": (kind_of(tarfile.CHRTYPE), b"", "character device"),
    "a block device": (kind_of(tarfile.BLKTYPE), b"", "block device"),
    "a FIFO": (kind_of(tarfile.FIFOTYPE), b"", "FIFO"),
    "an unknown kind": (kind_of(b"Z"), b"", "unknown kind"),
    "contiguous": (kind_of(tarfile.CONTTYPE), b"x", "unknown kind"),
    "another folder": (lambda e: (named("checkpoints/9")(e), kind_of(tarfile.DIRTYPE)(e)), b"", "checkpoints"),
    "absolute": (named("/etc/passwd"), b"x", "does not stay"),
    "a way out": (named("../data-1.arrow"), b"x", "does not stay"),
    "a way out and in": (named("hidden_states/../hs_0.safetensors"), b"x", "does not stay"),
    "a way out below": (named("x/../../../y"), b"x", "does not stay"),
    "an empty part": (named("hidden_states//hs_0.safetensors"), b"x", "does not stay"),
    "a backslash": (named("hidden_states\\hs_0.safetensors"), b"x", "does not stay"),
    "a line break": (named("hs_0.safetensors\n"), b"x", "does not stay"),
    "a path in a pax header": (pax(path="/etc/passwd"), b"x", "does not stay"),
    "a name that is not known": (named("model.bin"), b"x", "does not belong here"),
    "a pickle": (named("optimizer.pkl"), b"x", "does not belong here"),
    "a hidden file": (named("._state.json"), b"x", "does not belong here"),
    "states of no number": (named("hidden_states/hs_x.safetensors"), b"x", "does not belong here"),
    "states of a negative row": (named("hidden_states/hs_-1.safetensors"), b"x", "does not belong here"),
    "states with zeros before": (named("hidden_states/hs_01.safetensors"), b"x", "does not belong here"),
    "states deeper": (named("hidden_states/x/hs_1.safetensors"), b"x", "does not belong here"),
    "a name in capitals": (named("STATE.JSON"), b"x", "does not belong here"),
    "a very long name": (named("a" * 300), b"x", "does not belong here"),
    "an empty file": (named("token_freq.pt"), b"", "is empty"),
    "states that are none": (named("hs_0.safetensors"), b"x" * 100, "no safetensors file"),
    "states that are cut": (named("hs_0.safetensors"), (1 << 40).to_bytes(8, "little") + b"{}", "no safetensors file"),
    "a bare pickle for .pt": (named("token_freq.pt"), b"\x80\x04K\x01.", "not of the format pt"),
    "text for .npy": (named("t2d.npy"), b"hello", "not of the format npy"),
    "text for .arrow": (named("data-0.arrow"), b"hello", "not of the format arrow"),
    "a document too large": (named("meta.json"), b" " * (17 << 20), "at most"),
    "a vocabulary too large": (named("d2t.npy"), b"\x93NUMPY" + bytes(65 << 20), "at most"),
    "a sparse file of pax": (pax(GNU_sparse_major="1"), b"x", "sparse"),
    "a pax size that is no number": (pax(size="many"), b"x", "damaged extended header"),
    "a pax size below zero": (pax(size="-512"), b"x", "only regular files"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_an_entry_that_does_not_belong_is_refused_by_name_and_nothing_leaves_the_folder(kind, files, receive, tmp_path):
    change, content, message = HOSTILE[kind]
    with pytest.raises(UserError) as caught:
        receive(with_entry(files, change, content))
    assert message in str(caught.value)
    assert {path.name for path in tmp_path.iterdir()} <= {"staged-0"}


def test_a_file_that_is_there_twice_is_refused(files, receive):
    with pytest.raises(UserError, match="is there twice"):
        receive(with_entry(files, lambda entry: setattr(entry, "name", "state.json"), files["state.json"]))


def test_folders_in_folders_are_refused(files, receive):
    with pytest.raises(UserError, match="does not belong here"):
        receive(archive(files, top="a/b/"))


def test_two_folders_in_one_archive_are_refused(files, receive):
    both = {f"a/{name}": content for name, content in files.items()} | {"b/state.json": files["state.json"]}
    with pytest.raises(UserError, match="is not in a"):
        receive(archive(both))


BROKEN = {
    "no archive": (lambda content: b"hello, this is no archive" * 100, "not a tar archive"),
    "empty": (lambda content: b"", "ends too early"),
    "all zeros": (lambda content: bytes(2048), "no t2d"),
    "a zip archive": (lambda content: b"PK\x03\x04" + bytes(2000), "not a tar archive"),
    "cut in a header": (lambda content: content[:300], "ends too early"),
    "cut in a file": (lambda content: content[:900], "ends too early"),
    "cut between entries": (lambda content: content[: content.index(b"ustar", 512) - 257], "ends too early"),
    "without its end": (lambda content: content[: (len(content.rstrip(b"\0")) + 511) // 512 * 512], "ends too early"),
    "a flipped bit in a header": (lambda content: bytes([content[0] ^ 1]) + content[1:], "not a tar archive"),
    "a second archive behind it": (lambda content: content + content, "follows the archive's end"),
    "gzip that is cut": (lambda content: gzip.compress(content)[:-20], "ends too early"),
    "gzip that is damaged": (lambda content: gzip.compress(content)[:-8] + bytes(8), "damaged"),
    "gzip in gzip": (lambda content: gzip.compress(gzip.compress(content)), "not a tar archive"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_archive_is_refused(kind, files, receive):
    change, message = BROKEN[kind]
    with pytest.raises(UserError) as caught:
        receive(change(outer(files)))
    assert message in str(caught.value)


def test_a_small_archive_that_grows_beyond_the_limit_is_refused_while_it_grows(receive):
    bomb = gzip.compress(archive({"data-0.arrow": b"\xff" * 4 + bytes(50 << 20)}))
    with pytest.raises(Problem) as caught:
        receive(bomb, max_upload_bytes=10 << 20)
    assert caught.value.status == 413


def test_an_archive_that_is_not_the_announced_one_is_refused(files, receive):
    with pytest.raises(Problem) as caught:
        receive(outer(files), sha256="0" * 64)
    assert caught.value.status == 422
    assert receive(outer(files), sha256=hashlib.sha256(outer(files)).hexdigest())[1] == "rows"


def without(files, *names):
    return {name: content for name, content in files.items() if name not in names}


def arrow(**columns):
    target = io.BytesIO()
    table = pa.table(columns)
    with pa.ipc.new_stream(target, table.schema) as writer:
        writer.write_table(table)
    return target.getvalue()


def one_shard(files, content):
    shards = [name for name in files if name.endswith(".arrow")]
    return edited({**without(files, *shards), "a.arrow": content}, "state.json", _data_files=[{"filename": "a.arrow"}])


UNWHOLE = {
    "no state": (lambda files: without(files, "state.json"), "no state.json"),
    "no info": (lambda files: without(files, "dataset_info.json"), "no dataset_info.json"),
    "no rows": (lambda files: without(files, *(n for n in files if n.endswith(".arrow"))), "no t2d"),
    "a shard less": (lambda files: without(files, "data-00001-of-00002.arrow"), "names the data files"),
    "a shard elsewhere": (
        lambda files: edited(files, "state.json", _data_files=[{"filename": "../../../etc/passwd"}]),
        "names the data files",
    ),
    "a state that is no list": (lambda files: edited(files, "state.json", _data_files=7), "does not name"),
    "a state that is no JSON": (lambda files: {**files, "state.json": b"{"}, "is not JSON"),
    "a state that nests": (lambda files: {**files, "state.json": b"[" * 100000}, "is not JSON"),
    "an index of its own": (
        lambda files: edited(files, "state.json", _indices_data_files=[{"filename": "x.arrow"}]),
        "flatten_indices",
    ),
    "states of a row that is not there": (
        lambda files: {**files, "hidden_states/hs_5.safetensors": files["hidden_states/hs_0.safetensors"]},
        "belongs to no row",
    ),
    "states of a row twice": (
        lambda files: {**files, "hs_0.safetensors": files["hidden_states/hs_0.safetensors"]},
        "two files of states",
    ),
    "a shard that is cut": (
        lambda files: {**files, "data-00000-of-00002.arrow": files["data-00000-of-00002.arrow"][:-300]},
        "data-00000-of-00002.arrow",
    ),
    "a shard that is noise": (
        lambda files: {**files, "data-00000-of-00002.arrow": b"\xff" * 4 + b"noise" * 100},
        "not a readable Arrow file",
    ),
    "no mask": (lambda files: one_shard(files, arrow(input_ids=[[1]])), "no column loss_mask"),
    "ids of text": (lambda files: one_shard(files, arrow(input_ids=[["a"]], loss_mask=[[1]])), "column input_ids"),
    "ids that are no lists": (lambda files: one_shard(files, arrow(input_ids=[1], loss_mask=[[1]])), "input_ids"),
    "no row at all": (
        lambda files: one_shard(
            without(files, *(n for n in files if n.startswith("hidden"))),
            arrow(input_ids=pa.array([], pa.list_(pa.int64())), loss_mask=pa.array([], pa.list_(pa.int64()))),
        ),
        "no rows",
    ),
    "a vocabulary of rows": (lambda files: {**good_files()["npy"], "meta.json": b"{}"}, "data-*.arrow"),
}


@pytest.mark.parametrize("kind", UNWHOLE)
def test_a_folder_that_is_not_whole_is_refused(kind, files, receive):
    change, message = UNWHOLE[kind]
    with pytest.raises(UserError) as caught:
        receive(outer(change(files)))
    assert message in str(caught.value)
