"""Processes of concurrency tests: they write, fold, load, read in loops, and wait for each other by files.

Everything takes and returns JSON values, so that it can run in a child process. The oracle is deliberately simple: writer w
writes batch b as rows ``shared-<i>`` (keys of all writers, the last one wins) and ``own-<w>-<b>`` (a key of this writer alone).
"""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from siltstone import Lake
from siltstone.config import Settings
from siltstone.dataset.dataset import Dataset
from siltstone.errors import Conflict, Fenced, Gone, NotFound, Unavailable
from siltstone.failpoints import arm

NAME: Final = "races.test.rows"
SCHEMA: Final = "id STRING NOT NULL, writer BIGINT, batch BIGINT"
SHARED_KEYS: Final = 5
WAIT_SECONDS: Final = 60.0
POLL_SECONDS: Final = 0.01
STOP: Final = "stop"


def wait_for(path: Path) -> None:
    """Wait until another process has created the file."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path} was not created in time")
        time.sleep(POLL_SECONDS)


def open_dataset(path: str) -> Dataset:
    """Open the dataset of a test's lake."""
    return Lake.open(path, settings=Settings.load(durable=False)).dataset(NAME)


def make(path: str) -> None:
    """Create the dataset."""
    with Lake.open(path) as lake:
        lake.create(NAME, SCHEMA, key="id")


def batch_rows(writer: int, batch: int) -> list[dict[str, Any]]:
    """Return the rows of one batch; every third one is without the shared keys."""
    shared = [] if batch % 3 == 2 else [f"shared-{batch % SHARED_KEYS}"]
    return [{"id": key, "writer": writer, "batch": batch} for key in [*shared, f"own-{writer}-{batch}"]]


def tombstoned_key(writer: int, batch: int) -> str | None:
    """Return the own key that a writer tombstones again after some batches."""
    return f"own-{writer}-{batch - 1}" if batch % 10 == 9 else None


def write_batches(path: str, writer: int, batches: int) -> list[list[Any]]:
    """Write batches and return the acknowledged ones: [sequence, "U" or "D", rows or keys]."""
    dataset = open_dataset(path)
    written: list[list[Any]] = []
    for batch in range(batches):
        rows = batch_rows(writer, batch)
        written.append([dataset.upsert(rows).sequence, "U", rows])
        if (key := tombstoned_key(writer, batch)) is not None:
            written.append([dataset.tombstone([key]).sequence, "D", [key]])
    return written


def write_until_gone(path: str, writer: int, signals: str) -> dict[str, Any]:
    """Write until the dataset is dropped; return how many were acknowledged and the error that ended it."""
    dataset = open_dataset(path)
    acknowledged = 0
    while True:
        try:
            dataset.upsert([{"id": f"own-{writer}-{acknowledged}", "writer": writer, "batch": acknowledged}])
        except (Gone, NotFound) as error:
            return {"acknowledged": acknowledged, "error": type(error).__name__}
        acknowledged += 1
        if acknowledged == 3:
            (Path(signals) / f"writing-{writer}").touch()


def apply(log: list[list[Any]]) -> dict[str, list[int]]:
    """Return the rows of a dataset after these writes, in sequence order: the oracle."""
    rows: dict[str, list[int]] = {}
    for _, op, items in sorted(log, key=lambda item: int(item[0])):
        if op == "U":
            rows |= {item["id"]: [item["writer"], item["batch"]] for item in items}
        else:
            for key in items:
                rows.pop(key, None)
    return rows


def seen_rows(rows: list[dict[str, Any]]) -> dict[str, list[int]]:
    """Return rows by key; a duplicate key fails the test."""
    by_key = {row["id"]: [row["writer"], row["batch"]] for row in rows}
    assert len(by_key) == len(rows), "a key is there twice"
    return by_key


def compact_until_stopped(path: str, signals: str, purge_every: int = 0) -> dict[str, int]:
    """Fold in a loop, at intervals with a purge. Return the numbers of commits and of lost races."""
    dataset = open_dataset(path)
    counts = {"folds": 0, "purges": 0, "conflicts": 0}
    while not (Path(signals) / STOP).exists():
        purge = bool(purge_every) and counts["folds"] % purge_every == purge_every - 1
        try:
            dataset.compact(purge=purge)
        except (Conflict, Fenced):
            counts["conflicts"] += 1
            continue
        counts["folds"] += 1
        counts["purges"] += purge
        (Path(signals) / "folded").touch()
    return counts


def compact_together(path: str, signals: str, number: int) -> dict[str, Any]:
    """Fold, but commit only after all other processes have their plans."""
    dataset = open_dataset(path)

    def meet(_name: str) -> None:
        (Path(signals) / f"planned-{number}").touch()
        wait_for(Path(signals) / "go")

    with arm("fold.after_plan", meet):
        try:
            return {"report": dataset.compact().to_dict(), "error": None}
        except Conflict as error:
            return {"report": None, "error": type(error).__name__, "message": str(error)}


def compact_once(path: str, purge: bool = False) -> dict[str, Any]:  # noqa: FBT001, FBT002  # arguments are JSON
    """Fold once."""
    return open_dataset(path).compact(purge=purge).to_dict()


def ingest_together(path: str, source: str, signals: str, number: int) -> dict[str, Any]:
    """Load a file; wait with the files written and uncommitted until the go-ahead."""
    dataset = open_dataset(path)
    with _held("ingest.after_write", Path(signals), number):
        return dataset.ingest(source).to_dict()


@contextlib.contextmanager
def _held(failpoint: str, signals: Path, number: int) -> Iterator[None]:
    def hold(_name: str) -> None:
        (signals / f"written-{number}").touch()
        wait_for(signals / "go")

    with arm(failpoint, hold):
        yield


def read_until_stopped(path: str, signals: str) -> list[list[Any]]:
    """Read in a loop; return [acknowledged before, rows seen, acknowledged after] by the writer's count file."""
    dataset = open_dataset(path)
    seen: list[list[Any]] = []
    count = Path(signals) / "acknowledged"
    while not (Path(signals) / STOP).exists():
        before = _read_count(count)
        rows = seen_rows(dataset.to_arrow().to_pylist())
        seen.append([before, rows, _read_count(count)])
    return seen


def read_on_spark_until_stopped(path: str, signals: str) -> list[list[Any]]:
    """Read on Spark in a loop, with a new frame if a purge has deleted files; signal the end of the first read."""
    from siltstone.spark.errors import is_missing_file, spark_errors

    dataset = open_dataset(path)
    seen: list[list[Any]] = []
    count = Path(signals) / "acknowledged"
    while not (Path(signals) / STOP).exists():
        before = _read_count(count)
        try:
            rows = seen_rows(dataset.read().toArrow().to_pylist())
        except spark_errors() as error:
            if not is_missing_file(error):
                raise
            continue
        except Unavailable:
            continue
        seen.append([before, rows, _read_count(count)])
        (Path(signals) / "read-on-spark").touch()
    return seen


def _read_count(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def write_counting(path: str, signals: str, batches: int) -> list[list[Any]]:
    """Write batches, adding one byte to the count file after each acknowledgement."""
    dataset = open_dataset(path)
    written: list[list[Any]] = []
    with (Path(signals) / "acknowledged").open("ab", buffering=0) as count:
        for batch in range(batches):
            if batch % 4 == 3:
                key = f"own-0-{batch - 2}"
                written.append([dataset.tombstone([key]).sequence, "D", [key]])
            else:
                rows = batch_rows(0, batch)
                written.append([dataset.upsert(rows).sequence, "U", rows])
            count.write(b".")
            time.sleep(0.02)
    return written
