import datetime
import decimal
import gc
import json
import resource
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from siltstone.delta.parquet import (
    MAX_STAT_CHARS,
    ROW_GROUP_ROWS,
    bloom_columns,
    data_file,
    key_ranges,
    log_statistics,
    read_footer,
    spark_options,
    stat_columns,
    write_file,
)
from siltstone.delta.table import Table
from siltstone.errors import Corruption, Reason
from siltstone.model.commit import Commit, CommitKind
from siltstone.model.files import KeyRange, whole_range
from tests.support.refusals import refused
from tests.support.tables import open_table

UTC = datetime.UTC


def statistics(tmp_path: Path, **columns: pa.Array) -> dict[str, Any]:
    """Write the columns to a file and return the log's statistics of all of them."""
    rows = pa.table(columns)
    write_file(rows, tmp_path / "f.parquet", key=())
    footer = read_footer(tmp_path / "f.parquet", expected=rows.schema)
    found: dict[str, Any] = json.loads(log_statistics(footer, columns=list(columns)))
    return found


def limits(tmp_path: Path, array: pa.Array) -> tuple[Any, Any]:
    found = statistics(tmp_path, c=array)
    return found.get("minValues", {}).get("c"), found.get("maxValues", {}).get("c")


# ---- which columns ---------------------------------------------------------------------------------------------------

PEOPLE = pa.schema(
    [
        pa.field("person_id", pa.string()),
        pa.field("name", pa.string()),
        pa.field("region", pa.string()),
        pa.field("age", pa.int32()),
        pa.field("salary", pa.decimal128(10, 2)),
        pa.field("born", pa.date32()),
        pa.field("seen", pa.timestamp("us", tz="UTC")),
        pa.field("score", pa.float64()),
        pa.field("active", pa.bool_()),
        pa.field("photo", pa.binary()),
        pa.field("tags", pa.list_(pa.string())),
    ]
)


def test_only_numbers_times_and_sort_columns_have_statistics_in_the_log():
    assert stat_columns(PEOPLE, sort=["region"], subject=[]) == ["region", "age", "salary", "born", "seen"]


def test_a_subject_is_never_in_the_delta_log_even_as_a_sort_column_or_a_number():
    found = stat_columns(PEOPLE, sort=["person_id", "age"], subject=["person_id", "age"])
    assert "person_id" not in found
    assert "age" not in found


def test_the_values_of_subjects_and_free_text_are_not_in_the_statistics(tmp_path: Path):
    rows = pa.table({"person_id": ["CAND-000001"], "name": ["Ada Secret"], "age": [42]})
    write_file(rows, tmp_path / "f.parquet", key=["person_id"])
    columns = stat_columns(rows.schema, sort=["person_id"], subject=["person_id"])
    file = data_file(tmp_path, "f.parquet", expected=rows.schema, stats=columns)
    assert "CAND" not in file.stats
    assert "Secret" not in file.stats
    assert json.loads(file.stats)["maxValues"] == {"age": 42}


# ---- their values ----------------------------------------------------------------------------------------------------


def test_rows_and_nulls_are_counted(tmp_path: Path):
    found = statistics(tmp_path, c=pa.array([3, None, 1]))
    assert found == {"numRecords": 3, "minValues": {"c": 1}, "maxValues": {"c": 3}, "nullCount": {"c": 1}}


def test_a_column_of_nulls_has_a_count_and_no_limits(tmp_path: Path):
    found = statistics(tmp_path, c=pa.array([None, None], pa.int64()))
    assert found == {"numRecords": 2, "minValues": {}, "maxValues": {}, "nullCount": {"c": 2}}


def test_statistics_of_an_empty_file_have_only_its_row_count(tmp_path: Path):
    assert statistics(tmp_path, c=pa.array([], pa.int64())) == {"numRecords": 0}


def test_the_largest_integers_are_exact(tmp_path: Path):
    assert limits(tmp_path, pa.array([-(2**63), 2**63 - 1])) == (-(2**63), 2**63 - 1)


@pytest.mark.parametrize(("zone", "suffix"), [(None, ""), ("UTC", "Z")])
def test_times_are_rounded_outwards_to_milliseconds(tmp_path: Path, zone: str | None, suffix: str):
    low = datetime.datetime(2024, 1, 1, 0, 0, 0, 1999)  # noqa: DTZ001
    high = datetime.datetime(2024, 12, 31, 23, 59, 59, 999001)  # noqa: DTZ001
    array = pa.array([low, high], pa.timestamp("us")).cast(pa.timestamp("us", tz=zone))
    assert limits(tmp_path, array) == (f"2024-01-01T00:00:00.001{suffix}", f"2025-01-01T00:00:00.000{suffix}")


def test_times_before_1970_are_rounded_outwards_too(tmp_path: Path):
    moment = datetime.datetime(1900, 1, 1, 0, 0, 0, 1500, tzinfo=UTC)
    assert limits(tmp_path, pa.array([moment])) == ("1900-01-01T00:00:00.001Z", "1900-01-01T00:00:00.002Z")


