"""The hot cache: costs of fills and of fresh answers, a tight budget, and the memory that an eviction frees.

No query uses SQL of the lake here; `query` measures those. Spark only prepares the rows.

* a fill of each size, beside DuckDB that reads the same base files into a table of its own and compresses it;
* the same of a table like the earlier systems' (15 columns), for its bytes a row, which they had at 371;
* a count with a filter on what is resident, beside DuckDB's own time for it, again after an upsert of one and of 1,000 rows;
* three datasets in turn under a budget that holds one of them, and one that is queried more than the others;
* the memory that the system counts for this process, before and after an eviction.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import duckdb

from bench.data import NAME, change_rows, settings, spread_seeds
from bench.measure import Sample, Summary
from bench.plan import Run, size_text
from bench.results import Check, Report, Row, Sense
from siltstone import Dataset, Lake
from siltstone.demo import CANDIDATE_COLUMNS
from siltstone.model.units import size_text as bytes_text
from siltstone.query.hot import NotResident

ANCESTORS_BYTES_A_ROW: Final = 371
AIM_BYTES_A_ROW: Final = 100
AIM_KNOWN_SECONDS: Final = 0.001
FREED_SHARE: Final = 0.7
FREED_SECONDS: Final = 10.0
WIDE: Final = "bench.main.candidates"
WIDE_ROWS: Final = 999_999
"""Their keys have six digits."""
THREE_ROWS: Final = 100_000
TURNS: Final = 10
REPEATS: Final = 20
PAGE_BYTES: Final = 4096
LARGEST: Final = 1_000_000
CHANGED: Final = (1, 1_000)


def bench_hot_cache(run: Run) -> Report:
    """Measure fills of the sizes up to a million rows, or of the smallest if all are larger; the rest at the largest of these."""
    lines: list[Row] = []
    notes: list[str] = []
    sizes = [size for size in run.sizes if size <= LARGEST] or [run.sizes[0]]
    for rows in sizes:
        run.log(f"hot cache: filling {size_text(rows)} rows, {run.rounds_at(rows)} rounds")
        with _lake(run, run.stage.lake(rows), "hot") as lake:
            lines += _fills(run, lake, rows, notes)
    rows = sizes[-1]
    lines += _wide(run, notes)
    with _lake(run, run.stage.lake(rows), "hot") as lake:
        run.log(f"hot cache: answers over {size_text(rows)} rows, and after upserts")
        lines += _answers(run, lake, rows)
        run.log("hot cache: an eviction")
        lines.append(_eviction(lake, NAME, notes))
    run.log("hot cache: three datasets, room for one")
    notes += _three(run)
    return Report(
        name="hot_cache", title="The hot cache: fills, freshness, budget, memory", rows=tuple(lines), notes=tuple(notes)
    )


@contextmanager
def _lake(run: Run, prepared: Path, name: str, *, cache_mb: int = 0) -> Iterator[Lake]:
    path = run.stage.copy(prepared, name)
    try:
        with Lake.open(path, settings=settings(durable=False, hot_cache_mb=cache_mb), spark=run.stage.spark) as lake:
            yield lake
    finally:
        run.stage.discard(path)


def _base_files(dataset: Dataset) -> list[str]:
    base = dataset.path / "base"
    return [str(base / file.path) for file in dataset.snapshot().base.files]


def _fills(run: Run, lake: Lake, rows: int, notes: list[str]) -> list[Row]:
    files = _base_files(lake.dataset(NAME))
    ours: list[Sample] = []
    theirs: list[Sample] = []
    size = 0
    for number in range(1 + run.rounds_at(rows)):
        own = run.meter.measure(lambda: lake.hot.fill(NAME))
        size = lake.hot.stats().entries[0].size_bytes
        lake.hot.evict(NAME)
        bare = run.meter.measure(lambda: _duckdb_fill(files))
        if number:
            ours.append(own)
            theirs.append(bare)
    filled, read = Summary.of(ours), Summary.of(theirs)
    million = filled.seconds * 1_000_000 / rows
    notes.append(
        f"Fill of {size_text(rows)}: {million:.2f} s a million rows, {size / rows:.0f} bytes a row (8 columns)."
    )
    check = Check(ratio=filled.seconds / read.seconds, of="of DuckDB's own fill", sense=Sense.AT_MOST)
    return [
        Row(what=f"fill of {size_text(rows)} rows", time=filled, checks=(check,), uses_jvm=False),
        Row(what=f"DuckDB reads and compresses them, {size_text(rows)}", time=read, uses_jvm=False),
    ]


def _duckdb_fill(files: list[str]) -> None:
    with duckdb.connect() as connection:
        connection.execute("ATTACH ':memory:' AS own (COMPRESS)")
        connection.execute("CREATE TABLE own.rows AS SELECT * FROM read_parquet($files)", {"files": files})
        connection.execute("CHECKPOINT own")


def _wide(run: Run, notes: list[str]) -> list[Row]:
    """Fill a table with the earlier systems' columns, for its bytes a row."""
    rows = min(WIDE_ROWS, max(run.sizes))
    folder = run.stage.folder / "hot-wide"
    run.stage.discard(folder)
    with Lake.open(folder / "lake", settings=settings(durable=False), spark=run.stage.spark) as lake:
        ids = run.stage.spark.range(rows).toDF("id")
        made = ids.selectExpr(
            *[f"CAST({text} AS {kind}) AS {name}" for name, (kind, text) in CANDIDATE_COLUMNS.items()]
        )
        made.write.parquet(str(folder / "rows"))
        ddl = ", ".join(f"{name} {kind}" for name, (kind, _) in CANDIDATE_COLUMNS.items())
        lake.create(WIDE, ddl, key="candidate_id").ingest(folder / "rows")
        sample = run.meter.measure(lambda: lake.hot.fill(WIDE))
        entry = lake.hot.stats().entries[0]
        estimate = bytes_text(int(entry.size_bytes))
    run.stage.discard(folder)
    ratio = entry.row_bytes / ANCESTORS_BYTES_A_ROW
    notes.append(
        f"{entry.rows:,} rows of {len(CANDIDATE_COLUMNS)} columns take {estimate}: {entry.row_bytes:.0f} bytes a row."
    )
    check = Check(
        ratio=ratio,
        of=f"of the earlier systems' {ANCESTORS_BYTES_A_ROW} bytes a row",
        sense=Sense.AT_MOST,
        must=1.0,
        aim=round(AIM_BYTES_A_ROW / ANCESTORS_BYTES_A_ROW, 2),
    )
    what = f"fill of {size_text(rows)} rows of {len(CANDIDATE_COLUMNS)} columns"
    return [Row(what=what, time=Summary.of([sample]), checks=(check,), uses_jvm=False)]


