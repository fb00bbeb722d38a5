"""Point lookups of 1 and 100 keys: `Dataset.get` beside delta-rs, DuckDB and Spark's Delta reader on the same base files.

Every round draws new keys that are there, scattered over the whole range, and every side looks up the same ones, one side after
the other. All sides have their tables open; delta-rs brings its own up to date before each query, as ours does. Ours is measured

* after some hundred other lookups, with what those have left in memory,
* with nothing in memory but the open tables: every footer and row group is read again,
* with one percent of the rows changed in a hundred batches and not folded, which the peers do not see,
* the same, right after one more upsert.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder

from bench.data import KEY, OnePercent, change_rows, key_column, open_dataset, spread_seeds
from bench.measure import Sample, Summary
from bench.plan import Run, size_text, step
from bench.results import Check, Report, Row, Sense, growth, percentiles_text
from siltstone.dataset.dataset import Dataset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OURS: Final = "siltstone"
COLD: Final = "siltstone, nothing in memory"
CHANGED: Final = "siltstone, 1% unfolded"
WRITTEN: Final = "siltstone, 1% unfolded, after an upsert"
DELTA_RS: Final = "delta-rs SQL"
DELTA_RS_ARROW: Final = "delta-rs to Arrow dataset"
DUCKDB: Final = "DuckDB on the files"
SPARK: Final = "Spark's Delta reader"
MUST_BEAT: Final = (DELTA_RS, DELTA_RS_ARROW)
KEYS: Final = (1, 100)
AIM_SECONDS: Final = 0.005
WARM_UPS: Final = 2
LOOKUPS_BEFORE: Final = 300
REPEATS: Final = {1: 10, 100: 3}
"""Queries per round of a side that takes milliseconds."""
SHARES: Final = (0.5, 0.95)

Find = Callable[[list[str]], pa.Table]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One way to find rows; what happens `before` a lookup lies outside the clock."""

    find: Find
    before: Callable[[], object] = lambda: None
    uses_jvm: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """One cell: how many keys, in how many rows, by whom."""

    rows: int
    keys: int
    name: str


def bench_lookup(run: Run) -> Report:
    """Measure each size from a million rows on, or the largest one there is."""
    sizes = run.large_sizes
    found: dict[Case, list[Sample]] = {}
    for rows in sizes:
        run.log(f"lookup: preparing {size_text(rows)} rows")
        with _sides(run, rows) as sides:
            for keys in KEYS:
                run.log(f"lookup: {keys} of {size_text(rows)}, {run.rounds} rounds")
                found |= _measured(run, sides, rows, keys)
    summaries = {case: Summary.of(samples) for case, samples in found.items()}
    return Report(
        name="lookup",
        title="Lookups by key in a base of 8 columns, keys scattered",
        rows=tuple(_row(summaries, case, before=step(sizes, case.rows)) for case in summaries),
        notes=(
            "A peer's ratio is its median over ours: with memory, without, with 1% unfolded.",
            f"Siltstone comes after {LOOKUPS_BEFORE} other lookups and may keep 256 MB; without memory only its tables are open.",
            "The peers read base alone: they know nothing of the unfolded changes.",
            *(
                percentiles_text(
                    f"{case.keys} of {size_text(case.rows)}, {case.name}", [s.seconds for s in samples], SHARES
                )
                for case, samples in found.items()
            ),
        ),
    )


def _measured(run: Run, sides: dict[str, Side], rows: int, keys: int) -> dict[Case, list[Sample]]:
    samples: dict[str, list[Sample]] = {name: [] for name in sides}
    seeds = spread_seeds(7_000_000 + keys)
    for number in range(WARM_UPS + run.rounds):
        batches = [_keys(rows, keys, seed=next(seeds)) for _ in range(REPEATS[keys])]
        for name, side in sides.items():
            for repeat, batch in enumerate(batches[:1] if side.uses_jvm else batches):
                side.before()
                take = run.meter.time if repeat else run.meter.measure
                sample = take(partial(side.find, batch))
                if number >= WARM_UPS:
                    samples[name].append(sample)
    return {Case(rows, keys, name): taken for name, taken in samples.items()}


def _keys(rows: int, count: int, *, seed: int) -> list[str]:
    random = np.random.default_rng(seed)
    picked: list[str] = key_column(random.choice(rows, size=count, replace=False) * 2).to_pylist()
    return picked


