"""Values through commands: printed values can be read back, and a value that cannot be printed is a named error."""

import json
import math
from pathlib import Path

import pyarrow as pa
import pytest

from siltstone import InvalidRequest, Lake
from tests.e2e.silt import silt
from tests.support.unchecked import write_unchecked

ALL = (
    "id STRING NOT NULL, b BOOLEAN, i TINYINT, l BIGINT, f FLOAT, d DOUBLE, m DECIMAL(38,18), day DATE, at TIMESTAMP, "
    "wall TIMESTAMP_NTZ, raw BINARY, tags ARRAY<DOUBLE>, s STRUCT<x: BINARY, y: MAP<STRING, TIMESTAMP>>, "
    "mp MAP<DATE, DECIMAL(5,2)>, mi MAP<BIGINT, BINARY>"
)
ROWS = """
{"id": "full", "b": true, "i": -128, "l": 9223372036854775807, "f": 0.1, "d": -0.0, "m": "0", "day": "0001-01-01",
 "at": "9999-12-31T23:59:59.999999Z", "wall": "2026-01-05T10:00:00", "raw": "AP8=",
 "tags": ["NaN", "Infinity", "-Infinity", null, 1e308],
 "s": {"x": "", "y": {"a": "2026-01-05T10:00:00+02:00", "b": null}}, "mp": [["2026-01-05", "1.50"]], "mi": {"-7": "YQ=="}}
"""


@pytest.fixture
def lake(lake_path: Path) -> Path:
    assert silt("--lake", lake_path, "create", "a.b.all", "--key", "id", "--schema", ALL).code == 0
    assert silt("--lake", lake_path, "create", "a.b.copy", "--key", "id", "--schema", ALL).code == 0
    return lake_path


def test_rows_that_get_shows_are_the_rows_that_upsert_reads(lake: Path):
    assert silt("--lake", lake, "upsert", "a.b.all", "-", stdin=ROWS).code == 0
    assert silt("--lake", lake, "upsert", "a.b.all", "--row", '{"id": "empty"}').code == 0
    shown = silt("--lake", lake, "--json", "get", "a.b.all", "full", "empty")
    assert silt("--lake", lake, "upsert", "a.b.copy", "-", stdin=shown.out).code == 0
    assert silt("--lake", lake, "--json", "get", "a.b.copy", "full", "empty").out == shown.out
    with Lake.open(lake) as opened:
        stored = [opened.dataset(name).get(["full"]) for name in ("a.b.all", "a.b.copy")]
    assert str(stored[0].to_pylist()) == str(stored[1].to_pylist())
    [row] = stored[1].to_pylist()
    assert (row["raw"], math.copysign(1, row["d"]), row["mi"]) == (b"\x00\xff", -1.0, [(-7, b"a")])


@pytest.mark.parametrize(
    "row",
    ['{"id": "a", "at": 1700000000}', '{"id": "a", "day": 20000}', '{"id": "a", "d": true}', '{"id": "a", "raw": "?"}'],
)
def test_a_value_that_could_mean_two_things_is_refused_with_the_accepted_form(lake: Path, row: str):
    refused = silt("--lake", lake, "--json", "upsert", "a.b.all", "--row", row)
    assert (refused.code, refused.error["kind"]) == (2, "invalid_request")
    column = list(json.loads(row))[1]
    assert [fact for fact in ("row 0", f"'{column}'") if fact not in refused.error["message"]] == []


def test_a_row_that_names_a_field_twice_is_refused(lake: Path, tmp_path: Path):
    (tmp_path / "a.ndjson").write_text('{"id": "a"}\n{"id": "b", "l": 1, "l": 2}\n')
    refused = silt("--lake", lake, "--json", "upsert", "a.b.all", tmp_path / "a.ndjson")
    assert "'l'" in refused.error["message"]
    assert "line 2" in refused.error["message"]


def test_a_read_of_a_year_that_python_does_not_have_names_the_column(lake_path: Path, tmp_path: Path):
    with Lake.open(lake_path) as lake:
        dataset = lake.create("a.b.far", "id STRING NOT NULL, days ARRAY<DATE>", key="id")
        days = pa.array([[2_932_897]], dataset.schema.field("days").type)
        write_unchecked(dataset, pa.table([pa.array(["x"]), days], schema=dataset.schema))
        assert dataset.to_arrow().num_rows == 1
        found = lake.sql("SELECT * FROM a.b.far")
        for use in (lambda: found.rows, found.to_pandas):
            with pytest.raises(InvalidRequest, match="'days'"):
                use()
        keyed = lake.create("a.b.keyed", "day DATE NOT NULL", key="day")
        far = pa.table([pa.array([2_932_897, 0], pa.int32()).cast(pa.date32())], schema=keyed.schema)
        write_unchecked(keyed, far)
        keyed.tombstone(far)
        assert keyed.to_arrow().num_rows == 0
        with pytest.raises(InvalidRequest, match="'day'"):
            keyed.tombstones()
    calls: list[tuple[object, ...]] = [
        ("head", "a.b.far"),
        ("get", "a.b.far", "x"),
        ("changes", "a.b.far"),
        ("sql", "SELECT * FROM a.b.far"),
        ("sql", "SELECT * FROM a.b.far", "--out", tmp_path / "far.json"),
    ]
    for call in calls:
        refused = silt("--lake", lake_path, "--json", *call)
        assert (refused.code, refused.error["kind"]) == (2, "invalid_request"), call
        assert "'days'" in refused.error["message"]
    assert not (tmp_path / "far.json").exists()


def test_of_rows_with_one_key_the_last_by_order_is_written(lake: Path):
    rows = '[{"id": "a", "l": 2, "i": 2}, {"id": "a", "l": 1, "i": 1}]'
    assert silt("--lake", lake, "upsert", "a.b.all", "-", "--order-by", "l", stdin=rows).code == 0
    assert silt("--lake", lake, "--json", "get", "a.b.all", "a", "--columns", "i").data == [{"i": 2}]
    refused = silt("--lake", lake, "--json", "upsert", "a.b.all", "-", "--order-by", "nope", stdin=rows)
    assert "'nope'" in refused.error["message"]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("INT", "0x1F"),
        ("DOUBLE", "1e400"),
        ("DATE", "0000-01-01"),
        ("BOOLEAN", "1"),
        ("FLOAT", "1e300"),
        ("TIMESTAMP", "10:00"),
    ],
)
def test_a_default_is_judged_as_any_other_value(lake: Path, kind: str, value: str):
    refused = silt("--lake", lake, "--json", "alter", "a.b.all", "--add", f"c {kind}", "--default", f"c={value}")
    assert refused.error["kind"] == "invalid_request"
    assert "'c'" in refused.error["message"]