_QUESTION: Final = "SELECT count(*), sum(amount) FROM {table} WHERE status = 'paid' AND quantity > 90"


def _query(lake: Lake) -> None:
    with lake.hot.snapshot([NAME]) as hot:
        hot.cursor.execute(_QUESTION.format(table=hot.tables[NAME])).fetchall()


def _answers(run: Run, lake: Lake, rows: int) -> list[Row]:
    dataset = lake.dataset(NAME)
    lake.hot.fill(NAME)
    seeds = spread_seeds(9_000_000)
    taken: dict[str, list[Sample]] = {}
    for number in range(1 + run.rounds):
        samples = {"DuckDB's own time": _bare(run, lake), "hot, nothing new": _repeated(run, lambda: _query(lake))}
        for count in CHANGED:
            dataset.upsert(change_rows(rows, count, seed=next(seeds)))
            samples[f"hot, after an upsert of {count:,}"] = run.meter.measure(lambda: _query(lake))
        if number:
            for what, sample in samples.items():
                taken.setdefault(what, []).append(sample)
    found = {what: Summary.of(samples) for what, samples in taken.items()}
    own = found["DuckDB's own time"].seconds
    more = found["hot, nothing new"].seconds - own
    check = Check(ratio=max(more, 1e-6) / AIM_KNOWN_SECONDS, of="of 1 ms on top", sense=Sense.AT_MOST, aim=1.0)
    return [
        Row(what=what, time=time_, checks=(check,) if what == "hot, nothing new" else (), uses_jvm=False)
        for what, time_ in found.items()
    ]


