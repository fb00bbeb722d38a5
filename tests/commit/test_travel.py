"""Time travel, changes and history without Spark: an earlier state has its rows of that time, or is a clear error."""

import datetime
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from siltstone import Corruption, Dataset, Gone, InvalidRequest, Lake, NotFound, Settings
from siltstone.clock import SystemClock
from siltstone.dataset.read import arrow_view
from siltstone.dataset.write.change_writer import Batch, ChangeWriter
from siltstone.dataset.write.row_conversion import change_rows, to_table
from siltstone.delta.checkpoints import Retention, clean_log, forget_history, write_checkpoint
from siltstone.errors import Reason
from siltstone.model.columns import APP_CONTENT, APP_FOLD, Op
from siltstone.model.commit import Commit, CommitKind
from siltstone.model.reports import Ack
from tests.support.folds import fold_by_arrow, squash_here, stage
from tests.support.internals import commit_batches, staged_file, store_of
from tests.support.people import NAME, SCHEMA, create, key, people, person
from tests.support.refusals import refused as refuses

QUIET = Settings(durable=False, checkpoint_interval_commits=1_000_000)
"""No background checkpoints: tests clean the log explicitly."""
START = datetime.datetime(2026, 11, 16, 8, 0, tzinfo=datetime.UTC)

