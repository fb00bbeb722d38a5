"""Log datasets without Spark: create, append, tombstone and read."""

import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone import Conflict, Dataset, InvalidRequest, Lake
from siltstone.dataset.write.log_rows import MAX_REFUSED_ROWS
from siltstone.model.spec import Kind, Spec
from tests.support.clicks import NAME, SCHEMA, START, Oracle, as_counter, click, clicks, create
from tests.support.refusals import refused


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with Lake.open(tmp_path / "lake") as opened:
        yield opened


@pytest.fixture
def log(lake: Lake) -> Dataset:
    return create(lake)


# ---- create ------------------------------------------------------------------------------------------------------


def test_the_stored_specification_of_a_keyed_dataset_is_unchanged():
    stored = '{"format_version": 1, "key": ["id"], "kind": "keyed", "subject": ["id"]}'
    assert Spec(key=("id",), subject=("id",)).to_json() == stored
    assert Spec.from_json(stored) == Spec(key=("id",), subject=("id",))


def test_a_log_is_stored_with_a_format_that_an_older_siltstone_refuses(log: Dataset):
    assert json.loads(log.spec.to_json())["format_version"] == 2
    assert Spec.from_json(log.spec.to_json()) == log.spec
    assert log.spec.kind is Kind.LOG
    for table in ("base", "changes"):
        assert DeltaTable(log.path / table).metadata().configuration["siltstone.format"] == "2"
    keyed = Lake.open(log.path.parents[3]).create("a.b.keyed", "id STRING", key="id")
    assert DeltaTable(keyed.path / "base").metadata().configuration["siltstone.format"] == "1"


def test_base_of_a_log_is_divided_by_period_and_the_users_columns(log: Dataset):
    base = DeltaTable(log.path / "base")
    assert base.metadata().partition_columns == ["_period", "region"]
    assert [f.name for f in base.schema().fields] == [*SCHEMA.names, "_written_at", "_batch_id", "_period"]
    assert log.schema.equals(SCHEMA)


def test_a_log_is_created_once_and_found_again(lake: Lake, log: Dataset):
    assert create(lake).path == log.path
    assert lake.dataset(NAME).spec == log.spec
    info = lake.datasets()[0]
    assert (info.kind, info.time, info.partition_by, info.sort_by) == ("log", "at", ("region",), ("visitor", "at"))


def test_a_log_is_sorted_by_its_time_by_default(lake: Lake):
    assert create(lake, sort_by=None).spec.sort_by == ("at",)
    assert create(lake, sort_by=["at"]).spec.sort_by == ("at",)


@pytest.mark.parametrize(
    "changed", [{"time": "other"}, {"subject": "visitor"}, {"partition_by": None}, {"sort_by": "n"}]
)
def test_another_specification_is_a_conflict(lake: Lake, changed: dict[str, Any]):
    create(lake)
    with pytest.raises((Conflict, InvalidRequest)):
        create(lake, **changed)


def test_a_keyed_dataset_of_that_name_is_a_conflict(lake: Lake):
    lake.create(NAME, SCHEMA, key="at")
    with refused(Conflict, None, "keyed", "log"):
        create(lake)


@pytest.mark.parametrize(
    ("given", "facts"),
    [
        ({"key": "n", "time": "at"}, ()),
        ({}, ()),
        ({"key": "n", "sort_by": "at"}, ("sort_by",)),
        ({"key": "n", "partition_by": "at"}, ("partition_by",)),
        ({"time": "n"}, ("'n'",)),
        ({"time": "nowhere"}, ("'nowhere'",)),
        ({"time": "at", "subject": "nowhere"}, ("'nowhere'",)),
        ({"time": "at", "subject": "tags"}, ("array<string>",)),
        ({"time": "at", "partition_by": "at"}, ("'at'",)),
        ({"time": "at", "partition_by": ["region", "region"]}, ("'region'",)),
        ({"time": "at", "partition_by": "visitor", "subject": "visitor"}, ("'visitor'", "partition_by")),
        ({"time": "at", "sort_by": "tags"}, ("'tags'",)),
    ],
)
def test_an_invalid_specification_of_a_log_is_rejected(tmp_path: Path, given: dict[str, Any], facts: tuple[str, ...]):
    schema = pa.schema([*SCHEMA, pa.field("tags", pa.list_(pa.string()))])
    with refused(InvalidRequest, None, *facts):
        Lake.open(tmp_path / "none").create(NAME, schema, **given)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("kind", ["TIMESTAMP", "TIMESTAMP_NTZ", "DATE"])
