"""Columns change while files stay: values of old rows, refused changes, and crashes."""

import datetime
import decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from siltstone import Conflict, Dataset, InvalidRequest, Lake
from siltstone.failpoints import arm
from siltstone.model.schema import default_of
from tests.support.folds import fold_by_arrow
from tests.support.refusals import refused
from tests.support.tables import FAST

SCHEMA = "id BIGINT NOT NULL, n INT, f FLOAT"
NAME = "a.b.c"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.open(tmp_path / "lake", settings=FAST)


@pytest.fixture
def dataset(lake: Lake) -> Dataset:
    return lake.create(NAME, SCHEMA, key="id")


def rows(dataset: Dataset) -> list[dict[str, Any]]:
    return list(dataset.to_arrow().sort_by("id").to_pylist())


def test_old_rows_show_the_default_and_new_ones_what_was_written(dataset: Dataset):
    dataset.upsert([{"id": 1, "n": 5}])
    report = dataset.alter(add="score BIGINT COMMENT 'of 100', note STRING", defaults={"score": 7})
    assert [one.split()[0] for one in report.changed] == ["score", "note"]
    dataset.upsert([{"id": 2, "n": 6}, {"id": 3, "score": 1}])
    assert [(row["id"], row["score"], row["note"]) for row in rows(dataset)] == [
        (1, 7, None),
        (2, None, None),
        (3, 1, None),
    ]
    assert dataset.head(1).to_pylist()[0]["score"] in (7, None, 1)


DEFAULTS = {
    "STRING": ('it\'s \\ "so"', 'it\'s \\ "so"'),
    "INT": (-3, -3),
    "DOUBLE": (1.5, 1.5),
    "BOOLEAN": (True, True),
    "DATE": ("2026-11-16", datetime.date(2026, 11, 16)),
    "TIMESTAMP": ("2026-11-16T01:02:03+00:00", datetime.datetime(2026, 11, 16, 1, 2, 3, tzinfo=datetime.UTC)),
    "TIMESTAMP_NTZ": ("2026-11-16T01:02:03", datetime.datetime(2026, 11, 16, 1, 2, 3)),  # noqa: DTZ001
    "DECIMAL(10,2)": ("1.25", decimal.Decimal("1.25")),
}


@pytest.mark.parametrize("kind", DEFAULTS)
def test_a_default_of_every_type_is_read_back(dataset: Dataset, kind: str):
    dataset.upsert([{"id": 1}])
    given, shown = DEFAULTS[kind]
    dataset.alter(add=f"x {kind}", defaults={"x": given})
    assert rows(dataset)[0]["x"] == shown
    assert default_of(dataset.schema.field("x")).as_py() == shown


def test_old_values_are_read_in_the_wider_type(dataset: Dataset):
    dataset.upsert([{"id": 1, "n": 2**31 - 1, "f": 0.5}])
    dataset.alter(widen={"n": "BIGINT", "f": pa.float64()})
    dataset.upsert([{"id": 2, "n": 2**40, "f": 0.1}])
    assert rows(dataset) == [{"id": 1, "n": 2**31 - 1, "f": 0.5}, {"id": 2, "n": 2**40, "f": 0.1}]
    assert dataset.squash().files_removed == 2
    assert rows(dataset) == [{"id": 1, "n": 2**31 - 1, "f": 0.5}, {"id": 2, "n": 2**40, "f": 0.1}]


def test_comments_and_tags_are_shown_and_removed(dataset: Dataset, lake: Lake):
    dataset.alter(comments={"n": "how many"}, tags={"n": ["pii", "eu"]})
    [_, n, _] = lake.dataset(NAME).info().columns
    assert (n["comment"], n["tags"]) == ("how many", ["eu", "pii"])
    dataset.alter(comments={"n": None}, tags={"n": []})
    assert lake.dataset(NAME).info().columns[1] == {"name": "n", "type": "integer", "nullable": True}