State = dict[str, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class SetClock(SystemClock):
    """A clock that shows the time set by a test."""

    minutes: list[float] = field(default_factory=lambda: [0.0])

    def now(self) -> datetime.datetime:
        return START + datetime.timedelta(minutes=self.minutes[0])

    def set(self, minutes: float) -> None:
        """Show a time in minutes after the start."""
        self.minutes[0] = minutes


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def lake(lake_path: Path) -> Iterator[Lake]:
    with Lake.open(lake_path, settings=QUIET) as opened:
        yield opened


@pytest.fixture
def dataset(lake: Lake) -> Dataset:
    return create(lake)


def rows_of(table: pa.Table) -> State:
    found = {row["id"]: tuple(row.values()) for row in table.to_pylist()}
    assert len(found) == table.num_rows
    return found


def cut_log(dataset: Dataset, table: str) -> None:
    """Write a checkpoint and delete every earlier entry, as retention does."""
    write_checkpoint(dataset.path / table, durable=False)
    forget_history(dataset.path / table)


def readable(dataset: Dataset, oracle: dict[int, State]) -> set[int]:
    """Read every sequence: its state is the recorded one, or it is not found. Return the readable sequences."""
    found: set[int] = set()
    for sequence, state in oracle.items():
        try:
            assert rows_of(dataset.to_arrow(at=sequence)) == state, sequence
            assert rows_of(dataset.head(1000, at=str(sequence))) == state, sequence
        except NotFound as error:
            assert str(dataset.name) in str(error)  # noqa: PT017
            continue
        found.add(sequence)
    return found


def applied(state: State, changes: pa.Table) -> State:
    """Apply changes in their order."""
    rows = dict(state)
    order = [(row["_seq"], row["_pos"]) for row in changes.to_pylist()]
    assert order == sorted(order)
    for row in changes.to_pylist():
        if row["_op"] == "U":
            rows[row["id"]] = tuple(row[name] for name in SCHEMA.names)
        else:
            rows.pop(row["id"], None)
    return rows


def followed(dataset: Dataset, oracle: dict[int, State]) -> set[int]:
    """Follow from every sequence to the current state, or get NotFound. Return the sequences that can be followed."""
    now = rows_of(dataset.to_arrow())
    found: set[int] = set()
    for sequence, state in oracle.items():
        try:
            changes = dataset.changes_to_arrow(since=sequence)
        except NotFound as error:
            oldest = int(re.findall(r"since=(\d+)", str(error))[0])
            assert sequence < oldest
            dataset.changes_to_arrow(since=oldest)
            continue
        assert applied(state, changes) == now, sequence
        found.add(sequence)
    return found


# ---- by sequence -------------------------------------------------------------------------------------------------


def test_every_sequence_can_be_read_while_the_logs_exist(dataset: Dataset):
    oracle = {0: rows_of(dataset.to_arrow())}
    for number in range(12):
        dataset.upsert([person(number, city="first"), person(number + 1, city=f"round {number}")])
        oracle[dataset.status().sequence] = rows_of(dataset.to_arrow())
        dataset.tombstone([key(number - 1)])
        oracle[dataset.status().sequence] = rows_of(dataset.to_arrow())
        if number % 3 == 2:
            fold_by_arrow(dataset, with_prune=number % 2 == 0)
    assert readable(dataset, oracle) == set(range(25))
    assert followed(dataset, oracle) == set(range(25))


def test_folds_stay_readable_when_the_log_of_changes_was_cleaned(dataset: Dataset):
    oracle: dict[int, State] = {}
    for number in range(9):
        dataset.upsert([person(number), person(number % 3, city=f"round {number}")])
        oracle[number + 1] = rows_of(dataset.to_arrow())
        if number % 3 == 1:
            fold_by_arrow(dataset)
    cut_log(dataset, "changes")
    assert readable(dataset, oracle) == {2, 5, 8, 9}
    assert followed(dataset, oracle) == {8, 9}
    with refuses(NotFound, None, "4", "0, 2, 5, 8 to 9"):
        dataset.to_arrow(at=4)
    with pytest.raises(NotFound, match=r"\b8\b"):
        dataset.changes_to_arrow(since=3)
    cut_log(dataset, "base")
    assert readable(dataset, oracle) == {8, 9}


def test_a_squashed_range_can_be_read_at_its_end_and_before_while_the_log_knows_its_parts(dataset: Dataset):
    oracle: dict[int, State] = {}
    for number in range(6):
        dataset.upsert([person(0, city=f"round {number}"), person(number)])
        if number == 3:
            dataset.tombstone([key(1)])
            oracle[5] = rows_of(dataset.to_arrow())
        oracle[dataset.status().sequence] = rows_of(dataset.to_arrow())
    assert squash_here(dataset) == (1, 7)
    dataset.upsert([person(20)])
    oracle[8] = rows_of(dataset.to_arrow())
    assert readable(dataset, oracle) == set(oracle)
    assert followed(dataset, oracle) == set(oracle)
    cut_log(dataset, "changes")
    assert readable(dataset, oracle) == {7, 8}
    assert followed(dataset, oracle) == set(oracle)  # rows that a squash left out were replaced before its end
    fold_by_arrow(dataset)
    assert readable(dataset, oracle) == {7, 8}
    assert followed(dataset, oracle) == set(oracle)


def test_a_batch_of_a_group_is_read_without_the_others(dataset: Dataset):
    store = store_of(dataset)
    writer = ChangeWriter(store)
    batches = []
    for number in range(3):
        batch_id = store.clock.new_id()
        table = to_table([person(number)], SCHEMA, dataset=NAME)
        rows = change_rows(
            table,
            op=Op.UPSERT,
            schema=store.change_schema,
            batch_id=batch_id,
            written_at=store.clock.now(),
            actor=None,
            reason=None,
        )
        batches.append(Batch(files=(staged_file(writer, rows, f"data/{batch_id}.parquet"),), rows=1))
    assert commit_batches(writer, batches) == [Ack(sequence=number, rows=1) for number in (1, 2, 3)]
    assert [dataset.to_arrow(at=number).num_rows for number in range(4)] == [0, 1, 2, 3]
    assert [dataset.changes_to_arrow(since=number).num_rows for number in range(4)] == [3, 2, 1, 0]


@pytest.mark.parametrize("table", ["base", "changes"])
def test_a_state_whose_files_were_deleted_is_not_found(dataset: Dataset, table: str):
    dataset.upsert([person(1)])
    fold_by_arrow(dataset)
    dataset.upsert([person(2)])
    dataset.upsert([person(3)])
    fold_by_arrow(dataset)
    store = store_of(dataset)
    doomed = store.base.at(1).files if table == "base" else store.changes.at(3).files
    assert doomed
    assert dataset.to_arrow(at=2).num_rows == 2
    for file in doomed:
        (dataset.path / table / file.path).unlink()
    with pytest.raises(NotFound, match=r"\b2\b"):
        dataset.to_arrow(at=2)
    assert dataset.to_arrow(at=3).num_rows == 3


def test_files_that_disappear_during_the_read_of_an_old_state_are_a_clear_error(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
):
    dataset.upsert([person(1)])
    fold_by_arrow(dataset)
    dataset.upsert([person(2)])
    fold_by_arrow(dataset)
    read = arrow_view.unfolded_rows

    def vacuumed_meanwhile(*arguments: object, **named: object) -> pa.Table:
        for file in store_of(dataset).base.at(1).files:
            (dataset.path / "base" / file.path).unlink(missing_ok=True)
        return read(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(arrow_view, "unfolded_rows", vacuumed_meanwhile)
    with pytest.raises(NotFound, match=r"\b1\b"):
        dataset.to_arrow(at=1)


def test_after_a_purge_the_past_is_gone(dataset: Dataset):
    for number in range(4):
        dataset.upsert([person(number)])
    fold_by_arrow(dataset)
    dataset.upsert([person(9)])
    fold_by_arrow(dataset)
    dataset.compact(purge=True)
    for sequence in range(5):
        with pytest.raises(NotFound, match=r"\b5\b"):
            dataset.to_arrow(at=sequence)
        with pytest.raises(NotFound, match=r"\b5\b"):
            dataset.changes_to_arrow(since=sequence)
    assert dataset.to_arrow(at=5).num_rows == 5
    dataset.upsert([person(10)])
    assert dataset.to_arrow(at=6).num_rows == 6
    assert dataset.changes_to_arrow(since=5).num_rows == 1
    with pytest.raises(NotFound, match=r"\d{4}-.*Z"):
        dataset.to_arrow(at=datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC))


@pytest.mark.parametrize("steps", [40, pytest.param(100, marks=pytest.mark.deep)])
def test_a_random_history_is_read_back_or_not_found_and_never_wrong(dataset: Dataset, steps: int):
    rng = random.Random(7)
    oracle = {0: rows_of(dataset.to_arrow())}
    keep = Retention(hours=1000, max_entries=12)
    for step in range(steps):
        match rng.choices(["upsert", "tombstone", "fold", "late", "squash", "checkpoint"], [6, 3, 1, 1, 1, 2])[0]:
            case "upsert":
                dataset.upsert([person(rng.randrange(12), city=f"step {step}") for _ in range(rng.randrange(1, 5))])
            case "tombstone":
                dataset.tombstone([key(rng.randrange(12))])
            case "fold":
                fold_by_arrow(dataset)
            case "late":
                fold_by_arrow(dataset, with_prune=False)
            case "squash":
                if dataset.status().backlog_files > 1:
                    squash_here(dataset)
            case _:
                table = rng.choice(["base", "changes"])
                write_checkpoint(dataset.path / table, durable=False)
                clean_log(dataset.path / table, retention=keep, clock=SystemClock())
        oracle[dataset.status().sequence] = rows_of(dataset.to_arrow())
        if step % 20 == 19:
            found = readable(dataset, oracle)
            assert {max(oracle), dataset.status().watermark} <= found
            assert followed(dataset, oracle) >= {n for n in oracle if n >= dataset.status().watermark}


# ---- by time -----------------------------------------------------------------------------------------------------


def first_load(dataset: Dataset, count: int) -> None:
    """Commit rows directly to base, as a first load does."""
    store = store_of(dataset)
    snapshot = store.snapshot()
    file = stage(store, store.base, people(count), {})
    store.base.commit(
        lambda _: Commit(
            kind=CommitKind.FIRST_LOAD,
            plan_version=snapshot.base.version,
            adds=(file,),
            transactions={APP_FOLD: snapshot.watermark, APP_CONTENT: 1},
        )
    )


@pytest.fixture
def timed(lake_path: Path, clock: SetClock) -> Iterator[Dataset]:
    """A dataset whose tables were created an hour before the test's clock starts.

    delta-rs takes the creation time from the machine's clock, so the log entries are rewritten.
    """
    with Lake.open(lake_path, settings=QUIET, clock=clock) as lake:
        made = create(lake)
        for entry in made.path.glob("*/_delta_log/*.json"):
            before = int((START - datetime.timedelta(hours=1)).timestamp() * 1000)
            entry.write_text(re.sub(r'"timestamp":\d+', f'"timestamp":{before}', entry.read_text()))
        yield lake.dataset(NAME)


def test_a_time_shows_the_newest_state_at_that_time(timed: Dataset, clock: SetClock):
    counts: dict[int, int] = {}
    for minute in range(1, 9):
        clock.set(minute)
        timed.upsert([person(minute)])
        counts[minute] = timed.to_arrow().num_rows
        if minute in (3, 6):
            clock.set(minute + 0.5)
            fold_by_arrow(timed)
    clock.set(60)
    for minute, count in counts.items():
        for seconds in (0, 29, 59):
            at = START + datetime.timedelta(minutes=minute, seconds=seconds)
            assert timed.to_arrow(at=at).num_rows == count
            assert timed.to_arrow(at=at.isoformat()).num_rows == count
    assert timed.to_arrow(at=START).num_rows == 0
    assert timed.to_arrow(at="2026-11-16T09:05:30+01:00").num_rows == 5
    with pytest.raises(NotFound, match="2026-11-16T06:00:00Z"):
        timed.to_arrow(at="2026-11-16T06:00:00Z")


def test_a_first_load_is_seen_from_its_own_time_on(timed: Dataset, clock: SetClock):
    clock.set(1)
    timed.upsert([person(500)])
    clock.set(2)
    first_load(timed, 10)
    clock.set(3)
    timed.upsert([person(501)])
    clock.set(9)
    counts = [timed.to_arrow(at=START + datetime.timedelta(minutes=n)).num_rows for n in range(5)]
    assert counts == [0, 1, 11, 12, 12]
    assert timed.to_arrow(at=0).num_rows == 10  # by sequence, a first load precedes all batches
    fold_by_arrow(timed)
    assert [timed.to_arrow(at=START + datetime.timedelta(minutes=n)).num_rows for n in range(5)] == counts


def test_a_clock_that_was_set_back_never_mixes_states(timed: Dataset, clock: SetClock):
    clock.set(10)
    timed.upsert([person(1)])
    clock.set(5)
    timed.upsert([person(2)])
    fold_by_arrow(timed)
    clock.set(12)
    timed.upsert([person(3)])
    clock.set(60)
    counts = [timed.to_arrow(at=START + datetime.timedelta(minutes=n)).num_rows for n in (4, 5, 9, 10, 11, 12)]
    assert counts == [0, 0, 0, 2, 2, 3]


def test_a_time_that_only_base_remembers_is_exact_where_nothing_was_written_after_a_fold(
    timed: Dataset, clock: SetClock
):
    counts = {0: 0}
    for hour in (1, 2, 3, 4):  # two batches and a fold, then a quiet time
        for minute in (1, 2):
            clock.set(hour * 60 + minute)
            timed.upsert([person(hour * 60 + minute), person(hour)])
        clock.set(hour * 60 + 10)
        fold_by_arrow(timed)
        counts[hour] = timed.to_arrow().num_rows
    clock.set(5 * 60)
    timed.upsert([person(500)])
    clock.set(6 * 60)

    def check() -> None:
        for hour, count in counts.items():
            for minute in (2, 5, 10, 59):
                if hour or minute > 2:
                    assert timed.to_arrow(at=START + datetime.timedelta(hours=hour, minutes=minute)).num_rows == count

    check()
    cut_log(timed, "changes")
    check()
    for hour in counts:
        if hour:  # between the two batches: that state no longer exists, and no other state is shown
            with pytest.raises(NotFound, match="0, 2, 4, 6, 8 to 9"):
                timed.to_arrow(at=START + datetime.timedelta(hours=hour, minutes=1.5))
    cut_log(timed, "base")
    with pytest.raises(NotFound):
        timed.to_arrow(at=START + datetime.timedelta(hours=3, minutes=30))
    assert timed.to_arrow(at=START + datetime.timedelta(hours=4, minutes=30)).num_rows == counts[4]
    assert timed.to_arrow(at=START + datetime.timedelta(hours=5)).num_rows == counts[4] + 1


def test_a_time_between_a_fold_and_a_squash_whose_first_change_is_undated_is_not_found(timed: Dataset, clock: SetClock):
    clock.set(1)
    timed.upsert([person(1)])
    clock.set(2)
    fold_by_arrow(timed)
    for minute in (10, 20, 30):
        clock.set(minute)
        timed.upsert([person(minute)])
    squash_here(timed)
    clock.set(40)
    fold_by_arrow(timed)
    cut_log(timed, "changes")
    clock.set(60)
    with pytest.raises(NotFound):  # between 2 and 10 it was sequence 1, but the 10 is not recorded
        timed.to_arrow(at=START + datetime.timedelta(minutes=5))
    assert timed.to_arrow(at=1).num_rows == 1
    assert timed.to_arrow(at=START + datetime.timedelta(minutes=45)).num_rows == 4


def test_a_time_before_the_log_of_changes_names_what_can_be_read(timed: Dataset, clock: SetClock):
    for minute in (1, 2, 3):
        clock.set(minute)
        timed.upsert([person(minute)])
        if minute == 2:
            fold_by_arrow(timed)
    cut_log(timed, "changes")
    clock.set(10)
    with refuses(NotFound, None, "0, 2 to 3", "2026-11-16T08:03:00Z"):
        timed.to_arrow(at=START + datetime.timedelta(minutes=1.5))
    assert timed.to_arrow(at=START + datetime.timedelta(minutes=2.5)).num_rows == 2
    assert timed.to_arrow(at=START + datetime.timedelta(minutes=3)).num_rows == 3
    assert timed.to_arrow(at=2).num_rows == 2


# ---- bad points --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "error"),
    [
        (-1, InvalidRequest),
        (True, InvalidRequest),
        (1.5, InvalidRequest),
        ("yesterday", InvalidRequest),
        ("", InvalidRequest),
        ("٣", InvalidRequest),
        ("2026-11-16", InvalidRequest),
        ("2026-11-16T08:00:00", InvalidRequest),
        (datetime.datetime(2026, 11, 16), InvalidRequest),  # noqa: DTZ001
        (datetime.date(2026, 11, 16), InvalidRequest),
        ("2999-01-01T00:00:00Z", InvalidRequest),
        (2, NotFound),
        (2**63 - 1, NotFound),
        (10**30, InvalidRequest),
        ("1970-01-01T00:00:00Z", NotFound),
        ("0001-01-01T00:00:00Z", NotFound),
    ],
)
def test_an_invalid_point_in_time_is_refused(dataset: Dataset, at: Any, error: type[Exception]):  # noqa: ANN401
    dataset.upsert([person(1)])
    for read in (dataset.to_arrow, dataset.head):
        with pytest.raises(error):
            read(at=at)


