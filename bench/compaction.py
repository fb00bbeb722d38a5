"""Roll-ups and clusterings of logs: many small files into few, beside peers on the same files.

Small files of one hour come one after the other in time, as a log's do. Every contender gets the same bytes (linked) and writes
files of 128 MB at most, zstd. Siltstone runs cycles until its planner has nothing left to do: jobs of at most 500 files, rows
sorted, footers read back, counts verified. `OPTIMIZE` and `optimize.compact` work on a plain Delta table over the files; DuckDB
and the plain Spark rewrite know no log at all. None of the peers sorts.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, convert_to_deltalake

from bench.data import settings
from bench.measure import Sample, Summary, interleaved
from bench.plan import Run
from bench.results import Check, Report, Row, Sense, growth
from siltstone import Dataset, Lake
from siltstone.delta.parquet import data_file, writer_options
from siltstone.model.columns import PERIOD
from siltstone.model.commit import Commit, CommitKind

NAME: Final = "bench.main.events"
SCHEMA: Final = pa.schema(
    [
        pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("account", pa.int64()),
        pa.field("kind", pa.string()),
        pa.field("amount", pa.float64()),
        pa.field("note", pa.string()),
    ]
)
HOUR: Final = "2026-11-15T14"
HOUR_MICROS: Final = 1_794_751_200_000_000
KINDS: Final = ("view", "search", "order", "return")
TARGET_BYTES: Final = 128 * 1024 * 1024
TIERS: Final = (
    "hourly.max_files=500; hourly.min_files=2; hourly.min_age_seconds=0; hourly.target_bytes=128MB; "
    "daily.enabled=no; monthly.enabled=no"
)
MOST_CYCLES: Final = 10
ROLL_UP: Final = "roll-up"
OPTIMIZE: Final = "Delta OPTIMIZE on Spark"
DELTA_RS: Final = "delta-rs optimize.compact"
DUCKDB: Final = "DuckDB COPY"
PLAIN: Final = "plain Spark rewrite"
PLAIN_AIM: Final = 1.5
WARM_UPS: Final = 1
ACCOUNTS: Final = 1_000_000
ZORDER_ROWS: Final = 2_000_000
ZORDER_TARGET_BYTES: Final = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Number of files, and rows of each file."""

    what: str
    files: int
    rows: int
    most_rounds: int


SMALL: Final = Shape(what="1,000 files of 15 KB", files=1_000, rows=420, most_rounds=5)
TENTH: Final = Shape(what="100 files of 15 KB", files=100, rows=420, most_rounds=5)
LARGER: Final = Shape(what="1,000 files of 1 MB", files=1_000, rows=32_000, most_rounds=1)
ANCESTORS: Final = Shape(what="2,704 files of 140 KB", files=2_704, rows=4_300, most_rounds=1)
QUICK: Final = (
    Shape(what="20 files of 15 KB", files=20, rows=420, most_rounds=1),
    Shape(what="200 files of 15 KB", files=200, rows=420, most_rounds=1),
)


def bench_compaction(run: Run) -> Report:
    """Measure every shape, the query before and after, and what a Z-order lets a search leave out."""
    lines: list[Row] = []
    before: dict[str, float] = {}
    for shape in QUICK if run.quick else (TENTH, SMALL):
        found = _shape(run, shape)
        lines += [_row(shape, name, found, before.get(name)) for name in found]
        before = {name: summary.seconds for name, summary in found.items()}
    lines += _queries(run, QUICK[1] if run.quick else ANCESTORS)
    lines += _z_order(run, rows=100_000 if run.quick else ZORDER_ROWS)
    return Report(
        name="compaction",
        title="Compacting logs: many small files into files of 128 MB, queries, and a Z-order",
        rows=tuple(lines),
        notes=(
            "A peer's ratio is its median over the roll-up's, OPTIMIZE's must be above 1; the roll-up's is over the rewrite's.",
            "The roll-up plans, sorts, verifies and commits; no peer sorts, and DuckDB and the plain rewrite commit nothing.",
            "Z-order: files that a search for 1 in 100 accounts cannot leave out, by the log's statistics.",
        ),
    )


def bench_compaction_large(run: Run) -> Report:
    """Measure a gigabyte of larger files."""
    shape = QUICK[1] if run.quick else LARGER
    found = _shape(run, shape)
    return Report(
        name="compaction_large",
        title="Compacting logs: a gigabyte of files of 1 MB into files of 128 MB",
        rows=tuple(_row(shape, name, found, None) for name in found),
        notes=("As in `compaction`; no warm-up of its own, and few rounds: a round takes minutes.",),
    )


def events(number: int, rows: int, *, of: int) -> pa.Table:
    """Make the rows of one file: its part of the hour, in the order of time."""
    random = np.random.default_rng(number)
    span = 3_600_000_000 // of
    times = np.sort(HOUR_MICROS + number * span + random.integers(0, span, rows))
    columns: list[Any] = [
        pa.array(times, pa.int64()).cast(SCHEMA.field("at").type),
        pa.array(random.integers(0, ACCOUNTS, rows)),
        pa.array([KINDS[kind] for kind in random.integers(0, len(KINDS), rows)]),
        pa.array(random.integers(0, 10_000_000, rows) / 100.0),
        pa.array([f"event {value:016x}" for value in random.integers(0, 2**62, rows)]),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _prepared(run: Run, shape: Shape) -> tuple[Path, Path]:
    """Return a lake with the files in base, and a plain Delta table over the same files; do not change them."""
    lake = run.stage.folder / f"events-{shape.files}-{shape.rows}"
    plain = run.stage.folder / f"events-plain-{shape.files}-{shape.rows}"
    if not plain.exists():
        run.stage.discard(lake)
        run.log(f"compaction: preparing {shape.what}")
        with _open(run, lake, create=True) as opened:
            _fill(opened.dataset(NAME), shape, plain)
        convert_to_deltalake(plain)
    return lake, plain


def _open(run: Run, path: Path, *, create: bool = False, target_bytes: int = TARGET_BYTES) -> Lake:
    chosen = settings(durable=False, tiers=TIERS, target_file_bytes=target_bytes)
    lake = Lake.open(path, settings=chosen, spark=run.stage.spark)
    if create:
        lake.create(NAME, SCHEMA, time="at", cluster_by=["at", "account"])
    return lake


def _fill(log: Dataset, shape: Shape, plain: Path) -> None:
    """Put the files into base as folds would have, and links to them into a folder of their own."""
    store = log._store  # noqa: SLF001
    folder = store.base.path / "data" / "prepared" / "0"
    folder.mkdir(parents=True)
    plain.mkdir()
    files = []
    for number in range(shape.files):
        rows = events(number, shape.rows, of=shape.files)
        ours = [pa.nulls(shape.rows, field.type) for field in store.base_schema if field.name not in SCHEMA.names]
        table = pa.Table.from_arrays([*rows.columns, *ours], schema=store.base_schema)
        path = folder / f"{number:05d}.parquet"
        pq.write_table(table, path, **writer_options(store.base_schema, (), rows=shape.rows))
        relative = path.relative_to(store.base.path).as_posix()
        files.append(
            data_file(
                store.base.path, relative, expected=store.base_schema, stats=store.stats, partition={PERIOD: HOUR}
            )
        )
        (plain / path.name).hardlink_to(path)
    version = store.base.pin().version
    store.base.commit(lambda _: Commit(kind=CommitKind.APPEND, plan_version=version, adds=tuple(files)))


def _shape(run: Run, shape: Shape) -> dict[str, Summary]:
    lake, plain = _prepared(run, shape)
    steps: dict[str, Callable[[], Sample]] = {
        ROLL_UP: lambda: _roll_up(run, lake),
        OPTIMIZE: lambda: _on_copy(run, plain, lambda path: _optimize(run, path)),
        DELTA_RS: lambda: _on_copy(run, plain, _compact),
        DUCKDB: lambda: _on_copy(run, plain, _duckdb_copy),
        PLAIN: lambda: _on_copy(run, plain, lambda path: _plain_rewrite(run, path)),
    }
    rounds = min(run.rounds, shape.most_rounds)
    run.log(f"compaction: {shape.what}, {rounds} rounds")
    return interleaved(steps, rounds=rounds, warm_ups=WARM_UPS if shape.most_rounds > 1 else 0)


def _roll_up(run: Run, prepared: Path) -> Sample:
    path = run.stage.copy(prepared, "roll-up")
    with _open(run, path) as lake:
        sample = run.meter.measure(lambda: cycles(lake))
        _check_rows(prepared, run, lake)
    run.stage.discard(path)
    return sample


def cycles(lake: Lake) -> int:
    """Run cycles of roll-ups until there is nothing left to do."""
    for number in range(MOST_CYCLES):
        done = lake.run_cycle([NAME], only=["hourly"], force=True)
        if failed := [one.error for one in done if one.error]:
            raise RuntimeError(failed[0])
        if not done:
            return number
    raise RuntimeError("the planner does not come to rest")


def _check_rows(prepared: Path, run: Run, lake: Lake) -> None:
    with _open(run, prepared) as before:
        expected = before.dataset(NAME).status().rows_in_base
    found = lake.dataset(NAME).status().rows_in_base
    if found != expected:
        raise RuntimeError(f"{found} rows, and {expected} before")


def _on_copy(run: Run, plain: Path, work: Callable[[Path], object]) -> Sample:
    path = run.stage.copy(plain, "events-copy")
    sample = run.meter.measure(lambda: work(path))
    run.stage.discard(path, path.with_name(f"{path.name}-out"))
    return sample


def _optimize(run: Run, path: Path) -> None:
    run.stage.spark.conf.set("spark.databricks.delta.optimize.maxFileSize", str(TARGET_BYTES))
    run.stage.spark.conf.set("spark.sql.parquet.compression.codec", "zstd")
    run.stage.spark.sql(f"OPTIMIZE delta.`{path}`").collect()


def _compact(path: Path) -> None:
    DeltaTable(path).optimize.compact(target_size=TARGET_BYTES)


def _duckdb_copy(path: Path) -> None:
    out = path.with_name(f"{path.name}-out")
    with duckdb.connect() as connection:
        connection.execute(
            f"COPY (SELECT * FROM read_parquet('{path}/*.parquet')) TO '{out}' "
            f"(FORMAT parquet, COMPRESSION zstd, FILE_SIZE_BYTES '{TARGET_BYTES // 2**20}MiB')"
        )


def _plain_rewrite(run: Run, path: Path) -> None:
    size = sum(file.stat().st_size for file in path.glob("*.parquet"))
    parts = max(1, -(-size // TARGET_BYTES))
    out = path.with_name(f"{path.name}-out")
    rows = run.stage.spark.read.parquet(*[str(file) for file in sorted(path.glob("*.parquet"))])
    rows.coalesce(parts).write.option("compression", "zstd").parquet(str(out))


def _row(shape: Shape, name: str, found: dict[str, Summary], before: float | None) -> Row:
    summary, ours = found[name], found[ROLL_UP]
    if name == ROLL_UP:
        checks = (Check(ratio=ours.seconds / found[PLAIN].seconds, of="plain", sense=Sense.AT_MOST, aim=PLAIN_AIM),)
    else:
        must = 1.0 if name == OPTIMIZE else None
        checks = (Check(ratio=summary.seconds / ours.seconds, of=ROLL_UP, sense=Sense.AT_LEAST, must=must),)
    uses_jvm = name not in (DELTA_RS, DUCKDB)
    return Row(
        what=f"{name}, {shape.what}",
        time=summary,
        checks=checks,
        growth=growth(summary.seconds, before),
        uses_jvm=uses_jvm,
    )


def _queries(run: Run, shape: Shape) -> list[Row]:
    """Measure one query on the files as they came and after the roll-up."""
    prepared, _ = _prepared(run, shape)
    path = run.stage.copy(prepared, "queries")
    with _open(run, path) as lake:
        log = lake.dataset(NAME)
        files, size = [len(_live(log))], [log.status().base_bytes]
        before = {"Spark": _median(run, lambda: _query_spark(log)), "DuckDB": _median(run, lambda: _query_duckdb(log))}
        run.log(f"compaction: rolling up {shape.what}")
        rolled_up = Summary.of([run.meter.measure(lambda: cycles(lake))])
        after = {"Spark": _median(run, lambda: _query_spark(log)), "DuckDB": _median(run, lambda: _query_duckdb(log))}
        files, size = [*files, len(_live(log))], [*size, log.status().base_bytes]
    shutil.rmtree(path, ignore_errors=True)
    lines = [
        Row(
            what=f"roll-up, {files[0]:,} files, {size[0] / 2**20:,.0f} MB into {files[1]:,} of {size[1] / 2**20:,.0f} MB",
            time=rolled_up,
        )
    ]
    for engine, found in before.items():
        ratio = found.seconds / after[engine].seconds
        check = Check(ratio=ratio, of="before over after", sense=Sense.AT_LEAST)
        lines += [
            Row(what=f"query by {engine}, before", time=found, uses_jvm=engine == "Spark"),
            Row(what=f"query by {engine}, after", time=after[engine], checks=(check,), uses_jvm=engine == "Spark"),
        ]
    return lines


def _median(run: Run, call: Callable[[], object]) -> Summary:
    call()
    return Summary.of([run.meter.measure(call) for _ in range(min(3, run.rounds))])


def _live(log: Dataset) -> list[str]:
    base = log.path / "base"
    return [str(base / file.path) for file in log._store.snapshot().base.files]  # noqa: SLF001


def _query_spark(log: Dataset) -> None:
    log.read().where("account < 10000").groupBy("kind").sum("amount").collect()


def _query_duckdb(log: Dataset) -> None:
    with duckdb.connect() as connection:
        connection.execute(
            "SELECT kind, sum(amount) FROM read_parquet(?) WHERE account < 10000 GROUP BY kind", [_live(log)]
        ).fetchall()


def _z_order(run: Run, *, rows: int) -> list[Row]:
    """Count the files that a search by account has to open, sorted by time and in the Z-order, and measure the clustering."""
    prepared, _ = _prepared(run, Shape(what=f"{rows:,} rows to cluster", files=20, rows=rows // 20, most_rounds=1))
    path = run.stage.copy(prepared, "z-order")
    with _open(run, path, target_bytes=ZORDER_TARGET_BYTES) as lake:
        log = lake.dataset(NAME)
        log.cluster(by=["at"])
        before = _opened(log)
        taken = Summary.of([run.meter.measure(lambda: log.cluster(by=["account", "at"]))])
        after = _opened(log)
    shutil.rmtree(path, ignore_errors=True)
    return [
        Row(what=f"Z-order of {rows:,} rows by account and time, {after[2]} files", time=taken),
        _skipped("1 in 100 accounts", before[0], before[2], after[0], after[2], aim=2.0),
        _skipped("1 in 100 of the hour", before[1], before[2], after[1], after[2], aim=None),
    ]


def _skipped(what: str, before: int, of_before: int, after: int, of_after: int, *, aim: float | None) -> Row:
    ratio = (before / of_before) / max(after / of_after, 1e-9)
    text = f"{what}: {before} of {of_before} files by time alone, {after} of {of_after} in the Z-order"
    return Row(what=text, checks=(Check(ratio=ratio, of="fewer", sense=Sense.AT_LEAST, aim=aim),))


def _opened(log: Dataset) -> tuple[int, int, int]:
    """Return how many files a search by accounts, and one by time, cannot leave out, and how many there are."""
    entries = pa.table(DeltaTable(log.path / "base").get_add_actions(flatten=True))
    low, high = entries.column("min.account").to_pylist(), entries.column("max.account").to_pylist()
    accounts = sum(a < ACCOUNTS * 51 // 100 and b >= ACCOUNTS // 2 for a, b in zip(low, high, strict=True))
    first, last = entries.column("min.at").to_pylist(), entries.column("max.at").to_pylist()
    start = min(first) + (max(last) - min(first)) / 2
    end = start + (max(last) - min(first)) / 100
    times = sum(a <= end and b >= start for a, b in zip(first, last, strict=True))
    return accounts, times, len(low)