def _bare(run: Run, lake: Lake) -> Sample:
    """Query DuckDB itself on the same rows, without a check that they are fresh."""
    with lake.hot.snapshot([NAME]) as hot:
        text, cursor = _QUESTION.format(table=hot.tables[NAME]), hot.cursor
        return _repeated(run, lambda: cursor.execute(text).fetchall())


def _repeated(run: Run, call: object) -> Sample:
    """Return the median of some calls: one takes milliseconds."""
    assert callable(call)
    samples = sorted((run.meter.time(call) for _ in range(REPEATS)), key=lambda sample: sample.seconds)
    return samples[REPEATS // 2]


def _three(run: Run) -> list[str]:
    """Describe the effect of a budget for one of three: queried in turn, and one queried four times as often as the others."""
    rows = min(THREE_ROWS, max(run.sizes))
    names = [f"bench.three.t{number}" for number in range(3)]
    folder = run.stage.folder / "hot-three"
    run.stage.discard(folder)
    with Lake.open(folder, settings=settings(durable=False), spark=run.stage.spark) as lake:
        for number, name in enumerate(names):
            made = lake.create(name, change_rows(10, 1, seed=1).schema, key="id")
            made.upsert(change_rows(rows * 2, rows, seed=number))
        estimate = lake.hot.decide(names[0]).estimate_bytes
    effects = []
    budget = max(1, round(1.5 * estimate / 1024 / 1024))
    for what, order in (("in turn", [0, 1, 2]), ("t0 four times as often", [0, 0, 1, 0, 0, 2])):
        with Lake.open(folder, settings=settings(durable=False, hot_cache_mb=budget), spark=run.stage.spark) as lake:
            effects.append(_query_in_turn(lake, names, order, what, budget))
    run.stage.discard(folder)
    return effects


def _query_in_turn(lake: Lake, names: list[str], order: list[int], what: str, budget: int) -> str:
    for _ in range(TURNS):
        for number in order:
            try:
                with lake.hot.snapshot([names[number]]) as hot:
                    hot.cursor.execute(f"SELECT count(*) FROM {hot.tables[names[number]]}").fetchall()
            except NotResident:
                lake.hot.want(names[number])
                _wait_for_fill(lake)
    entries = lake.hot.stats().entries
    hits, misses = sum(entry.hits for entry in entries), sum(entry.misses for entry in entries)
    fills, gone = sum(entry.fills for entry in entries), sum(entry.evictions for entry in entries)
    return (
        f"Three datasets, {what}, {budget} MB for one: {hits} hits, {misses} misses, {fills} fills, {gone} evictions."
    )


def _wait_for_fill(lake: Lake) -> None:
    while any("being filled" in lake.hot.decide(entry.name).reason for entry in lake.hot.stats().entries):
        time.sleep(0.01)


def _eviction(lake: Lake, name: str, notes: list[str]) -> Row:
    """Evict, and see how much memory the system has back within ten seconds."""
    lake.hot.fill(name)
    time.sleep(FREED_SECONDS / 2)  # what the fill needed besides has gone back
    [entry] = [one for one in lake.hot.stats().entries if one.name == name]
    before = _own_bytes()
    lake.hot.evict(name)
    started = time.monotonic()
    while time.monotonic() - started < FREED_SECONDS and before - _own_bytes() < entry.size_bytes:
        time.sleep(0.1)
    freed = before - _own_bytes()
    notes.append(
        f"Evicted {bytes_text(entry.size_bytes)}; the process gave back {bytes_text(max(freed, 0))} "
        f"in {time.monotonic() - started:.1f} s."
    )
    check = Check(ratio=freed / entry.size_bytes, of="of the evicted bytes", sense=Sense.AT_LEAST, must=FREED_SHARE)
    return Row(what="memory after an eviction", checks=(check,), uses_jvm=False)


def _own_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES
