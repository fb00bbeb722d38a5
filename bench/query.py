"""Queries: a join, a filter, and the 22 shapes, on Spark and in memory.

The join groups 1M orders with 100K customers; the filter picks some of the 100K customers. Each runs

* on Spark over the lake's files, and on Spark with both frames in its own cache,
* on the hot engine with a new text, with a known text, and again with a cached answer,
* on DuckDB itself over the same rows in memory.

All sides run the same query, and answer with an Arrow table of the same rows and types, which is checked before anything is
measured. A text is made new by one number in it, of the type of the column that it is compared with and below all values there.
Sides take turns in each round, so that a slow moment of the machine meets all of them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import duckdb
import numpy as np
import pyarrow as pa

from bench.data import settings
from bench.measure import Sample, Summary
from bench.plan import Run, size_text
from bench.results import Check, Report, Row, Sense
from bench.shapes import KEYS, SHAPES, tables
from siltstone import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES: Final = "Spark on the files"
CACHED: Final = "Spark, its own cache"
NEW: Final = "hot, a new text"
KNOWN: Final = "hot, a known text"
REPEATED: Final = "hot, a cached answer"
DUCKDB: Final = "DuckDB itself"
ORDERS: Final = "shop.big.orders"
CUSTOMERS: Final = "shop.big.customers"
BIG_ROWS: Final = 1_000_000
QUICK_ROWS: Final = 100_000
SHARE: Final = 10
"""Orders per customer."""
WARM_UPS: Final = 3
REPEATS: Final = 5
"""Queries per round of a side that takes milliseconds."""
SHAPE_LINES: Final = 300_000
QUICK_LINES: Final = 20_000
MUST: Final = {"join": 8.0, "filter": 15.0}
NEW_SECONDS: Final = 0.003
KNOWN_SECONDS: Final = 0.001
JOIN_AIM: Final = 1.3
QUERIES: Final = {
    "join": (
        "SELECT c.region, o.kind, count(*) AS orders, sum(o.amount) AS amount, max(o.day) AS last FROM {orders} o "
        "JOIN {customers} c ON o.customer_id = c.customer_id WHERE o.quantity > 2 AND o.order_id >= {least} "
        "GROUP BY c.region, o.kind ORDER BY 1, 2"
    ),
    "filter": (
        "SELECT customer_id, name, region, score FROM {customers} WHERE score > 2 AND region = 'r3' "
        "AND segment = 's2' AND customer_id >= {least} ORDER BY customer_id"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One way to answer; `run` gets a number that makes the text a new one."""

    run: Callable[[int], pa.Table]
    repeats: int = 1
    uses_jvm: bool = False


def bench_query(run: Run) -> Report:
    """Measure both queries, and all shapes."""
    count = QUICK_ROWS if run.quick else BIG_ROWS
    run.log(f"query: preparing {size_text(count)} orders")
    found: dict[tuple[str, str], list[Sample]] = {}
    with _sides(run, count) as sides:
        for query in QUERIES:
            _check_alike(sides[query])
            run.log(f"query: {query}, {run.rounds} rounds")
            for name, side in sides[query].items():
                for at in range(WARM_UPS):
                    side.run(at)
                found[query, name] = []
            for turn in range(run.rounds):
                for name, side in sides[query].items():
                    for again in range(side.repeats):
                        number = WARM_UPS + turn * REPEATS + again
                        found[query, name].append(run.meter.time(lambda side=side, number=number: side.run(number)))  # type: ignore[misc]
    rows = [_row(case, found, sides[case[0]][case[1]]) for case in found]
    rows += _shape_rows(run)
    return Report(
        name="query",
        title=f"Queries: {size_text(count)} orders joined with {size_text(count // SHARE)} customers, and these filtered",
        rows=tuple(rows),
        notes=(
            "A new text differs from all before it in one literal; a known text ran before, but its answer is not cached.",
            "All sides give the same rows as an Arrow table. DuckDB itself holds them as they are, the hot engine compressed.",
        ),
    )


def _check_alike(sides: dict[str, Side]) -> None:
    """Make sure that all sides give the same rows in the same types."""
    tables = {name: side.run(0) for name, side in sides.items()}
    ours = tables[KNOWN]
    for name, table in tables.items():
        if not table.cast(ours.schema).equals(ours):
            raise ValueError(f"{name} gives {table.num_rows} rows that are not the {ours.num_rows} of {KNOWN}.")


def _row(case: tuple[str, str], found: dict[tuple[str, str], list[Sample]], side: Side) -> Row:
    query, name = case
    own = Summary.of(found[case])
    cached, duck = Summary.of(found[query, CACHED]), Summary.of(found[query, DUCKDB])
    checks: tuple[Check, ...] = ()
    if name in (NEW, KNOWN):
        faster = Check(
            ratio=cached.seconds / own.seconds, of="Spark's own cache", sense=Sense.AT_LEAST, must=MUST[query]
        )
        extra = NEW_SECONDS if name == NEW else KNOWN_SECONDS
        bar = duck.seconds if query == "join" else duck.seconds + extra
        near = Check(
            ratio=own.seconds / bar,
            of="DuckDB itself" if query == "join" else f"DuckDB itself and {extra * 1000:g} ms",
            sense=Sense.AT_MOST,
            aim=JOIN_AIM if query == "join" else 1.0,
        )
        checks = (faster, near)
    return Row(what=f"{query}: {name}", time=own, checks=checks, uses_jvm=side.uses_jvm)