@pytest.mark.parametrize("since", [-1, True, "3", 1.0, None])
def test_an_invalid_since_is_refused(dataset: Dataset, since: Any):  # noqa: ANN401
    with pytest.raises(InvalidRequest, match=r"\bsince\b"):
        dataset.changes_to_arrow(since=since)


def test_a_dropped_dataset_is_gone_for_every_reader_of_the_past(lake: Lake, dataset: Dataset):
    dataset.upsert([person(1)])
    lake.drop(NAME)
    for read in (lambda: dataset.to_arrow(at=1), dataset.changes_to_arrow, dataset.history):
        with pytest.raises(Gone):
            read()


# ---- changes -----------------------------------------------------------------------------------------------------


def test_changes_carry_what_was_done_by_whom_and_when(dataset: Dataset):
    dataset.upsert([person(1), person(2)])
    dataset.tombstone([key(1)], actor="dpo", reason="request 17")
    rows = dataset.changes_to_arrow(since=0)
    own = ["_op", "_pos", "_batch_id", "_written_at", "_actor", "_reason", "_seq"]
    assert rows.column_names == [*SCHEMA.names, *own]
    found = [(r["id"], r["_op"], r["_seq"], r["_pos"], r["_actor"], r["_reason"]) for r in rows.to_pylist()]
    assert found == [
        (key(1), "U", 1, 0, None, None),
        (key(2), "U", 1, 1, None, None),
        (key(1), "D", 2, 0, "dpo", "request 17"),
    ]
    assert dataset.changes_to_arrow(since=2).num_rows == 0
    assert dataset.changes_to_arrow(since=2).column_names == rows.column_names
    with refuses(NotFound, None, "3", "2"):
        dataset.changes_to_arrow(since=3)


