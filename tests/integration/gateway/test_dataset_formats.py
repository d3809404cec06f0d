"""Uploads of every form over HTTP, and datasets composed of several: what is taken, what is refused, what stays."""

import gzip
import io
import json
import subprocess
import sys
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shared.data.dataset_record import read_record
from shared.data.files import read_rows
from tests.support.dataset_files import spellings
from tests.support.gateway_process import ROOT, GatewayProcess

pytestmark = pytest.mark.data

ROWS = [{"prompt": f"question {n}"} for n in range(7)]
JSONL = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)
BOMB = gzip.compress(gzip.compress(b'{"prompt": "a"}\n' * 2_000_000))  # 32 MB


def parquet_of(**columns: object) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file, compression="zstd")
    return file.getvalue()


BAD = {
    "gzip of nothing": (gzip.compress(b""), "no rows"),
    "gzip cut": (gzip.compress(JSONL)[:-4], "was cut"),
    "gzip damaged": (gzip.compress(JSONL)[:-8] + bytes(8), "damaged"),
    "gzip with a tail": (gzip.compress(JSONL) + b"tail", "damaged after the end"),
    "gzip with a bad line": (gzip.compress(JSONL + b"{\n"), "line 8: not JSON"),
    "gzip of one endless line": (gzip.compress(b"x" * 50_000_000), "line 1: longer than 4096 bytes"),
    "gzip of endless rows": (gzip.decompress(BOMB), "unpacks to more than 1000000 bytes"),
    "gzip twice": (gzip.compress(gzip.compress(JSONL)), "another packed or Parquet file"),
    "gzip of Parquet": (gzip.compress(parquet_of(prompt=["a"])), "another packed or Parquet file"),
    "Parquet cut": (parquet_of(prompt=["a"])[:-3], "Parquet file is damaged"),
    "Parquet without rows": (parquet_of(prompt=pa.array([], pa.string())), "no rows"),
    "Parquet without our columns": (parquet_of(text=["a"]), "no row of the file has a field that is read"),
    "Parquet with nulls alone": (parquet_of(prompt=pa.array([None], pa.string())), "no row of the file has a field"),
    "Parquet with a long row": (parquet_of(prompt=["a", "b" * 5000]), "row 2: longer than 4096 bytes"),
    "no known field": (b'{"text": "a"}\n{"prompt": null}\n', "prompt (text), messages"),
    "a mask alone": (b'{"loss_mask": [0, 1]}\n', "input_ids with loss_mask"),
    "Zstandard": (b"\x28\xb5\x2f\xfd" + bytes(20), "Zstandard"),
    "zip": (b"PK\x03\x04" + bytes(20), "zip"),
}


def files_of(gateway: GatewayProcess) -> set[Path]:
    return {path for path in gateway.store.rglob("*") if path.is_file()}


def rows_of(gateway: GatewayProcess, dataset: str) -> list[tuple[str, int]]:
    folder = gateway.store / "datasets" / dataset
    return [(row.source, row.line) for row in read_rows(folder, read_record(folder))]


def uploaded(http: httpx.Client, rows: list[dict], name: str = "rows") -> str:
    content = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    response = http.post("/v1/datasets", params={"name": name}, content=content)
    assert response.status_code == 201, response.text
    return response.json()["id"]


def test_every_spelling_is_taken_by_its_content_whatever_its_name(
    gateway: GatewayProcess, http: httpx.Client, tmp_path: Path
) -> None:
    for name, path in spellings(tmp_path, ROWS).items():
        response = http.post("/v1/datasets", files={"file": ("rows.txt", path.read_bytes())})
        assert response.status_code == 201, (name, response.text)
        (file,) = response.json()["files"]
        assert response.json()["rows"] == file["rows"] == len(ROWS), name
        assert file["format"] == ("parquet" if "parquet" in name else "jsonl")
        assert file["compression"] == ("gzip" if "gzip" in name and "parquet" not in name else "none")
        assert rows_of(gateway, response.json()["id"]) == [("data", n) for n in range(1, 8)]


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_is_refused_with_a_sentence_and_nothing_stays(
    kind: str, gateway: GatewayProcess, http: httpx.Client
) -> None:
    content, message = BAD[kind]
    before = files_of(gateway)
    response = http.post("/v1/datasets", content=content)
    assert (response.status_code, response.headers["content-type"]) == (422, "application/problem+json")
    assert message in response.json()["detail"]
    assert files_of(gateway) == before


def test_one_name_twice_overwrites_nothing(gateway: GatewayProcess, http: httpx.Client) -> None:
    first, second = uploaded(http, ROWS[:3], "same"), uploaded(http, ROWS[:5], "same")
    assert (len(rows_of(gateway, first)), len(rows_of(gateway, second))) == (3, 5)


def test_a_few_rows_of_no_known_form_are_left_to_the_job(http: httpx.Client) -> None:
    assert http.post("/v1/datasets", content=b'{"text": "a"}\n' + JSONL).json()["rows"] == 8


def test_a_composed_dataset_stands_for_itself(gateway: GatewayProcess, http: httpx.Client) -> None:
    math, code = uploaded(http, ROWS[:4], "math"), uploaded(http, ROWS[4:], "code")
    sources = [{"dataset": math, "name": "sums", "weight": 2.0}, {"dataset": code}]
    response = http.post("/v1/datasets", json={"name": "mixed", "sources": sources})
    assert response.status_code == 201, response.text
    record = response.json()
    assert [(file["name"], file["weight"], file["rows"]) for file in record["files"]] == [
        ("sums", 2.0, 4),
        ("code", 1.0, 3),
    ]
    assert (record["name"], record["rows"]) == ("mixed", 7)
    assert http.get(response.headers["location"]).json() == record
    for dataset in (math, code):
        for path in (gateway.store / "datasets" / dataset).rglob("*.jsonl"):
            path.unlink()
    assert rows_of(gateway, record["id"]) == [("sums", n) for n in range(1, 5)] + [("code", n) for n in range(1, 4)]


def test_the_hash_of_a_composition_follows_names_weights_and_content(http: httpx.Client) -> None:
    math, code = uploaded(http, ROWS[:4]), uploaded(http, ROWS[4:])

    def digest(*sources: dict) -> str:
        return http.post("/v1/datasets", json={"sources": list(sources)}).json()["sha256"]

    one, other = {"dataset": math, "name": "m"}, {"dataset": code, "name": "c"}
    assert digest(one, other) == digest(one, other)
    different = [digest(one, other), digest(other, one), digest(one | {"weight": 2.0}, other), digest(one)]
    assert len(set(different)) == 4


BAD_COMPOSITIONS = {
    "none": ({"sources": []}, "/sources"),
    "not there": ({"sources": [{"dataset": "ds_00000000000000000000"}]}, "/sources/0/dataset"),
    "no id": ({"sources": [{"dataset": "../x"}]}, "/sources/0/dataset"),
    "path": ({"sources": [{"dataset": "ds_/../x"}]}, "/sources/0/dataset"),
    "one name twice": (
        {"sources": [{"dataset": "DS", "name": "a"}, {"dataset": "DS", "name": "a"}]},
        "/sources/1/name",
    ),
    "bad name": ({"sources": [{"dataset": "DS", "name": "../x"}]}, "/sources/0/name"),
    "no weight": ({"sources": [{"dataset": "DS", "weight": 0}]}, "/sources/0/weight"),
    "negative weight": ({"sources": [{"dataset": "DS", "weight": -1}]}, "/sources/0/weight"),
    "text as weight": ({"sources": [{"dataset": "DS", "weight": "much"}]}, "/sources/0/weight"),
    "unknown field": ({"sources": [{"dataset": "DS", "share": 1}]}, "/sources/0/share"),
    "too many": ({"sources": [{"dataset": "DS", "name": f"s{n}"} for n in range(65)]}, "/sources"),
    "long name": ({"name": "a" * 10_000, "sources": [{"dataset": "DS"}]}, "/name"),
}


@pytest.mark.parametrize("kind", BAD_COMPOSITIONS)
def test_a_bad_composition_is_refused_at_its_field_and_nothing_stays(
    kind: str, gateway: GatewayProcess, http: httpx.Client
) -> None:
    document, pointer = BAD_COMPOSITIONS[kind]
    text = json.dumps(document).replace('"DS"', f'"{uploaded(http, ROWS)}"')
    before = files_of(gateway)
    response = http.post("/v1/datasets", content=text, headers={"Content-Type": "application/json; charset=utf-8"})
    assert response.status_code == 422, response.text
    assert response.json()["errors"][0]["pointer"] == pointer
    assert files_of(gateway) == before


def test_a_composition_of_a_composition_is_refused(http: httpx.Client) -> None:
    sources = [{"dataset": uploaded(http, ROWS), "name": name} for name in ("a", "b")]
    composed = http.post("/v1/datasets", json={"sources": sources}).json()["id"]
    response = http.post("/v1/datasets", json={"sources": [{"dataset": composed}]})
    assert response.status_code == 422
    assert "composed of 2 files" in response.json()["detail"]


@pytest.mark.parametrize("content", [JSONL, b'{"prompt": "a"}', b"", b'{"sources": [{"dataset": NaN}]}', b"[1]"])
def test_rows_sent_as_a_json_document_are_refused_with_the_right_type(content: bytes, http: httpx.Client) -> None:
    response = http.post("/v1/datasets", content=content, headers={"Content-Type": "application/json"})
    assert response.status_code in (400, 422)
    assert "application/x-ndjson" in response.json()["detail"]


def eyrie(url: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "services.cli.main", "datasets", *arguments, "--url", url]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert "Traceback" not in result.stderr
    return result


def test_several_files_become_one_dataset_on_the_command_line(gateway: GatewayProcess, tmp_path: Path) -> None:
    files = spellings(tmp_path / "files", ROWS)
    math, code = tmp_path / "math.jsonl.gz", tmp_path / "code.parquet"
    math.write_bytes(files["gzip"].read_bytes())
    code.write_bytes(files["parquet"].read_bytes())
    result = eyrie(gateway.url, "upload", str(math), str(code), "--weight", "math=2", "--name", "mixed", "-o", "json")
    assert result.returncode == 0, result.stderr
    record = json.loads(result.stdout)
    assert [(file["name"], file["weight"]) for file in record["files"]] == [("math", 2.0), ("code", 1.0)]
    single = json.loads(eyrie(gateway.url, "upload", str(code), "-o", "json").stdout)
    composed = eyrie(gateway.url, "compose", f"a={single['id']}", f"b={single['id']}", "-o", "json")
    assert [file["name"] for file in json.loads(composed.stdout)["files"]] == ["a", "b"]


@pytest.mark.parametrize(
    ("weight", "message"),
    [("math", "NAME=SHARE"), ("math=0", "above 0"), ("math=nan", "above 0"), ("x=1", "no source 'x'")],
)
def test_a_bad_weight_on_the_command_line_is_bad_usage(
    weight: str, message: str, gateway: GatewayProcess, tmp_path: Path
) -> None:
    (tmp_path / "math.jsonl").write_bytes(JSONL)
    result = eyrie(gateway.url, "upload", str(tmp_path / "math.jsonl"), "--weight", weight)
    assert result.returncode == 2
    assert message in result.stderr