def test_every_kind_of_time_can_be_the_time_of_a_log(lake: Lake, kind: str):
    log = lake.create(NAME, f"at {kind}, v STRING, day DATE, flag BOOLEAN", time="at", partition_by=["day", "flag"])
    assert not log.schema.field("at").nullable
    log.append([{"at": "2026-11-15", "v": "a", "day": "2026-01-01", "flag": True}])
    assert log.to_arrow().num_rows == 1


# ---- append ------------------------------------------------------------------------------------------------------


def test_appended_rows_are_read_back_with_copies(log: Dataset):
    ack = log.append(clicks(3))
    again = log.append(clicks(2))
    assert (ack.sequence, ack.rows, again.sequence, ack.refused) == (1, 3, 2, ())
    assert as_counter(log.to_arrow()) == as_counter(clicks(3) + clicks(2))
    assert log.to_arrow().schema.equals(SCHEMA)
    assert log.changes_to_arrow().column("_op").to_pylist() == ["A"] * 5
    assert log.history(1)[0].operation == "append"


def test_a_producer_appends_a_sequence_once(log: Dataset):
    first = log.append(clicks(3), producer="edge", sequence=7)
    again = log.append(clicks(3), producer="edge", sequence=7)
    assert (first.applied, again.applied, again.sequence) == (True, False, first.sequence)
    assert log.to_arrow().num_rows == 3


@pytest.mark.parametrize(
    ("bad", "facts"),
    [
        ({"at": None}, ("row 1",)),
        ({"n": "many"}, ("row 1", "'n'", "'many'")),
        ({"at": "soon"}, ("row 1", "'at'")),
        ({"color": "red"}, ("'color'",)),
        ({"region": ""}, ("'region'", "row 1")),
    ],
)
def test_a_bad_row_refuses_the_batch_and_is_named(log: Dataset, bad: dict[str, Any], facts: tuple[str, ...]):
    with refused(InvalidRequest, None, *facts):
        log.append([click(0), click(1, **bad), click(2)])
    assert log.to_arrow().num_rows == 0
    assert log.status().sequence == 0


def test_a_time_that_no_period_can_name_is_refused(log: Dataset):
    rows = pa.Table.from_pylist(clicks(1), SCHEMA).drop_columns("at")
    late = rows.append_column(SCHEMA.field("at"), pa.array([253402300800000000], pa.timestamp("us", tz="UTC")))
    with refused(InvalidRequest, None, "1 to 9999", "row 0"):
        log.append(late)


def test_bad_rows_can_be_refused_one_by_one(log: Dataset):
    rows = [click(0), click(1, n="x"), click(2), click(3, at=None), "no row", click(5), click(6, color="red")]
    ack = log.append(rows, on_bad_row="skip")
    assert [found.row for found in ack.refused] == [1, 3, 4, 6]
    reason = ack.refused[0].reason
    assert [fact for fact in ("'n'", "'x'", "-9223372036854775808", "9223372036854775807") if fact not in reason] == []
    assert "'at'" in ack.refused[1].reason
    assert "color" in ack.refused[3].reason
    assert (ack.rows, ack.applied) == (3, True)
    assert as_counter(log.to_arrow()) == as_counter([click(0), click(2), click(5)])
    assert ack.to_dict()["refused"][0] == {"row": 1, "reason": reason}


def test_if_every_row_is_refused_nothing_is_written(log: Dataset):
    ack = log.append([click(0, n="x")], on_bad_row="skip")
    assert (ack.applied, ack.sequence, ack.rows, len(ack.refused)) == (False, None, 0, 1)
    assert log.status().sequence == 0


