"""Commands that use Spark: one chain and the demo, through a Connect server."""

import csv
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from siltstone.spark.connect_server import ConnectServer
from tests.e2e.silt import Result, contents, process

NAME = "crm.sales.people"

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    rows = {"id": [f"p{n}" for n in range(100)], "n": list(range(100))}
    pq.write_table(pa.table(rows), folder / "good.parquet")
    (folder / "cut.parquet").write_bytes((folder / "good.parquet").read_bytes()[:-50])
    (folder / "bad.csv").write_text("id,n\np200,200\np201,two\n")
    (folder / "more.csv").write_text("id,n\np100,100\np0,-1\n")
    (folder / "mixed.ndjson").write_text('{"id": "p0", "n": -1}\n{"id": "p300", "n": "x"}\n')
    return folder


def test_commands_load_query_change_fold_and_purge(connect_server: ConnectServer, lake_path: Path, sources: Path):
    def silt(*call: object) -> Result:
        return process("--lake", lake_path, "--json", *call, SILT_SPARK_REMOTE=connect_server.address)

    assert silt("create", NAME, "--key", "id", "--schema", "id STRING, n BIGINT").code == 0
    loaded = silt("ingest", NAME, sources / "good.parquet").data
    assert (loaded["rows"], loaded["first_load"]) == (100, True)
    before = contents(lake_path)
    refused = silt("ingest", NAME, sources / "cut.parquet")
    assert (refused.code, refused.error["kind"]) == (2, "invalid_request"), refused
    assert "cut.parquet" in refused.error["message"]
    refused = silt("ingest", NAME, sources / "bad.csv")
    assert "bad.csv" in refused.error["message"]
    assert "p201" in refused.error["message"]
    assert ": :" not in refused.error["message"]
    assert contents(lake_path) == before
    assert silt("ingest", NAME, sources / "good.parquet").data["files_skipped"] == 1
    assert contents(lake_path) == before
    assert silt("ingest", NAME, sources / "more.csv").data["first_load"] is False
    put_aside = silt("ingest", NAME, sources / "mixed.ndjson", "--quarantine", lake_path.parent / "bad").data
    assert (put_aside["rows"], put_aside["rows_quarantined"]) == (1, 1)
    assert Path(put_aside["quarantine"]).is_relative_to(lake_path.parent / "bad")
    silt("upsert", NAME, "--row", '{"id": "p1", "n": 1000}')
    silt("tombstone", NAME, "p2", "p3", "--actor", "dpo", "--reason", "request 17")
    counts = f"SELECT (SELECT count(*) FROM {NAME}), (SELECT count(*) FROM crm.sales.__raw__people)"
    answer = silt("sql", counts).data
    assert (answer["rows"], answer["engine"], answer["truncated"]) == ([[99, 101]], "spark", False)
    estimate = silt("compact", NAME, "--dry-run").data
    assert (estimate["batches"], estimate["change_rows"], estimate["files_touched_at_most"]) == (4, 6, 1)
    dry = silt("tombstone", NAME, "--where", "n = 1000", "--dry-run").data
    assert dry == {"dataset": NAME, "rows": 1, "dry_run": True}
    out = lake_path.parent / "out"
    exported = silt("export", NAME, out, "--format", "csv", "--files", "1", "--at", "1").data
    assert (exported["rows"], exported["files"], exported["sequence"], exported["format"]) == (101, 1, 1, "csv")
    [file] = out.glob("*.csv")
    assert len(file.read_text().splitlines()) == 102
    assert silt("export", NAME, out).error["kind"] == "invalid_request"
    summary = silt("export", NAME, out, "--format", "delta", "--overwrite", "--yes").data
    assert (summary["rows"], summary["sequence"]) == (99, 4)
    assert DeltaTable(out).to_pyarrow_table().num_rows == 99
    report = silt("compact", NAME, "--purge", "--yes").data
    assert (report["base_rows"], report["final_rows"], report["rows_dropped_by_tombstones"]) == (100, 99, 2)
    assert report["change_rows"] == 6
    shown = process(
        "--lake",
        lake_path,
        "sql",
        f"SELECT id, n FROM {NAME} WHERE n > 98 ORDER BY n",
        "--csv",
        "--max-rows",
        "2",
        SILT_SPARK_REMOTE=connect_server.address,
    )
    assert list(csv.reader(io.StringIO(shown.out))) == [["id", "n"], ["p99", "99"], ["p100", "100"]]
    assert "--max-rows" in shown.err
    refused = silt("sql", f"SELECT nope FROM {NAME}")
    assert (refused.code, refused.error["kind"]) == (2, "invalid_request")
    assert [row["n"] for row in silt("head", NAME, "-n", "2").data] == [-1, 1000]


@pytest.mark.parametrize("joins", [True, pytest.param(False, marks=pytest.mark.deep)], ids=["joins", "own JVM"])
def test_every_claim_of_the_demo_holds(tmp_path: Path, connect_server: ConnectServer, joins: bool):  # noqa: FBT001
    remote = {"SILT_SPARK_REMOTE": connect_server.address} if joins else {}
    done = process("demo", "--candidates", "1000", "--calls", "2000", "--keep", tmp_path / "demo", "--json", **remote)
    assert done.code == 0, done
    report = done.data
    assert report["ok"] is True
    assert all(claim["holds"] for claim in report["claims"])
    assert {"spark", "hot", "delta-rs", "pyarrow"} == {step["engine"] for step in report["steps"]}
    assert (
        json.loads(process("--lake", report["lake"], "--json", "status", "crm.sales.candidates").out)["rows_in_base"]
        == 997
    )
    again = process("demo", "--keep", tmp_path / "demo", "--json")
    assert (again.code, again.error["kind"]) == (2, "invalid_request")


def test_a_demo_that_is_too_small_is_refused_before_spark_starts(tmp_path: Path):
    refused = process("demo", "--candidates", "2", "--keep", tmp_path / "demo", "--json")
    assert (refused.code, refused.error["kind"]) == (2, "invalid_request")


def test_a_spark_that_is_not_there_is_unavailable(lake_path: Path):
    process("--lake", lake_path, "create", NAME, "--key", "id", "--schema", "id STRING")
    call = ("--lake", lake_path, "--json", "sql", f"SELECT * FROM {NAME}", "--engine", "spark")
    refused = process(*call, SILT_SPARK_REMOTE="sc://127.0.0.1:1")
    assert (refused.code, refused.error["kind"]) == (5, "unavailable")


def test_a_dataset_is_created_from_a_file_and_a_refused_file_leaves_none(
    connect_server: ConnectServer, lake_path: Path, sources: Path
):
    def silt(*call: object) -> Result:
        return process("--lake", lake_path, *call, SILT_SPARK_REMOTE=connect_server.address)

    made = silt("create", NAME, "--key", "id", "--from", sources / "good.parquet")
    assert "100 rows" in made.out, made
    assert "string" in made.out
    again = silt("--json", "create", NAME, "--key", "id", "--from", sources / "good.parquet").data
    assert (again["is_new"], again["loaded"]["files_skipped"]) == (False, 1)
    refused = silt("create", "crm.sales.others", "--key", "n", "--from", sources / "cut.parquet")
    assert refused.code == 2
    assert [one["name"] for one in silt("--json", "list").data] == [NAME]