@contextmanager
def _sides(run: Run, count: int) -> Iterator[dict[str, dict[str, Side]]]:
    given = _rows(count)
    path = run.stage.folder / f"query-{count}"
    run.stage.discard(path)
    base = settings(durable=False, hot_at_once_rows=10 * BIG_ROWS)
    with (
        Lake.open(path, settings=replace(base, result_cache_mb=0), spark=run.stage.spark) as lake,
        Lake.open(path, settings=base, spark=run.stage.spark) as caching,
    ):
        for name, key in ((ORDERS, "order_id"), (CUSTOMERS, "customer_id")):
            lake.create(name, given[name].schema, key=key).upsert(given[name])
            lake.dataset(name).compact()
        yield {query: _answers(query, lake, caching, given, run.stage.spark) for query in QUERIES}
    run.stage.discard(path)


def _answers(
    query: str, lake: Lake, caching: Lake, given: dict[str, pa.Table], spark: "SparkSession"
) -> dict[str, Side]:
    def text(number: int, names: dict[str, str]) -> str:
        return QUERIES[query].format(least=-number, **names)

    ours = {"orders": ORDERS, "customers": CUSTOMERS}
    fixed, views = text(0, ours), {"orders": "bench_orders", "customers": "bench_customers"}
    for name, view in ((ORDERS, "bench_orders"), (CUSTOMERS, "bench_customers")):
        frame = lake.dataset(name).read().cache()
        frame.count()
        frame.createOrReplaceTempView(view)
    duck = duckdb.connect()
    duck.execute("SET TimeZone = 'UTC'")
    for name, view in ((ORDERS, "bench_orders"), (CUSTOMERS, "bench_customers")):
        duck.register("given", given[name])
        duck.execute(f"CREATE TABLE {view} AS SELECT * FROM given")
        duck.unregister("given")
    return {
        FILES: Side(run=lambda _: _hot(lake, fixed, "spark"), uses_jvm=True),
        CACHED: Side(run=lambda number: spark.sql(text(number, views)).toArrow(), uses_jvm=True),
        NEW: Side(run=lambda number: _hot(lake, text(1 + number, ours), "hot"), repeats=REPEATS),
        KNOWN: Side(run=lambda _: _hot(lake, fixed, "hot"), repeats=REPEATS),
        REPEATED: Side(run=lambda _: _hot(caching, fixed, "hot"), repeats=REPEATS),
        DUCKDB: Side(run=lambda number: duck.sql(text(number, views)).to_arrow_table(), repeats=REPEATS),
    }


def _hot(lake: Lake, text: str, engine: str) -> pa.Table:
    return lake.sql(text, engine=engine, max_rows=100_000).to_arrow()


def _rows(count: int) -> dict[str, pa.Table]:
    chance = np.random.default_rng(11)
    customers = count // SHARE
    cents = pa.array(chance.integers(100, 100_000, count), pa.int64())
    orders: dict[str, Any] = {
        "order_id": pa.array(np.arange(count), pa.int64()),
        "customer_id": pa.array(chance.integers(0, customers, count), pa.int64()),
        "kind": pa.array([f"k{number}" for number in chance.integers(0, 8, count)]),
        "quantity": pa.array(chance.integers(1, 50, count), pa.int32()),
        "amount": cents,
        "day": pa.array(chance.integers(18_000, 20_000, count).astype("int32")).cast(pa.date32()),
    }
    people: dict[str, Any] = {
        "customer_id": pa.array(np.arange(customers), pa.int64()),
        "name": pa.array([f"customer {number:07d}" for number in range(customers)]),
        "region": pa.array([f"r{number}" for number in chance.integers(0, 10, customers)]),
        "segment": pa.array([f"s{number}" for number in chance.integers(0, 5, customers)]),
        "score": pa.array(chance.integers(0, 100, customers), pa.int32()),
    }
    return {ORDERS: pa.table(orders), CUSTOMERS: pa.table(people)}


def _shape_rows(run: Run) -> list[Row]:
    """Measure the 22 shapes one after another: all of them hot, and all of them on Spark's files."""
    lines = QUICK_LINES if run.quick else SHAPE_LINES
    run.log(f"query: 22 shapes over {size_text(lines)} lines of orders")
    path = run.stage.folder / f"shapes-{lines}"
    run.stage.discard(path)
    base = settings(durable=False, hot_at_once_rows=10 * BIG_ROWS, result_cache_mb=0)
    texts = [text.format(place="shop.all") for text in SHAPES.values()]
    with Lake.open(path, settings=base, spark=run.stage.spark) as lake:
        for name, table in tables(lines).items():
            lake.create(f"shop.all.{name}", table.schema, key=KEYS[name]).upsert(table)
            lake.dataset(f"shop.all.{name}").compact()
        found: dict[str, list[Sample]] = {"hot": [], "spark": []}
        for _ in range(2):
            for engine, samples in found.items():
                samples.append(run.meter.time(lambda engine=engine: [_hot(lake, text, engine) for text in texts]))  # type: ignore[misc]
    run.stage.discard(path)
    hot, spark = (Summary.of(found[engine][1:]) for engine in ("hot", "spark"))
    check = Check(ratio=spark.seconds / hot.seconds, of="Spark on the files", sense=Sense.AT_LEAST)
    return [
        Row(what=f"22 shapes over {size_text(lines)} lines: hot", time=hot, checks=(check,), uses_jvm=False),
        Row(what=f"22 shapes over {size_text(lines)} lines: Spark on the files", time=spark),
    ]