def test_more_bad_rows_than_the_limit_reject_the_batch(log: Dataset):
    with refused(InvalidRequest, None, "1000 rows", "row 0"):
        log.append([click(n, n="x") for n in range(MAX_REFUSED_ROWS + 1)], on_bad_row="skip")


def test_rows_of_arrow_are_refused_one_by_one_too(log: Dataset):
    nullable = pa.schema([f.with_nullable(True) for f in SCHEMA])  # noqa: FBT003
    table = pa.Table.from_pylist([click(0), click(1, at=None), click(2)], nullable)
    assert [found.row for found in log.append(table, on_bad_row="skip").refused] == [1]
    assert log.to_arrow().num_rows == 2


def test_operations_of_the_other_kind_of_dataset_are_rejected(lake: Lake, log: Dataset):
    keyed = lake.create("a.b.keyed", "id STRING", key="id")
    for call, facts in (
        (lambda: log.upsert(clicks(1)), ("upsert",)),
        (lambda: keyed.append([{"id": "a"}]), ("keyed", "append")),
        (lambda: log.get(["V-1"]), ()),
        (lambda: log.tombstone(where="n > 1"), ()),
        (lambda: log.append(clicks(1), on_bad_row="none"), ("'none'", "on_bad_row")),
        (lambda: log.append([]), ()),
    ):
        with refused(InvalidRequest, None, *facts):
            call()


# ---- tombstones --------------------------------------------------------------------------------------------------


def test_a_tombstone_hides_earlier_rows_and_no_later_ones(log: Dataset):
    log.append(clicks(10))
    ack = log.tombstone([{"visitor": "V-1"}], actor="dpo", reason="request 17")
    assert as_counter(log.to_arrow()) == as_counter([row for row in clicks(10) if row["visitor"] != "V-1"])
    log.append([click(11)])
    assert 11 in log.to_arrow().column("n").to_pylist()
    assert log.to_arrow(raw=True).num_rows == 11
    [shown] = log.tombstones()
    assert shown | {"deleted_at": None} == {
        "visitor": "V-1",
        "account": None,
        "deleted_at": None,
        "actor": "dpo",
        "reason": "request 17",
        "sequence": ack.sequence,
    }


def test_all_values_that_a_tombstone_names_must_match(log: Dataset):
    log.append(clicks(10))
    log.tombstone([{"visitor": "V-1", "account": 1}, {"account": 7}])
    expected = [row for row in clicks(10) if (row["visitor"], row["account"]) != ("V-1", 1)]
    assert as_counter(log.to_arrow()) == as_counter(expected)


def test_a_row_without_a_subject_is_never_hidden(log: Dataset):
    log.append([click(0, visitor=None), click(1, visitor=None, account=None)])
    log.tombstone([{"visitor": "V-0"}, {"visitor": "V-0", "account": 0}])
    assert log.to_arrow().num_rows == 2


def test_one_subject_column_takes_plain_values(lake: Lake):
    log = create(lake, subject="visitor")
    log.append(clicks(10))
    log.tombstone(["V-1", "V-2"])
    assert set(log.to_arrow().column("visitor").to_pylist()) == {"V-0", "V-3", "V-4"}


@pytest.mark.parametrize(
    ("values", "facts"),
    [
        (["V-1"], ("'V-1'",)),
        ("V-1", ()),
        ([{"visitor": None}], ("'visitor'",)),
        ([{}], ()),
        ([{"n": 1}], ("'n'",)),
        ([{"account": "x"}], ("'x'",)),
        ([], ()),
    ],
)
def test_tombstones_that_do_not_fit_are_refused(log: Dataset, values: Any, facts: tuple[str, ...]):  # noqa: ANN401
    with refused(InvalidRequest, None, *facts):
        log.tombstone(values)


def test_a_log_without_subjects_has_no_tombstones(lake: Lake):
    log = create(lake, subject=None)
    with pytest.raises(InvalidRequest):
        log.tombstone(["V-1"])
    assert log.tombstones() == []


# ---- reading -----------------------------------------------------------------------------------------------------


