"""`Dataset.get`: rows by key, from changes and base files of any layout, with a cache that follows the dataset."""

import datetime
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from siltstone import Dataset, Lake
from siltstone.config import Settings
from siltstone.dataset.read import point_lookup as lookup_module
from siltstone.delta.row_group_reader import FileReader
from siltstone.errors import Corruption, Gone, InvalidRequest
from tests.support.folds import fold_by_arrow
from tests.support.internals import cached_reads, parts_of, store_of
from tests.support.kinds import KINDS, Kind, plain_rows, random_values, to_table
from tests.support.model import Model
from tests.support.people import SCHEMA, create, key, people, person
from tests.support.refusals import refused as refuses
from tests.support.unchecked import write_unchecked

FAST = Settings(durable=False)
NOTHING_KEPT = Settings(durable=False, lookup_cache_mb=0)


def opened(path: Path, settings: Settings = FAST) -> Dataset:
    """Another handle, as another process has it."""
    return Lake.open(path, settings=settings).dataset("crm.sales.people")


def made(path: Path, count: int = 0, settings: Settings = FAST, **layout: Any) -> Dataset:  # noqa: ANN401
    dataset = create(Lake.open(path, settings=settings))
    if count:
        dataset.upsert(people(count))
        fold_by_arrow(dataset, **layout)
    return dataset


def ids(table: pa.Table) -> list[str]:
    return list(table.column("id").to_pylist())


# ---- answers -----------------------------------------------------------------------------------------------------


def test_rows_come_in_the_order_of_the_keys_each_once_and_unknown_ones_not_at_all(lake_path: Path):
    dataset = made(lake_path, 100, files=3, group_rows=10)
    dataset.upsert([person(200, city="new"), person(7, city="changed")])
    found = dataset.get([key(42), key(7), "nobody", key(200), key(42), key(0)])
    assert ids(found) == [key(42), key(7), key(200), key(0)]
    assert found.column("city").to_pylist() == ["city 0", "changed", "new", "city 0"]
    assert found.schema == SCHEMA


def test_no_keys_and_no_rows_give_an_empty_table_of_the_datasets_columns(lake_path: Path):
    dataset = made(lake_path)
    for found in (dataset.get([]), dataset.get(["a"]), dataset.get(["a"], raw=True)):
        assert (found.num_rows, found.schema) == (0, SCHEMA)


def test_only_requested_columns_are_returned_in_that_order(lake_path: Path):
    dataset = made(lake_path, 50, group_rows=10)
    dataset.upsert([person(3, city="changed")])
    for _ in range(3):
        found = dataset.get([key(3), key(4)], columns=["city", "n"])
        assert found.to_pydict() == {"city": ["changed", "city 4"], "n": [3, 4]}
    assert dataset.get([key(4)], columns="n").to_pylist() == [{"n": 4}]


@pytest.mark.parametrize(("columns", "facts"), [(["nope"], ("'nope'",)), ([], ()), (["n", "n"], ())])
def test_unknown_columns_are_rejected(lake_path: Path, columns: list[str], facts: tuple[str, ...]):
    with refuses(InvalidRequest, None, *facts):
        made(lake_path).get(["a"], columns=columns)


@pytest.mark.parametrize("keys", ["P000001", [None], [1], [("a", "b")], [{"city": "x"}], ["x" * 2000], {"id": "a"}, 7])
def test_bad_keys_are_refused_as_a_tombstone_refuses_them(lake_path: Path, keys: object):
    dataset = made(lake_path, 3)
    with pytest.raises(InvalidRequest) as refused:
        dataset.get(keys)
    with pytest.raises(InvalidRequest) as also_refused:
        dataset.tombstone(keys)
    assert str(refused.value) == str(also_refused.value)