def test_a_comment_of_create_is_kept(lake: Lake):
    made = lake.create("a.b.d", "id BIGINT NOT NULL COMMENT 'the key'", key="id")
    assert made.info().columns[0]["comment"] == "the key"
    assert lake.create("a.b.d", "id BIGINT NOT NULL", key="id").info().columns[0]["comment"] == "the key"


IMPOSSIBLE: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"add": "x INT NOT NULL"}, ("'x'", "NOT NULL")),
    ({"add": "n STRING"}, ("'n'",)),
    ({"add": "id BIGINT"}, ("'id'",)),
    ({"add": "_x INT"}, ("'_x'",)),
    ({"add": "N INT"}, ("'N'",)),
    ({"widen": {"n": "STRING"}}, ("'n'",)),
    ({"widen": {"n": "SMALLINT"}}, ("'n'",)),
    ({"widen": {"id": "STRING"}}, ("'id'",)),
    ({"widen": {"x": "INT"}}, ("'x'",)),
    ({"comments": {"x": "?"}}, ("'x'",)),
    ({"comments": {"n": "x" * 1001}}, ("1000",)),
    ({"tags": {"n": [""]}}, ("'n'",)),
    ({"defaults": {"n": 5}}, ("'n'",)),
    ({"add": "x INT", "defaults": {"x": "five"}}, ("'five'",)),
    ({"add": "x ARRAY<INT>", "defaults": {"x": "[]"}}, ("'x'",)),
    ({"add": "x TIMESTAMP", "defaults": {"x": "2026-01-01T00:00:00"}}, ("'x'", "'2026-01-01T00:00:00'")),
    ({"add": 5}, ()),
]


@pytest.mark.parametrize(("change", "facts"), IMPOSSIBLE, ids=[str(change) for change, _ in IMPOSSIBLE])
def test_an_impossible_alteration_is_rejected_by_name_and_changes_nothing(
    dataset: Dataset, change: dict[str, Any], facts: tuple[str, ...]
):
    before = dataset.schema
    versions = [DeltaTable(dataset.path / part).version() for part in ("base", "changes")]
    with refused(InvalidRequest, None, *facts):
        dataset.alter(**change)
    assert dataset.schema.equals(before, check_metadata=True)
    assert [DeltaTable(dataset.path / part).version() for part in ("base", "changes")] == versions


def test_a_dry_run_and_a_repeat_change_nothing(dataset: Dataset):
    assert dataset.alter(add="x INT", dry_run=True).changed[0].split()[0] == "x"
    assert dataset.schema.names == ["id", "n", "f"]
    dataset.alter(add="x INT", defaults={"x": 1})
    version = DeltaTable(dataset.path / "base").version()
    assert dataset.alter(add="x INT", defaults={"x": 1}).changed == []
    assert DeltaTable(dataset.path / "base").version() == version


def test_every_handle_sees_an_alteration(dataset: Dataset, lake: Lake, tmp_path: Path):
    other = Lake.open(tmp_path / "lake", settings=FAST).dataset(NAME)
    other.upsert([{"id": 1}])
    dataset.alter(add="x INT")
    other.upsert([{"id": 2, "x": 9}])
    assert [row["x"] for row in rows(dataset)] == [None, 9]
    assert other.info().fingerprint == dataset.info().fingerprint
    assert lake.create(NAME, SCHEMA + ", x INT", key="id").schema.names == ["id", "n", "f", "x"]
    with pytest.raises(Conflict):
        lake.create(NAME, SCHEMA, key="id")


def test_a_write_staged_before_and_committed_after_has_the_old_columns(dataset: Dataset, tmp_path: Path):
    other = Lake.open(tmp_path / "lake", settings=FAST).dataset(NAME)

    def alter_now(_: str) -> None:
        other.alter(add="x INT", widen={"n": "BIGINT"}, defaults={"x": 3})

    with arm("upsert.after_stage", alter_now):
        dataset.upsert([{"id": 1, "n": 1}])
    dataset.upsert([{"id": 2, "n": 2**40, "x": 4}])
    assert rows(dataset) == [{"id": 1, "n": 1, "f": None, "x": 3}, {"id": 2, "n": 2**40, "f": None, "x": 4}]


def test_a_squash_that_was_planned_before_is_refused(dataset: Dataset, tmp_path: Path):
    other = Lake.open(tmp_path / "lake", settings=FAST).dataset(NAME)
    for number in range(4):
        dataset.upsert([{"id": number}])

    def alter_now(_: str) -> None:
        other.alter(add="x INT")
        other.upsert([{"id": 9, "x": 9}])

    with arm("squash.after_write", alter_now), pytest.raises(Conflict):
        dataset.squash()
    assert dataset.squash().files_removed == 5
    assert rows(dataset)[-1]["x"] == 9


def test_two_concurrent_alterations_both_take_effect(dataset: Dataset, tmp_path: Path):
    other = Lake.open(tmp_path / "lake", settings=FAST).dataset(NAME)

    def alter_now(_: str) -> None:
        other.alter(add="y INT", defaults={"y": 2})

    with arm("alter.after_changes", alter_now):
        dataset.alter(add="x INT", defaults={"x": 1})
    dataset.upsert([{"id": 1}])
    assert set(dataset.schema.names) == {"id", "n", "f", "x", "y"}
    assert set(rows(dataset)[0]) == {"id", "n", "f", "x", "y"}


def test_an_alteration_that_crashed_between_the_tables_is_finished_by_the_next(dataset: Dataset, lake: Lake):
    dataset.upsert([{"id": 1}])
    with arm("alter.after_changes", "raise"), pytest.raises(OSError, match=r"alter\.after_changes"):
        dataset.alter(add="x INT", widen={"n": "BIGINT"}, defaults={"x": 1})
    dataset.upsert([{"id": 2}])
    assert lake.dataset(NAME).schema.names == ["id", "n", "f"]
    dataset.alter(comments={"n": "a number"})
    assert [(row["id"], row["x"]) for row in rows(dataset)] == [(1, 1), (2, 1)]
    assert dataset.schema.field("n").type == pa.int64()


def test_a_column_of_times_without_zone_raises_the_protocol_by_that_feature(dataset: Dataset):
    dataset.alter(add="at TIMESTAMP_NTZ")
    dataset.upsert([{"id": 1, "at": "2026-01-01T00:00:00"}])
    for part in ("base", "changes"):
        protocol = DeltaTable(dataset.path / part).protocol()
        assert (protocol.min_reader_version, protocol.min_writer_version) == (3, 7)
        assert "timestampNtz" in (protocol.reader_features or [])
    assert rows(dataset)[0]["at"] == datetime.datetime(2026, 1, 1)  # noqa: DTZ001


def test_tombstones_and_raw_rows_work_over_an_alteration(dataset: Dataset):
    dataset.upsert([{"id": 1}, {"id": 2}])
    dataset.tombstone([1])
    dataset.alter(add="x INT", defaults={"x": 1})
    assert [row["id"] for row in rows(dataset)] == [2]
    assert dataset.to_arrow(raw=True).num_rows == 2
    assert len(dataset.tombstones()) == 1


def test_lookups_show_old_rows_in_the_new_columns(dataset: Dataset):
    dataset.upsert([{"id": number, "n": number} for number in range(10)])
    fold_by_arrow(dataset)
    dataset.upsert([{"id": 3, "n": 33}])
    assert dataset.get([3, 4]).column("n").to_pylist() == [33, 4]  # cached parts of files have the narrow type
    dataset.alter(add="x INT, y STRING", defaults={"x": 7}, widen={"n": "BIGINT"})
    dataset.upsert([{"id": 5, "n": 2**40, "x": 1}])
    for _ in range(3):
        assert dataset.get([3, 4, 5]).to_pylist() == [
            {"id": 3, "n": 33, "f": None, "x": 7, "y": None},
            {"id": 4, "n": 4, "f": None, "x": 7, "y": None},
            {"id": 5, "n": 2**40, "f": None, "x": 1, "y": None},
        ]
        assert dataset.get([4], columns=["x"]).to_pylist() == [{"x": 7}]
        assert dataset.get([4], columns=["y", "n"]).to_pylist() == [{"y": None, "n": 4}]