def test_head_returns_the_first_rows_of_to_arrow(log: Dataset):
    log.append(clicks(10))
    log.tombstone([{"visitor": "V-0"}])
    log.append(clicks(5, start=20))
    whole = log.to_arrow()
    for rows in (0, 1, 7, 9, 100):
        assert log.head(rows).equals(whole.slice(0, rows).combine_chunks()) or log.head(rows) == whole.slice(0, rows)
    assert log.head(2, raw=True).column("n").to_pylist() == [0, 1]


def test_a_log_can_be_read_at_an_earlier_sequence(log: Dataset):
    log.append(clicks(3))
    log.tombstone([{"visitor": "V-1"}])
    log.append(clicks(3, start=3))
    counts = [log.to_arrow(at=sequence).num_rows for sequence in range(4)]
    assert counts == [0, 3, 2, 5]


def test_a_squash_keeps_every_row_with_its_own_sequence(log: Dataset):
    oracle = Oracle()
    for start in range(0, 12, 3):
        log.append(clicks(3, start=start))
        oracle.append(clicks(3, start=start))
        log.tombstone([{"visitor": f"V-{start % 5}"}])
        oracle.tombstone([{"visitor": f"V-{start % 5}"}])
    before = log.to_arrow()
    changes = log.changes_to_arrow()
    report = log.squash()
    assert (report.files_removed, report.files_added, report.rows_before, report.rows_after) == (8, 1, 16, 16)
    assert log.to_arrow().equals(before)
    assert as_counter(before) == as_counter(oracle.rows)
    assert as_counter(log.to_arrow(raw=True)) == as_counter(oracle.raw)
    assert log.changes_to_arrow().equals(changes)
    assert len(log.tombstones()) == 4


def test_columns_of_a_log_can_be_added(log: Dataset):
    log.append(clicks(2))
    log.alter(add="page STRING", defaults={"page": "/"})
    log.append([click(2, page="/shop")])
    assert log.to_arrow().column("page").to_pylist() == ["/", "/", "/shop"]
    assert log.schema.names == [*SCHEMA.names, "page"]
    base = DeltaTable(log.path / "base")
    assert base.metadata().partition_columns == ["_period", "region"]
    with pytest.raises(InvalidRequest, match="'account'"):
        log.alter(widen={"account": "DECIMAL(20,0)"})


_ROWS = st.builds(
    lambda n, visitor, account: click(n, visitor=visitor, account=account),
    st.integers(0, 200),
    st.sampled_from([None, "V-0", "V-1", "V-2"]),
    st.sampled_from([None, 0, 1]),
)
_NAMED = st.one_of(
    st.fixed_dictionaries({"visitor": st.sampled_from(["V-0", "V-1"])}),
    st.fixed_dictionaries({"account": st.sampled_from([0, 1])}),
    st.fixed_dictionaries({"visitor": st.sampled_from(["V-0", "V-1"]), "account": st.sampled_from([0, 1])}),
)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(_ROWS, min_size=1, max_size=4)),
        st.tuples(st.just("tombstone"), st.lists(_NAMED, min_size=1, max_size=2)),
        st.tuples(st.just("squash"), st.none()),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=15)
@given(_STEPS)
def test_the_merged_view_matches_the_oracle(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, Any]]):
    with Lake.open(tmp_path_factory.mktemp("log") / "lake") as lake:
        log, oracle = create(lake), Oracle()
        for step, given_rows in steps:
            if step == "squash":
                log.squash()
            else:
                getattr(log, step)(given_rows)
                getattr(oracle, step)(given_rows)
            assert as_counter(log.to_arrow()) == as_counter(oracle.rows)
            assert as_counter(log.to_arrow(raw=True)) == as_counter(oracle.raw)
            assert log.head(1000).num_rows == len(oracle.rows)


def test_no_clock_decides_which_rows_are_visible(log: Dataset):
    """An event of tomorrow is hidden by a tombstone of today if it was appended before."""
    log.append([click(0, at=START + datetime.timedelta(days=10_000))])
    log.tombstone([{"visitor": "V-0"}])
    assert log.to_arrow().num_rows == 0