def test_a_limit_never_cuts_a_batch(dataset: Dataset):
    for count in (3, 4, 1):
        dataset.upsert([person(number) for number in range(count)])
    assert [dataset.changes_to_arrow(limit=limit).num_rows for limit in (1, 3, 6, 7, 8, 100)] == [3, 3, 3, 7, 8, 8]
    with pytest.raises(InvalidRequest, match=r"\b1\b"):
        dataset.changes_to_arrow(limit=0)
    since, seen = 0, 0
    while (page := dataset.changes_to_arrow(since=since, limit=2)).num_rows:
        seen += page.num_rows
        since = page.column("_seq").to_pylist()[-1]
    assert seen == 8


# ---- history -----------------------------------------------------------------------------------------------------


def test_history_lists_what_each_commit_did(dataset: Dataset):
    dataset.upsert([person(1), person(2)])
    dataset.tombstone([key(1)], actor="dpo", reason="a person's request")
    fold_by_arrow(dataset)
    dataset.upsert([person(3)])
    entries = dataset.history()
    by_table: dict[str, list[str]] = {"changes": [], "base": []}
    for entry in entries:
        by_table[entry.table].append(entry.operation)
    assert by_table == {
        "changes": ["upsert", "prune", "tombstone", "upsert", "create"],
        "base": ["fold", "create"],
    }
    assert [entry.at for entry in entries] == sorted((entry.at for entry in entries), reverse=True)
    assert not any(entry.foreign for entry in entries)
    upsert, prune, fold, tombstone, first = entries[:5]
    assert (first.first_sequence, first.last_sequence, first.rows_added, first.tombstones) == (1, 1, 2, 0)
    assert (tombstone.first_sequence, tombstone.rows_added, tombstone.tombstones) == (2, 1, 1)
    assert (fold.folded_to, fold.rows_added, fold.files_added, fold.rows_removed) == (2, 1, 1, 0)
    assert (prune.rows_removed, prune.files_removed) == (3, 2)
    assert prune.bytes_removed == first.bytes_added + tombstone.bytes_added > 0
    assert upsert.user == first.user is not None
    assert upsert.pid is not None
    assert upsert.engine == "siltstone"
    assert dataset.history(2) == entries[:2]
    with pytest.raises(InvalidRequest, match=r"\b1\b"):
        dataset.history(0)