@contextmanager
def _sides(run: Run, rows: int) -> Iterator[dict[str, Side]]:
    """Open every side on the same base files."""
    stage = run.stage
    path = stage.copy(stage.lake(rows), "lookup")
    warm_lake, warm = open_dataset(stage, stage.lake(rows), durable=False)
    cold_lake, cold = open_dataset(stage, stage.lake(rows), durable=False)
    changed_lake, changed = open_dataset(stage, path, durable=False)
    seeds = spread_seeds(8_000_000)
    with warm_lake, cold_lake, changed_lake, duckdb.connect() as connection:
        OnePercent.of(rows).apply(changed)
        base = str(warm.path / "base")
        files = [f"{base}/{file.path}" for file in warm.snapshot().base.files]
        sides = {
            OURS: Side(find=warm.get),
            COLD: Side(find=cold.get, before=partial(_forget, cold)),
            DELTA_RS: Side(find=partial(_delta_rs, DeltaTable(base))),
            DELTA_RS_ARROW: Side(find=partial(_delta_rs_arrow, DeltaTable(base))),
            DUCKDB: Side(find=partial(_duckdb, connection, files)),
            SPARK: Side(find=partial(_spark, stage.spark, base), uses_jvm=True),
            CHANGED: Side(find=changed.get),
            WRITTEN: Side(find=changed.get, before=lambda: changed.upsert(change_rows(rows, 1, seed=next(seeds)))),
        }
        _agree({name: side for name, side in sides.items() if name not in (CHANGED, WRITTEN)}, rows)
        _agree_changed(changed, rows)
        for dataset in (warm, changed):
            for _ in range(LOOKUPS_BEFORE):
                dataset.get(_keys(rows, 1, seed=next(seeds)))
        yield sides
    stage.discard(path)


def _agree(sides: dict[str, Side], rows: int) -> None:
    """Do not measure a wrong answer."""
    for count in KEYS:
        requested = _keys(rows, count, seed=count)
        for name, side in sides.items():
            if sorted(side.find(requested).column(KEY).to_pylist()) != sorted(requested):
                raise AssertionError(f"{name} did not find exactly the requested rows.")


def _agree_changed(dataset: Dataset, rows: int) -> None:
    changes = OnePercent.of(rows)
    requested = changes.upserts[0].column(KEY).to_pylist()[-5:] + changes.tombstones[:5]
    table = dataset.to_arrow()
    whole = table.filter(pc.is_in(table.column(KEY), value_set=pa.array(requested))).sort_by(KEY)
    if not dataset.get(requested).sort_by(KEY).equals(whole):
        raise AssertionError("A lookup over unfolded changes and the whole view say different rows.")


def _forget(dataset: Dataset) -> None:
    dataset._store.forget()  # noqa: SLF001


def _listed(keys: list[str]) -> str:
    return ", ".join(f"'{key}'" for key in keys)


def _delta_rs(table: DeltaTable, keys: list[str]) -> pa.Table:
    table.update_incremental()
    query = f"SELECT * FROM t WHERE {KEY} IN ({_listed(keys)})"
    return pa.table(QueryBuilder().register("t", table).execute(query).read_all())


def _delta_rs_arrow(table: DeltaTable, keys: list[str]) -> pa.Table:
    table.update_incremental()
    field = pc.field(KEY)
    wanted = field == keys[0] if len(keys) == 1 else field.isin(keys)
    return table.to_pyarrow_dataset().to_table(filter=wanted)


def _duckdb(connection: "duckdb.DuckDBPyConnection", files: list[str], keys: list[str]) -> pa.Table:
    query = f"SELECT * FROM read_parquet({files!r}) WHERE {KEY} IN ({_listed(keys)})"
    found: Any = connection.sql(query).to_arrow_table()
    return found


def _spark(spark: "SparkSession", base: str, keys: list[str]) -> pa.Table:
    frame = spark.read.format("delta").load(base)
    return frame.where(frame[KEY].isin(keys)).toArrow()


def _row(found: dict[Case, Summary], case: Case, *, before: int | None) -> Row:
    summary = found[case]
    smaller = found.get(Case(before, case.keys, case.name)) if before else None
    return Row(
        what=f"{case.keys} of {size_text(case.rows)}: {case.name}",
        time=summary,
        checks=tuple(_checks(found, case)),
        growth=growth(summary.seconds, smaller.seconds if smaller else None),
        uses_jvm=case.name == SPARK,
    )


def _checks(found: dict[Case, Summary], case: Case) -> Iterator[Check]:
    if case.name in (OURS, COLD, CHANGED, WRITTEN):
        if case.keys == 1:
            yield Check(ratio=found[case].seconds / AIM_SECONDS, of="5 ms", sense=Sense.AT_MOST, aim=1.0)
        return
    for name in (OURS, COLD, CHANGED):
        must = 1.0 if case.name in MUST_BEAT and name != COLD else None
        ratio = found[case].seconds / found[Case(case.rows, case.keys, name)].seconds
        yield Check(ratio=ratio, of=name.removeprefix(f"{OURS}, "), sense=Sense.AT_LEAST, must=must)