def test_whole_milliseconds_stay_as_they_are(tmp_path: Path):
    moment = datetime.datetime(2024, 1, 1, 0, 0, 0, 5000, tzinfo=UTC)
    assert limits(tmp_path, pa.array([moment])) == ("2024-01-01T00:00:00.005Z", "2024-01-01T00:00:00.005Z")


@pytest.mark.parametrize(
    "array",
    [
        pa.array([datetime.datetime(9999, 12, 31, 23, 59, 59, 999999)]),  # noqa: DTZ001
        pa.array([datetime.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)]),
        pa.array([300_000_000_000_000_000], pa.int64()).cast(pa.timestamp("us")),
        pa.array([3_000_000], pa.int32()).cast(pa.date32()),
    ],
    ids=["the last microsecond", "the last microsecond of UTC", "a time past 9999", "a date past 9999"],
)
def test_times_outside_of_the_calendar_have_no_limits_and_raise_no_error(tmp_path: Path, array: pa.Array):
    assert limits(tmp_path, array) == (None, None)


def test_a_row_group_with_a_day_after_9999_has_an_unknown_range(tmp_path: Path):
    days = pa.array([20_000] * ROW_GROUP_ROWS + [3_000_000], pa.int32()).cast(pa.date32())
    write_file(pa.table({"day": days}), tmp_path / "f.parquet", key=())
    day = datetime.date(2024, 10, 4)
    ranges = key_ranges(pq.read_metadata(tmp_path / "f.parquet"), "day")
    assert ranges == [KeyRange(day, day), KeyRange()]
    assert whole_range(ranges) == KeyRange()


def test_the_end_of_time_as_people_write_it_has_limits(tmp_path: Path):
    assert limits(tmp_path, pa.array([datetime.date(9999, 12, 31)])) == ("9999-12-31", "9999-12-31")
    last = datetime.datetime(9999, 12, 31, 23, 59, 59)  # noqa: DTZ001
    assert limits(tmp_path, pa.array([last])) == ("9999-12-31T23:59:59.000", "9999-12-31T23:59:59.000")


def test_a_decimal_is_a_number_while_it_is_exact(tmp_path: Path):
    array = pa.array([decimal.Decimal("-12.50"), decimal.Decimal("99999999.99")], pa.decimal128(10, 2))
    assert limits(tmp_path, array) == (-12.5, 99999999.99)


@pytest.mark.parametrize("values", [("-9007199254740993", "1"), ("1", "9007199254740993")])
def test_a_decimal_past_fifteen_digits_has_no_limits_at_either_end(tmp_path: Path, values: tuple[str, str]):
    array = pa.array([decimal.Decimal(text) for text in values], pa.decimal128(20, 0))
    assert limits(tmp_path, array) == (None, None)


@pytest.mark.parametrize("values", [("a", "z" * (MAX_STAT_CHARS + 1)), ("a" * (MAX_STAT_CHARS + 1), "z")])
def test_long_text_has_no_limits_at_either_end(tmp_path: Path, values: tuple[str, str]):
    assert limits(tmp_path, pa.array(values)) == (None, None)
    assert statistics(tmp_path, c=pa.array(values))["nullCount"] == {"c": 0}


def test_short_text_has_limits(tmp_path: Path):
    assert limits(tmp_path, pa.array(["b", "ä", "z" * MAX_STAT_CHARS])) == ("b", "ä")


def test_row_groups_are_taken_together(tmp_path: Path):
    values = list(range(ROW_GROUP_ROWS)) + [None] * ROW_GROUP_ROWS + [-5]
    found = statistics(tmp_path, c=pa.array(values, pa.int64()))
    assert found["minValues"] == {"c": -5}
    assert found["maxValues"] == {"c": ROW_GROUP_ROWS - 1}
    assert found["nullCount"] == {"c": ROW_GROUP_ROWS}
    assert pq.ParquetFile(tmp_path / "f.parquet").metadata.num_row_groups == 3


def test_a_file_without_statistics_may_contain_anything(tmp_path: Path):
    rows = pa.table({"c": [1, 2]})
    pq.write_table(rows, tmp_path / "f.parquet", write_statistics=False)
    footer = read_footer(tmp_path / "f.parquet", expected=rows.schema)
    assert json.loads(log_statistics(footer, columns=["c"])) == {"numRecords": 2}


def test_delta_reads_back_the_limits_that_were_written(tmp_path: Path):
    rows = pa.table(
        {
            "n": [1, 5],
            "m": pa.array([decimal.Decimal("0.0001"), decimal.Decimal("1.5")], pa.decimal128(10, 4)),
            "d": [datetime.date(2020, 1, 1), datetime.date(2021, 1, 1)],
            "at": pa.array([datetime.datetime(2024, 1, 1, tzinfo=UTC)] * 2, pa.timestamp("us", tz="UTC")),
            "s": ["a", "b"],
            "b": [True, False],
        }
    )
    Table.create(tmp_path / "t", rows.schema, partition_by=[], properties={}, durable=False)
    write_file(rows, tmp_path / "t" / "f.parquet", key=())
    file = data_file(tmp_path / "t", "f.parquet", expected=rows.schema, stats=rows.column_names)
    table = open_table(tmp_path / "t")
    table.commit(lambda p: Commit(kind=CommitKind.APPEND, plan_version=p.version, adds=(file,)))
    found = pa.table(DeltaTable(tmp_path / "t").get_add_actions(flatten=True)).to_pylist()[0]
    assert (found["min.n"], found["max.n"], found["null_count.n"]) == (1, 5, 0)
    assert (found["min.d"], found["max.d"]) == (datetime.date(2020, 1, 1), datetime.date(2021, 1, 1))
    assert (found["min.s"], found["max.s"]) == ("a", "b")
    assert found["min.at"] == datetime.datetime(2024, 1, 1, tzinfo=UTC)
    assert found["min.m"] <= decimal.Decimal("0.0001")
    assert found["max.m"] >= decimal.Decimal("1.5")


