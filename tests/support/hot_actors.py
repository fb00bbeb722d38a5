"""Processes of hot cache tests: a writer, a compactor without Spark, a reader, and one that evicts.

No other process writes. So sequence i is the writer's i-th step and determines the rows of an answer.
"""

import contextlib
import os
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from siltstone import Dataset, Lake
from siltstone.compaction.operations.garbage_collection import purge_files
from siltstone.config import Settings
from siltstone.delta.log_replay import LogChanged
from siltstone.errors import Conflict, Gone
from siltstone.model.commit import Commit, CommitKind
from tests.support import clicks, people
from tests.support.actors import wait_for
from tests.support.folds import fold_by_arrow, stage
from tests.support.hot import fold_log
from tests.support.internals import store_of

KEYS: Final = 50
TOMBSTONE_EVERY: Final = 7
ACKNOWLEDGED: Final = "acknowledged"
ANSWERED: Final = "answered"
COMPACTED: Final = "compacted"
STOP: Final = "stop"
PACE: Final = 10
"""Steps after which the writer waits for the reader."""
SETTINGS: Final = Settings(durable=False)
RESIDENT_BYTES: Final = 220 * 1024 * 1024
BLOB_BYTES: Final = 4096
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
WAIT_SECONDS: Final = 60.0
STILL_SECONDS: Final = 3.0
MOVED_BYTES: Final = 2 * 1024 * 1024


class Expected:
    """The rows after each sequence, computed step by step."""

    def __init__(self, *, log: bool) -> None:
        self.log = log
        self.sequence = 0
        self.rows: dict[Any, Any] = {}

    def at(self, sequence: int) -> dict[Any, Any]:
        """Return the rows of a sequence that is not lower than the last requested one."""
        while self.sequence < sequence:
            self.sequence += 1
            self._step(self.sequence)
        return self.rows

    def _step(self, number: int) -> None:
        if number % TOMBSTONE_EVERY == 0 and self.log:
            self.rows = {n: visitor for n, visitor in self.rows.items() if visitor != f"V-{number % 5}"}
        elif number % TOMBSTONE_EVERY == 0:
            self.rows.pop(people.key((number - 1) % KEYS), None)
        elif self.log:
            self.rows[number] = f"V-{number % 5}"
        else:
            self.rows[people.key(number % KEYS)] = number


def step(dataset: Dataset, number: int) -> None:
    """Run the writer's n-th step."""
    log = dataset.spec.is_log
    if number % TOMBSTONE_EVERY == 0:
        dataset.tombstone([{"visitor": f"V-{number % 5}"}] if log else [people.key((number - 1) % KEYS)])
    elif log:
        dataset.append([clicks.click(number)])
    else:
        dataset.upsert([people.person(number % KEYS, n=number)])


def write(path: str, name: str, signals: str, steps: int) -> int:
    """Write step by step, and report progress after each acknowledgement."""
    with Lake.open(path, settings=SETTINGS) as lake:
        dataset = lake.dataset(name)
        for number in range(1, steps + 1):
            step(dataset, number)
            draft = Path(signals) / "draft"
            draft.write_text(str(number))
            draft.rename(Path(signals) / ACKNOWLEDGED)
            if number % PACE == 0:
                wait_for(Path(signals) / f"{ANSWERED}-{number}")
            if number == steps // 2:
                wait_for(Path(signals) / COMPACTED)
    return steps


def compact(path: str, name: str, signals: str) -> dict[str, int]:
    """Fold, squash, rewrite base and purge, repeatedly, until stopped."""
    done = {"fold": 0, "squash": 0, "rewrite": 0, "purge": 0}
    with Lake.open(path, settings=SETTINGS) as lake:
        dataset = lake.dataset(name)
        while not (Path(signals) / STOP).exists():
            for what in ("squash", "fold", "rewrite", "squash", "fold", "purge"):
                with contextlib.suppress(Conflict, Gone, LogChanged, FileNotFoundError):
                    _compact(dataset, what)
                    done[what] += 1
                if all(done.values()):
                    (Path(signals) / COMPACTED).touch()
                time.sleep(0.02)
    return done


def _compact(dataset: Dataset, what: str) -> None:
    match what:
        case "squash":
            dataset.squash()
        case "fold" if dataset.spec.is_log:
            fold_log(dataset)
        case "fold":
            fold_by_arrow(dataset, files=2)
        case "rewrite":
            _rewrite(dataset)
        case _:
            purge_files(store_of(dataset))


def _rewrite(dataset: Dataset) -> None:
    """Rewrite the files of base, as a roll-up or a clustering does: rows only move between files."""
    import pyarrow.parquet as pq

    store = store_of(dataset)
    base = store.base.pin()
    staged = tuple(
        stage(store, store.base, pq.read_table(store.base.path / file.path, partitioning=None), dict(file.partition))
        for file in base.files
    )
    store.base.commit(
        lambda _: Commit(kind=CommitKind.CLUSTER, plan_version=base.version, adds=staged, removes=base.files)
    )


def resident_bytes() -> int:
    """Return the memory that the system counts for this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def fill_and_evict(path: str) -> dict[str, float]:
    """Fill some hundred megabytes and evict them. Return the system's count before, and after it has fallen."""
    count = RESIDENT_BYTES // BLOB_BYTES
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("blob", pa.binary())])
    with Lake.open(path, settings=SETTINGS) as lake:
        dataset = lake.create("big.test.blobs", schema, key="id")
        noise = np.random.default_rng(1).bytes(count * BLOB_BYTES)
        blobs = pa.FixedSizeBinaryArray.from_buffers(pa.binary(BLOB_BYTES), count, [None, pa.py_buffer(noise)])
        dataset.upsert(pa.table([pa.array(range(count)), blobs.cast(pa.binary())], schema=schema))
        del noise, blobs
        entry = lake.hot.fill("big.test.blobs")
        with lake.hot.snapshot(["big.test.blobs"]) as hot:
            hot.cursor.execute(f"SELECT sum(octet_length(blob)) FROM {hot.tables['big.test.blobs']}").fetchall()
        before = _settled()
        started = time.monotonic()
        lake.hot.evict("big.test.blobs")
        after = _fallen(before - int(0.7 * entry.size_bytes))
        return {
            "evicted": entry.size_bytes,
            "before": before,
            "after": after,
            "seconds": time.monotonic() - started,
        }


def _settled() -> int:
    """Wait until memory is stable for three seconds: memory that a fill used besides its rows has been freed."""
    deadline = time.monotonic() + WAIT_SECONDS
    still_since, last = time.monotonic(), resident_bytes()
    while time.monotonic() < min(deadline, still_since + STILL_SECONDS):
        time.sleep(0.1)
        now = resident_bytes()
        if abs(now - last) > MOVED_BYTES:
            still_since, last = time.monotonic(), now
    return resident_bytes()


def _fallen(below: int) -> int:
    """Wait until memory is below a limit, at most `WAIT_SECONDS`, and return it."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline and resident_bytes() > below:
        time.sleep(0.1)
    return resident_bytes()