def test_too_many_keys_are_rejected_with_the_advice_to_join(lake_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("siltstone.dataset.read.point_lookup.MAX_LOOKUP_KEYS", 2)
    with pytest.raises(InvalidRequest, match="3"):
        made(lake_path).get(["a", "b", "c"])


def test_keys_come_as_arrow_or_pandas_too(lake_path: Path):
    dataset = made(lake_path, 5)
    table = pa.table({"id": [key(1), key(3)]})
    assert ids(dataset.get(table)) == ids(dataset.get(table.to_pandas())) == [key(1), key(3)]


def test_tombstones_hide_and_raw_shows(lake_path: Path):
    dataset = made(lake_path, 10, group_rows=4)
    dataset.upsert([person(3, city="changed"), person(20)])
    dataset.tombstone([key(3), key(4), key(20)])
    wanted = [key(3), key(4), key(5), key(20)]
    assert ids(dataset.get(wanted)) == [key(5)]
    assert dataset.get(wanted, raw=True).column("city").to_pylist() == ["changed", "city 4", "city 5", "city 6"]
    dataset.upsert([person(4, city="back")])
    assert dataset.get(wanted).column("city").to_pylist() == ["back", "city 5"]


@pytest.mark.parametrize("listed_rows", [0, 20_000], ids=["searched", "listed"])
def test_the_last_of_many_changes_of_a_key_is_returned(
    lake_path: Path, listed_rows: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lookup_module, "LISTED_ROWS", listed_rows)
    dataset = made(lake_path, 20, group_rows=5)
    for number in range(30):
        dataset.upsert([person(3, n=number), person(3, n=number + 100)])
        if number % 3 == 2:
            dataset.tombstone([key(3)])
        expected = [] if number % 3 == 2 else [number + 100]
        assert dataset.get([key(3)]).column("n").to_pylist() == expected
        assert dataset.get([key(3)], raw=True).column("n").to_pylist() == [number + 100]


def test_changes_that_are_folded_and_not_pruned_yet_do_not_count(lake_path: Path):
    dataset = made(lake_path)
    dataset.upsert([person(1, city="old")])
    dataset.tombstone([key(2)])
    fold_by_arrow(dataset, with_prune=False)
    assert dataset.get([key(1), key(2)]).column("city").to_pylist() == ["old"]
    dataset.upsert([person(2, city="new")])
    assert dataset.get([key(1), key(2)]).column("city").to_pylist() == ["old", "new"]


# ---- layouts and types -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"shuffled": True, "files": 3},
        {"statistics": False, "files": 2},
        {"statistics": ["n"]},
    ],
    ids=["sorted", "unsorted", "no-statistics", "none-of-the-key"],
)
@pytest.mark.parametrize("settings", [FAST, NOTHING_KEPT], ids=["kept", "nothing-kept"])
def test_neither_order_nor_statistics_decide_what_is_found(lake_path: Path, layout: dict[str, Any], settings: Settings):
    dataset = made(lake_path, 500, settings, group_rows=40, **layout)
    rng = random.Random(5)
    for size in (1, 2, 60, 1, 1, 300):
        numbers = rng.sample(range(700), size)
        expected = [key(number) for number in numbers if number < 500]
        found = dataset.get([key(number) for number in numbers])
        assert ids(found) == expected
        assert found.column("n").to_pylist() == [number for number in numbers if number < 500]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("layout", [{}, {"shuffled": True}], ids=["sorted", "shuffled"])
@hypothesis_settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32))
def test_every_key_type_is_found_as_the_whole_view_has_it(
    kind: Kind, layout: dict[str, Any], seed: int, tmp_path_factory: pytest.TempPathFactory
):
    rng = random.Random(seed)
    dataset = Lake.open(tmp_path_factory.mktemp("lake"), settings=FAST).create("a.b.c", kind.schema, key=kind.key)
    model = Model(kind)

    def write() -> None:
        for _ in range(3):
            keys = rng.choices(kind.keys, k=rng.randrange(1, 2 * len(kind.keys)))
            if rng.random() < 0.3:
                dataset.tombstone(as_dicts(kind, keys))
                model.tombstone(keys)
            else:
                rows = [kind.row(one, random_values(rng)) for one in keys]
                dataset.upsert(to_table(kind, rows))
                model.upsert(rows)

    write()
    fold_by_arrow(dataset, files=2, group_rows=3, **layout)
    model.fold()
    for _ in range(2):
        for wanted in ([rng.choice(kind.keys)], rng.sample(kind.keys, len(kind.keys)), list(kind.keys[:2])):
            for raw in (False, True):
                found = dataset.get(as_dicts(kind, wanted), raw=raw).to_pylist()
                there = model.raw if raw else model.rows
                assert plain_rows(found) == plain_rows([there[k] for k in model_keys(model, wanted) if k in there])
        write()


def as_dicts(kind: Kind, keys: Sequence[tuple[Any, ...]]) -> list[dict[str, Any]]:
    return [dict(zip(kind.key, one, strict=True)) for one in keys]