def test_a_delta_log_never_names_the_actor_of_a_tombstone(dataset: Dataset):
    dataset.upsert([person(1)])
    dataset.tombstone([key(1)], actor="Grace Hopper", reason="a private reason")
    fold_by_arrow(dataset)
    log = b"".join(path.read_bytes() for path in dataset.path.glob("*/_delta_log/*"))
    assert b"tombstones" in log
    assert b"Grace" not in log
    assert b"private" not in log


def test_history_after_a_purge_is_that_of_the_purge_alone(dataset: Dataset):
    for number in range(3):
        dataset.upsert([person(number)])
    fold_by_arrow(dataset)
    assert len(dataset.history()) == 7
    dataset.compact(purge=True)
    assert [(entry.table, entry.operation) for entry in dataset.history()] == [("base", "epoch"), ("changes", "prune")]


def test_history_shows_a_foreign_commit_as_what_it_is(dataset: Dataset):
    from deltalake import write_deltalake

    dataset.upsert([person(1)])
    fold_by_arrow(dataset)
    write_deltalake(dataset.path / "base", people(3, start=100), mode="append")
    [newest, *_] = [entry for entry in dataset.history() if entry.table == "base"]
    assert (newest.operation, newest.foreign, newest.rows_added) == ("WRITE", True, 3)
    assert newest.engine is not None
    assert newest.engine.startswith("delta-rs")
    for refused in (
        dataset.to_arrow,
        dataset.status,
        lambda: dataset.get([key(1)]),
        lambda: dataset.upsert([person(2)]),
    ):
        with refuses(Corruption, Reason.FOREIGN_COMMIT):
            refused()