# ---- footers ---------------------------------------------------------------------------------------------------------


def test_inner_names_of_lists_and_maps_may_differ(tmp_path: Path):
    rows = pa.table(
        {
            "a": pa.array([[1]], pa.list_(pa.field("item", pa.int64()))),
            "m": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
        }
    )
    pq.write_table(rows, tmp_path / "f.parquet")
    expected = pa.schema([pa.field("a", pa.list_(pa.field("element", pa.int64()))), rows.schema.field("m")])
    assert read_footer(tmp_path / "f.parquet", expected=expected).rows == 1


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (pa.list_(pa.int32()), pa.list_(pa.int64())),
        (pa.struct([pa.field("x", pa.int64())]), pa.struct([pa.field("y", pa.int64())])),
        (pa.timestamp("us"), pa.timestamp("us", tz="UTC")),
        (pa.decimal128(10, 2), pa.decimal128(10, 3)),
        (pa.string(), pa.binary()),
    ],
    ids=str,
)
def test_another_type_is_refused_by_column(tmp_path: Path, found: pa.DataType, expected: pa.DataType):
    write_file(pa.table({"c": pa.nulls(1, found)}), tmp_path / "f.parquet", key=())
    with pytest.raises(Corruption, match=r"\bc \("):
        read_footer(tmp_path / "f.parquet", expected=pa.schema([pa.field("c", expected)]))


def test_a_file_of_garbage_is_refused(tmp_path: Path):
    (tmp_path / "f.parquet").write_bytes(b"PAR1 nonsense PAR1")
    with refused(Corruption, Reason.DAMAGED_FILE, "f.parquet"):
        read_footer(tmp_path / "f.parquet", expected=pa.schema([]))
    with refused(Corruption, Reason.MISSING_FILE, "none.parquet"):
        read_footer(tmp_path / "none.parquet", expected=pa.schema([]))


# ---- the layout of a file --------------------------------------------------------------------------------------------


def test_keys_and_ids_get_bloom_filters_and_booleans_do_not():
    schema = pa.schema(
        [
            pa.field("n", pa.int64()),
            pa.field("flag", pa.bool_()),
            pa.field("user_id", pa.string()),
            pa.field("sort_key", pa.string()),
            pa.field("number_id", pa.int64()),
            pa.field("name", pa.string()),
            pa.field("_batch_id", pa.string()),
        ]
    )
    assert bloom_columns(schema, ["n", "flag"]) == ["n", "user_id", "sort_key", "_batch_id"]
    assert "parquet.bloom.filter.enabled#n" in spark_options(schema, ["n"])
    assert "parquet.bloom.filter.enabled#name" not in spark_options(schema, ["n"])


def test_files_are_zstd_with_microseconds_and_without_an_arrow_schema(tmp_path: Path):
    rows = pa.table({"id": ["x"], "at": pa.array([1], pa.timestamp("us", tz="UTC"))})
    write_file(rows, tmp_path / "f.parquet", key=["id"])
    metadata = pq.ParquetFile(tmp_path / "f.parquet").metadata
    assert metadata.row_group(0).column(0).compression == "ZSTD"
    assert "timeUnit=microseconds" in str(metadata.schema.column(1).logical_type)
    assert b"ARROW:schema" not in (metadata.metadata or {})


def test_written_rows_are_read_back(tmp_path: Path):
    rows = pa.table({"id": ["x", None], "wall": pa.array([1, None], pa.timestamp("us")), "n": [1.5, float("inf")]})
    write_file(rows, tmp_path / "f.parquet", key=["id"])
    assert pq.ParquetFile(tmp_path / "f.parquet").read().equals(rows)


def test_a_disk_that_fills_up_at_any_byte_is_one_error(tmp_path: Path):
    rows, path = pa.table({"id": ["a", "b"], "n": [1, 2]}), tmp_path / "f.parquet"
    write_file(rows, path, key=("id",))
    size, (soft, hard) = path.stat().st_size, resource.getrlimit(resource.RLIMIT_FSIZE)
    complaints: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "unraisablehook", lambda found: complaints.append(repr(found.exc_value)))
        for most in range(0, size, 50):
            path.unlink(missing_ok=True)
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
            try:
                with pytest.raises(OSError, match="File too large"):
                    write_file(rows, path, key=("id",))
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            gc.collect()
    assert complaints == []