def model_keys(model: Model, keys: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [model.key_of(dict(zip(model.kind.key, one, strict=True))) for one in keys]


def test_dates_and_times_that_python_cannot_hold_are_found(lake_path: Path):
    schema = pa.schema(
        [pa.field("day", pa.date32(), nullable=False), pa.field("at", pa.timestamp("us"), nullable=False)]
    )
    dataset = Lake.open(lake_path, settings=FAST).create("a.b.c", schema, key=["day", "at"])
    days = pa.array([-1_000_000, 0, 20_000, 2**31 - 1], pa.int32()).cast(pa.date32())
    times = pa.array([-(2**62), 0, 1, 2**62], pa.int64()).cast(pa.timestamp("us"))
    rows = pa.table([days, times], schema=schema)
    write_unchecked(dataset, rows)
    assert dataset.get(rows).equals(rows)
    fold_by_arrow(dataset, group_rows=2)
    for _ in range(3):
        assert dataset.get(rows).equals(rows)
        assert dataset.get(rows.slice(3)).equals(rows.slice(3))
        assert dataset.get([(datetime.date(1970, 1, 1), datetime.datetime(1970, 1, 1))]).equals(rows.slice(1, 1))  # noqa: DTZ001


def test_of_rows_with_one_key_the_last_by_the_named_columns_wins(lake_path: Path):
    dataset = Lake.open(lake_path, settings=FAST).create("a.b.c", "id STRING NOT NULL, n BIGINT, x STRING", key="id")
    rows = [("a", 2, "two"), ("a", 1, "one"), ("a", None, "none"), ("b", 1, "first"), ("b", 1, "second")]
    dataset.upsert([dict(zip(("id", "n", "x"), row, strict=True)) for row in rows], order_by="n")
    assert dataset.get(["a", "b"]).column("x").to_pylist() == ["two", "second"]
    for name in ("nope", ""):
        with pytest.raises(InvalidRequest, match=repr(name)):
            dataset.upsert([{"id": "a"}], order_by=name)


def test_a_composite_key_is_found_only_as_a_whole(lake_path: Path):
    schema = "region STRING NOT NULL, no BIGINT NOT NULL, x BIGINT"
    dataset = Lake.open(lake_path, settings=FAST).create("a.b.c", schema, key=["region", "no"])
    dataset.upsert([{"region": r, "no": n, "x": n} for r in "ab" for n in range(100) if (r == "a") == (n % 2 == 0)])
    fold_by_arrow(dataset, group_rows=7)
    found = dataset.get([("a", 2), ("b", 2), ("b", 3), ("a", 3)])
    assert found.to_pylist() == [{"region": "a", "no": 2, "x": 2}, {"region": "b", "no": 3, "x": 3}]


def test_an_inner_field_with_the_name_of_the_key_is_not_the_key(lake_path: Path):
    schema = pa.schema([("place", pa.struct([("id", pa.string())])), pa.field("id", pa.string(), nullable=False)])
    dataset = Lake.open(lake_path, settings=FAST).create("a.b.c", schema, key="id")
    rows = [{"place": {"id": letter * 2}, "id": letter} for letter in "abcdef"]
    dataset.upsert(rows)
    fold_by_arrow(dataset, group_rows=2)
    assert dataset.get(["e", "bb", "b"]).to_pylist() == [rows[4], rows[1]]


# ---- reading little ----------------------------------------------------------------------------------------------


def test_only_row_groups_that_can_hold_the_key_are_read(lake_path: Path, monkeypatch: pytest.MonkeyPatch):
    dataset = made(lake_path, 1000, files=4, group_rows=50)
    read: list[int] = []
    plain = FileReader.columns

    def spied(self: FileReader, group: int, names: Sequence[str], **options: bool) -> pa.Table:
        read.append(group)
        return plain(self, group, names, **options)

    monkeypatch.setattr(FileReader, "columns", spied)
    assert ids(dataset.get([key(760)])) == [key(760)]
    assert read == [0]
    read.clear()
    assert ids(dataset.get(["P0007605", "zzz", ""])) == []
    assert read == [0]


def test_a_second_lookup_of_a_small_dataset_reads_no_file(lake_path: Path):
    dataset = made(lake_path, 100, group_rows=10)
    dataset.upsert([person(3, city="changed")])
    wanted = [key(3), key(42)]
    expected = dataset.get(wanted)
    dataset.get(wanted)
    for path in dataset.path.rglob("data/**/*.parquet"):
        path.rename(path.with_suffix(".away"))
    assert dataset.get(wanted).equals(expected)


def test_only_keys_and_footers_of_a_dataset_that_does_not_fit_are_cached(lake_path: Path):
    dataset = made(lake_path, 60_000, Settings(durable=False, lookup_cache_mb=1), group_rows=4_096)
    reads = store_of(dataset).reads
    rng = random.Random(3)
    for _ in range(40):
        number = rng.randrange(60_000)
        assert dataset.get([key(number)]).column("n").to_pylist() == [number]
        assert 0 < reads.size_bytes <= reads.limit_bytes
    parts = {part for _, _, part in cached_reads(reads)}
    assert {part[1] for part in parts if isinstance(part, tuple)} == {("id",)}


def test_nothing_is_cached_if_the_cache_has_no_room(lake_path: Path):
    dataset = made(lake_path, 100, NOTHING_KEPT, group_rows=10)
    dataset.upsert([person(1, city="changed")])
    assert dataset.get([key(1), key(2)]).column("city").to_pylist() == ["changed", "city 2"]
    assert store_of(dataset).reads.size_bytes == 0


# ---- following the dataset ---------------------------------------------------------------------------------------


def test_a_lookup_sees_the_last_write_of_another_handle(lake_path: Path):
    reader, writer = made(lake_path, 20), opened(lake_path)
    for number in range(20):
        writer.upsert([person(3, n=number)])
        assert reader.get([key(3)]).column("n").to_pylist() == [number]
        if number % 7 == 6:
            fold_by_arrow(writer, files=2)
            assert reader.get([key(3)]).column("n").to_pylist() == [number]


def test_files_that_a_fold_removed_are_forgotten_at_the_next_lookup(lake_path: Path):
    dataset = made(lake_path, 100, group_rows=10)
    dataset.upsert([person(1)])
    for _ in range(2):
        dataset.get([key(1), key(50)])
    fold_by_arrow(opened(lake_path))
    dataset.get([key(2)])
    live = {f"base/{file.path}" for file in store_of(dataset).snapshot().base.files}
    assert {path for _, path, _ in cached_reads(store_of(dataset).reads)} == live


def test_a_purge_through_another_handle_of_the_lake_empties_the_memory(lake_path: Path):
    lake = Lake.open(lake_path, settings=FAST)
    dataset = create(lake)
    dataset.upsert(people(10))
    fold_by_arrow(dataset)
    for _ in range(2):
        dataset.get([key(1)])
    assert store_of(dataset).reads.size_bytes > 0
    assert lake.dataset(str(dataset.name)).compact(purge=True).purged
    assert store_of(dataset).reads.size_bytes == 0
    assert ids(dataset.get([key(1)])) == [key(1)]


def test_a_dropped_dataset_is_gone_and_forgotten(lake_path: Path):
    lake = Lake.open(lake_path, settings=FAST)
    dataset = create(lake)
    dataset.upsert(people(10))
    elsewhere = opened(lake_path)
    for handle in (dataset, elsewhere):
        handle.get([key(1)])
        assert parts_of(handle).store.reads.size_bytes > 0
    lake.drop(str(dataset.name))
    assert parts_of(dataset).store.reads.size_bytes == 0
    for handle in (dataset, elsewhere):
        with pytest.raises(Gone):
            handle.get([key(1)])
        assert parts_of(handle).store.reads.size_bytes == 0


def test_a_file_removed_between_snapshot_and_read_causes_a_new_snapshot(lake_path: Path):
    dataset = made(lake_path, 50)
    store = store_of(dataset)
    taken = store.snapshot()
    fold_by_arrow(opened(lake_path))  # rewrites the same rows
    for file in taken.base.files:
        (dataset.path / "base" / file.path).unlink()
    first = iter([taken])
    object.__setattr__(store, "snapshot", lambda: next(first, None) or type(store).snapshot(store))
    assert ids(dataset.get([key(7)])) == [key(7)]


def test_a_broken_file_is_named(lake_path: Path):
    dataset = made(lake_path, 50)
    file = dataset.path / "base" / store_of(dataset).snapshot().base.files[0].path
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(Corruption, match=file.name):
        dataset.get([key(7)])


def test_threads_that_look_up_while_others_write_and_fold_see_every_acknowledged_row(lake_path: Path):
    dataset = made(lake_path, 200, files=2, group_rows=20)
    writer = opened(lake_path)
    acknowledged = {"n": 0}
    done: list[bool] = []

    def look() -> None:
        rng = random.Random(1)
        while not done:
            least = acknowledged["n"]
            found = dataset.get([key(5), key(rng.randrange(10, 200)), key(6)])
            assert found.num_rows == 3
            assert found.column("n").to_pylist()[0] >= least

    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(look) for _ in range(3)]
        try:
            for number in range(1000, 1060):
                writer.upsert([person(5, n=number)])
                acknowledged["n"] = number
                if number % 15 == 14:
                    fold_by_arrow(writer, files=2, group_rows=20)
        finally:
            done.append(True)
        for task in running:
            task.result(timeout=60)


def test_get_returns_the_same_rows_as_the_whole_view(lake_path: Path):
    dataset = made(lake_path, 300, files=3, group_rows=25)
    dataset.upsert(people(40, start=290))
    dataset.tombstone([key(number) for number in range(0, 300, 9)])
    every = [key(number) for number in range(340)]
    whole = dataset.to_arrow().sort_by("id").combine_chunks()
    assert dataset.get(every).equals(whole)
    assert pc.all(pc.equal(dataset.get(every[::-1]).sort_by("id")["n"], whole["n"])).as_py()
