"""The hot cache over real datasets, without Spark: the merged view, fresh after every change of a dataset."""

import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from siltstone import Dataset, Lake, NotFound, Settings
from siltstone.compaction.operations.garbage_collection import purge_files
from siltstone.model.columns import APP_CONTENT
from siltstone.model.commit import Commit, CommitKind
from siltstone.query.hot import NotResident, change_set, fill, memory_reclaim
from tests.support import clicks
from tests.support.folds import fold_by_arrow
from tests.support.hot import ask, assert_same, bag, fold_log, hot_table
from tests.support.internals import store_of
from tests.support.people import NAME, create, key, people, person

SETTINGS = Settings(durable=False, squash_files=0)
WAIT_SECONDS = 60


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with Lake.open(tmp_path / "lake", settings=SETTINGS) as opened:
        yield opened


@pytest.fixture
def dataset(lake: Lake) -> Dataset:
    made = create(lake)
    made.upsert(people(100))
    return made


def until(is_so: Callable[[], bool]) -> None:
    """Wait for the background thread of the cache."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def table_name(lake: Lake) -> str:
    with lake.hot.snapshot([NAME]) as hot:
        return hot.tables[NAME]


# ---- the same rows as the merged view ----------------------------------------------------------------------------


@pytest.mark.parametrize("group_rows", [1, 500_000])
@pytest.mark.parametrize("seed", range(2))
def test_a_keyed_dataset_has_the_same_rows_after_each_step_of_a_random_history(
    lake: Lake, seed: int, group_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_set, "GROUP_ROWS", group_rows)
    chance = random.Random(seed)
    made = create(lake)
    for step in range(20):
        match chance.randrange(8):
            case 0:
                made.tombstone([key(chance.randrange(40)) for _ in range(3)])
            case 1:
                made.squash()
            case 2:
                fold_by_arrow(made, files=2, with_prune=chance.random() < 0.7)
            case 3:
                fold_by_arrow(made)
                purge_files(store_of(made))
            case 4:
                lake.hot.evict(NAME)
            case _:
                numbers = [chance.randrange(40) for _ in range(4)]
                made.upsert([person(number, n=step) for number in numbers])
        if chance.random() < 0.6:
            lake.hot.fill(NAME)
            assert_same(lake, made)


@pytest.mark.parametrize("survivor", [None, "first", "last"])
@pytest.mark.parametrize("seed", range(2))
def test_a_log_has_the_same_rows_after_each_step_of_a_random_history(
    lake: Lake, seed: int, survivor: str | None
) -> None:
    chance = random.Random(seed)
    given: dict[str, Any] = (
        {"dedup_by": ["at", "visitor", "account", "region"], "survivor": survivor} if survivor else {}
    )
    log = clicks.create(lake, **given)
    for step in range(20):
        match chance.randrange(8):
            case 0:
                log.tombstone([{"visitor": f"V-{chance.randrange(5)}"}])
            case 1:
                log.tombstone([{"visitor": f"V-{chance.randrange(5)}", "account": chance.randrange(2)}])
            case 2:
                log.squash()
            case 3:
                fold_log(log, with_prune=chance.random() < 0.7)
            case 4:
                lake.hot.evict(clicks.NAME)
            case _:
                log.append([clicks.click(chance.randrange(12), n=step * 10 + at) for at in range(4)])
        if chance.random() < 0.6:
            lake.hot.fill(clicks.NAME)
            assert_same(lake, log)


def test_a_fill_in_many_pieces_has_the_same_rows(lake: Lake, dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fill, "PIECE_ROWS", 20)
    monkeypatch.setattr(fill, "BATCH_ROWS", 7)
    fold_by_arrow(dataset, files=3, group_rows=10)
    dataset.upsert([person(5, n=-5), person(200)])
    dataset.tombstone([key(6)])
    calls: list[tuple[int, int]] = []
    lake.hot.fill(NAME, progress=lambda done, total: calls.append((done, total)))
    assert_same(lake, dataset)
    assert calls[-1] == (102, 103)
    assert len(calls) >= 5


def test_an_empty_dataset_can_be_hot(lake: Lake) -> None:
    made = create(lake)
    lake.hot.fill(NAME)
    assert_same(lake, made)
    made.upsert([person(1)])
    assert_same(lake, made)


# ---- freshness ---------------------------------------------------------------------------------------------------


def fills(lake: Lake) -> int:
    return lake.hot.stats().entries[0].fills


def test_a_commit_that_only_moves_rows_applies_and_fills_nothing(lake: Lake, dataset: Dataset) -> None:
    lake.hot.fill(NAME)
    dataset.upsert([person(3, n=33)])
    dataset.upsert([person(4, n=44)])
    assert_same(lake, dataset)
    before = lake.hot.stats().entries[0]
    dataset.squash()
    assert_same(lake, dataset)
    fold_by_arrow(dataset)
    assert_same(lake, dataset)
    purge_files(store_of(dataset))
    assert_same(lake, dataset)
    after = lake.hot.stats().entries[0]
    assert (after.fills, after.refreshes, after.applied_rows) == (1, before.refreshes, before.applied_rows)


def test_changes_that_were_pruned_unseen_are_read_from_files_that_are_still_there(lake: Lake, dataset: Dataset) -> None:
    lake.hot.fill(NAME)
    dataset.upsert([person(3, n=33)])
    fold_by_arrow(dataset)
    dataset.upsert([person(4, n=44)])
    assert_same(lake, dataset)
    assert fills(lake) == 1


def test_changes_that_were_pruned_and_deleted_unseen_mean_a_new_fill(lake: Lake, dataset: Dataset) -> None:
    lake.hot.fill(NAME)
    dataset.upsert([person(3, n=33)])
    fold_by_arrow(dataset)
    purge_files(store_of(dataset))
    dataset.upsert([person(4, n=44)])
    assert_same(lake, dataset)
    assert fills(lake) == 2


def test_a_new_content_version_means_a_new_fill(lake: Lake, dataset: Dataset) -> None:
    fold_by_arrow(dataset)
    lake.hot.fill(NAME)
    store = store_of(dataset)
    [file] = store.snapshot().base.files
    state = lake.hot.stats().entries[0].sequence
    store.base.commit(
        lambda parent: Commit(
            kind=CommitKind.FIRST_LOAD,
            plan_version=parent.version,
            removes=(file,),
            transactions={APP_CONTENT: (parent.transaction(APP_CONTENT) or 0) + 1},
        )
    )
    assert ask(lake, NAME, "SELECT count(*) FROM {t}") == 0
    assert (fills(lake), lake.hot.stats().entries[0].sequence) == (2, state)


def test_altered_columns_mean_a_new_fill_and_another_state(lake: Lake, dataset: Dataset) -> None:
    lake.hot.fill(NAME)
    with lake.hot.snapshot([NAME]) as hot:
        before = hot.states[NAME]
    dataset.alter(add="note STRING", defaults={"note": "old"})
    assert_same(lake, dataset)
    with lake.hot.snapshot([NAME]) as hot:
        after = hot.states[NAME]
    assert (before.sequence, before.content) == (after.sequence, after.content)
    assert before != after
    assert ask(lake, NAME, "SELECT count(*) FROM {t} WHERE note = 'old'") == 100


@pytest.mark.usefixtures("dataset")
def test_a_dropped_dataset_is_not_found_and_a_new_one_of_its_name_is_itself(lake: Lake) -> None:
    lake.hot.fill(NAME)
    lake.drop(NAME)
    with pytest.raises(NotFound), lake.hot.snapshot([NAME]):
        pass
    made = create(lake)
    made.upsert([person(1)])
    with pytest.raises(NotResident), lake.hot.snapshot([NAME]):
        pass
    lake.hot.fill(NAME)
    assert_same(lake, made)


@pytest.mark.usefixtures("dataset")
def test_a_dataset_that_another_process_drops_and_creates_is_filled_again(lake: Lake) -> None:
    lake.hot.fill(NAME)
    with Lake.open(lake.path, settings=SETTINGS) as other:
        other.drop(NAME)
        create(other).upsert([person(7)])
    assert ask(lake, NAME, "SELECT min(n) FROM {t}") == 7


def test_a_dataset_that_was_restored_from_an_earlier_copy_is_filled_again(
    lake: Lake, dataset: Dataset, tmp_path: Path
) -> None:
    shutil.copytree(dataset.path, tmp_path / "copy")
    dataset.upsert([person(1, n=-1)])
    lake.hot.fill(NAME)
    assert ask(lake, NAME, "SELECT min(n) FROM {t}") == -1
    shutil.rmtree(dataset.path)
    shutil.copytree(tmp_path / "copy", dataset.path)
    assert ask(lake, NAME, "SELECT min(n) FROM {t}") == 0


def test_a_reader_sees_one_state_however_long_it_reads(lake: Lake, dataset: Dataset) -> None:
    lake.hot.fill(NAME)
    with lake.hot.snapshot([NAME]) as hot:
        count = f"SELECT count(*), sum(n) FROM {hot.tables[NAME]}"
        before = hot.cursor.execute(count).fetchall()
        dataset.upsert(people(50, start=500))
        assert ask(lake, NAME, "SELECT count(*) FROM {t}") == 150
        assert hot.cursor.execute(count).fetchall() == before
        assert hot.states[NAME].sequence == 1
    assert ask(lake, NAME, "SELECT count(*) FROM {t}") == 150


@pytest.mark.usefixtures("dataset")
def test_two_datasets_are_joined_in_one_query(lake: Lake) -> None:
    other = create(lake, "crm.sales.others")
    other.upsert(people(30, start=90))
    for name in (NAME, "crm.sales.others"):
        lake.hot.fill(name)
    with lake.hot.snapshot([NAME, "crm.sales.others"]) as hot:
        text = f"SELECT count(*) FROM {hot.tables[NAME]} JOIN {hot.tables['crm.sales.others']} USING (id)"
        assert hot.cursor.execute(text).fetchone() == (10,)


def test_a_failed_query_does_not_affect_the_next(lake: Lake, dataset: Dataset) -> None:
    lake.hot.fill(NAME)
    for _ in range(3):
        with pytest.raises(Exception, match=r"not exist|not found"), lake.hot.snapshot([NAME]) as hot:
            hot.cursor.execute(f"SELECT nothing FROM {hot.tables[NAME]}")
    assert_same(lake, dataset)


def noise(count: int, *, seed: int = 0) -> pa.Table:
    """Rows that hardly compress: about 60 bytes each."""
    chance = random.Random(seed)
    rows = people(count)
    texts = pa.array([chance.randbytes(30).hex() for _ in range(count)])
    return rows.set_column(2, "city", texts)


# ---- budget, pins, figures ---------------------------------------------------------------------------------------


def test_a_fill_that_would_not_fit_is_refused_before_it_starts(tmp_path: Path) -> None:
    with Lake.open(tmp_path / "lake", settings=Settings(durable=False, hot_cache_mb=1)) as lake:
        made = create(lake)
        made.upsert(noise(25_000))
        calls: list[int] = []
        with pytest.raises(NotResident, match=r"1 MB"):
            lake.hot.fill(NAME, progress=lambda done, _: calls.append(done))
        assert calls == []
        assert not lake.hot.want(NAME).admitted
        assert lake.hot.stats().entries[0].misses == 1


def test_a_fill_that_outgrows_its_estimate_is_stopped_and_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fill, "ESTIMATE_MARGIN", 0.0)
    with Lake.open(tmp_path / "lake", settings=Settings(durable=False, hot_cache_mb=1)) as lake:
        made = create(lake)
        made.upsert(noise(40_000))
        with pytest.raises(NotResident, match=r"1 MB"):
            lake.hot.fill(NAME)
        entry = lake.hot.stats().entries[0]
        assert (entry.resident, entry.size_bytes) == (False, 0)
        assert not lake.hot.decide(NAME).admitted


def test_of_three_datasets_the_budget_holds_the_queried_one(tmp_path: Path) -> None:
    names = [f"crm.sales.t{number}" for number in range(3)]
    with Lake.open(tmp_path / "lake", settings=Settings(durable=False, hot_cache_mb=3)) as lake:
        for name in names:
            create(lake, name).upsert(noise(30_000))
        lake.hot.fill(names[0])
        for _ in range(3):
            for name in names:
                if lake.hot.decide(name).resident:
                    assert ask(lake, name, "SELECT count(*) FROM {t}") == 30_000
                else:
                    lake.hot.want(name)
        by_name = {entry.name: entry for entry in lake.hot.stats().entries}
        assert (by_name[names[0]].hits, by_name[names[0]].evictions) == (3, 0)
        lake.hot.fill(names[1])
        by_name = {entry.name: entry for entry in lake.hot.stats().entries}
        assert [by_name[name].resident for name in names] == [False, True, False]
        assert names[1] in by_name[names[0]].reason
        lake.hot.pin(names[1])
        with pytest.raises(NotResident):
            lake.hot.fill(names[2])
        lake.hot.unpin(names[1])
        assert lake.hot.fill(names[2]).resident


def test_a_missed_dataset_is_filled_after_the_answer(lake: Lake, dataset: Dataset) -> None:
    with pytest.raises(NotResident), lake.hot.snapshot([NAME]):
        pass
    assert lake.hot.want(NAME).admitted
    until(lambda: lake.hot.decide(NAME).resident)
    assert_same(lake, dataset)
    assert (lake.hot.stats().entries[0].misses, fills(lake)) == (1, 1)


def test_statistics_count_hits_refreshes_and_evictions(lake: Lake, dataset: Dataset) -> None:
    lake.hot.pin(NAME)
    dataset.upsert([person(1, n=-1), person(1000)])
    assert_same(lake, dataset)
    [entry] = lake.hot.stats().entries
    assert (entry.resident, entry.pinned, entry.rows, entry.hits, entry.sequence) == (True, True, 101, 1, 2)
    assert (entry.refreshes, entry.applied_rows) == (1, 3)
    assert entry.size_bytes > 0
    assert entry.fill_seconds > 0
    assert entry.last_use is not None
    assert lake.hot.evict(NAME)
    assert not lake.hot.evict(NAME)
    [entry] = lake.hot.stats().entries
    assert (entry.resident, entry.pinned, entry.size_bytes, entry.evictions) == (False, False, 0, 1)
    assert lake.hot.stats().to_dict()["datasets"][0]["reason"]


def test_a_table_with_many_deleted_rows_is_rewritten(
    lake: Lake, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_reclaim, "PACK_ROWS", 10)
    lake.hot.fill(NAME)
    first = table_name(lake)
    dataset.tombstone([key(number) for number in range(60)])
    assert_same(lake, dataset)
    until(lambda: table_name(lake) != first)
    assert_same(lake, dataset)
    dataset.upsert(people(100, start=300))
    assert_same(lake, dataset)


def test_after_a_purge_by_another_process_no_purged_row_stays_in_memory(lake: Lake, dataset: Dataset) -> None:
    lake.hot.fill(NAME)
    first = table_name(lake)
    dataset.tombstone([key(3)])
    assert_same(lake, dataset)
    fold_by_arrow(dataset)
    base = store_of(dataset).base
    base.commit(lambda parent: Commit(kind=CommitKind.EPOCH, plan_version=parent.version, epoch=7))
    until(lambda: table_name(lake) != first)
    assert_same(lake, dataset)
    assert fills(lake) == 1


def test_a_purge_or_drop_of_the_same_lake_evicts_the_rows(lake: Lake, dataset: Dataset) -> None:
    lake.hot.fill(NAME)
    store_of(dataset).forget()
    assert not lake.hot.decide(NAME).resident
    assert lake.hot.fill(NAME).resident


# ---- many at once ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("dataset")
def test_a_partly_fetched_result_blocks_no_other_query(lake: Lake) -> None:
    lake.hot.fill(NAME)
    for _ in range(2):  # the second dataset gets the transaction of the first
        with lake.hot.snapshot([NAME]) as hot:
            assert hot.cursor.sql(f"SELECT n FROM {hot.tables[NAME]}").to_arrow_table().num_rows == 100
            hot.cursor.execute(f"SELECT n FROM {hot.tables[NAME]}").fetchone()


@pytest.mark.usefixtures("dataset")
def test_threads_that_query_the_same_missing_dataset_fill_it_once(lake: Lake) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: lake.hot.fill(NAME), range(8)))
    assert fills(lake) == 1


def test_many_threads_query_while_one_writes_and_one_evicts(lake: Lake, dataset: Dataset) -> None:
    lake.hot.fill(NAME)
    stop = threading.Event()
    wrong: list[object] = []

    def read() -> int:
        count = 0
        while not stop.is_set():
            before = acknowledged[0]
            try:
                seen = ask(lake, NAME, "SELECT max(n) FROM {t}")
            except NotResident:
                continue
            if seen < before:
                wrong.append((before, seen))
            count += 1
        return count

    def disturb() -> None:
        while not stop.wait(0.05):
            lake.hot.evict(NAME)
            lake.hot.fill(NAME)

    acknowledged = [99]
    with ThreadPoolExecutor(5) as pool:
        readers = [pool.submit(read) for _ in range(4)]
        pool.submit(disturb)
        for number in range(1000, 1040):
            dataset.upsert([person(number % 100, n=number)])
            acknowledged[0] = number
        stop.set()
        assert sum(reader.result() for reader in readers) > 0
    assert wrong == []
    lake.hot.fill(NAME)
    assert_same(lake, dataset)


def test_an_evicted_table_serves_its_readers_to_the_end(lake: Lake, dataset: Dataset) -> None:
    lake.hot.fill(NAME)
    with lake.hot.snapshot([NAME]) as hot:
        assert lake.hot.evict(NAME)
        rows = hot.cursor.sql(f"SELECT * FROM {hot.tables[NAME]}").to_arrow_table()
        assert bag(rows.cast(hot.schemas[NAME])) == bag(dataset.to_arrow())
    assert not lake.hot.decide(NAME).resident


# ---- nothing outside ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("dataset")
@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM read_text('/etc/hosts')",
        "SELECT * FROM '/etc/hosts'",
        "SELECT * FROM glob('/*')",
        "COPY (SELECT 1) TO '/tmp/never.csv'",
        "ATTACH '/tmp/never.db'",
        "INSTALL httpfs",
        "LOAD '/tmp/never.duckdb_extension'",
        "SET enable_external_access = true",
        "SET memory_limit = '100GB'",
        "SET lock_configuration = false",
        "RESET TimeZone",
        "SELECT * FROM variable",
    ],
)
def test_the_engine_has_no_external_access(lake: Lake, text: str) -> None:
    variable = pa.table({"a": [1]})  # a Python variable of this process, not a table of the engine
    lake.hot.fill(NAME)
    with pytest.raises(duckdb.Error), lake.hot.snapshot([NAME]) as hot:
        hot.cursor.execute(text)
    assert variable.num_rows == 1
    assert hot_table(lake, NAME).num_rows == 100


def test_a_name_without_a_dataset_gets_no_counters(lake: Lake) -> None:
    with pytest.raises(NotFound):
        lake.hot.decide(NAME)
    assert lake.hot.stats().entries == ()
