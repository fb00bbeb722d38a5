"""Processes that work on one log at once, and checks of its rows. Everything takes and returns JSON values."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from siltstone import Lake
from siltstone.config import Settings
from siltstone.dataset.dataset import Dataset
from siltstone.errors import Conflict
from siltstone.failpoints import arm
from tests.support.actors import STOP
from tests.support.internals import store_of

NAME: Final = "stress.test.events"
COUNTED: Final = "rows"
FORGOTTEN: Final = "forgotten"
BATCH_ROWS: Final = 5


def _open(path: str) -> Lake:
    tiers = "hourly.min_files=2; hourly.target_bytes=1MB; daily.min_files=2; daily.target_bytes=1MB"
    return Lake.open(path, settings=Settings.load(lake=Path(path), squash_files=8, tiers=tiers))


def make(path: str) -> None:
    """Create the log."""
    with _open(path) as lake:
        lake.create(NAME, "at TIMESTAMP, who STRING, name STRING", time="at", subject="who")


def _log(lake: Lake) -> Dataset:
    return lake.dataset(NAME)


def append_for(path: str, writer: int, seconds: float) -> dict[str, Any]:
    """Append batches, at least one, and hide every fourth one.

    Return the number of expected rows, and the hidden ones.
    """
    counted, forgotten = 0, []
    end = time.monotonic() + seconds
    with _open(path) as lake:
        log = _log(lake)
        turn = 0
        while not turn or time.monotonic() < end:
            who = f"w{writer}-{turn}"
            names = [f"{who}-{number}" for number in range(BATCH_ROWS)]
            rows = [
                {"at": f"2026-11-15T{turn % 3:02d}:00:00Z", "who": who, "name": name} for turn, name in enumerate(names)
            ]
            log.append(rows, producer=who, sequence=1)
            log.append(rows, producer=who, sequence=1)  # again, as after a lost acknowledgement
            if turn % 4 == 3:
                log.tombstone([who])
                forgotten += names
            else:
                counted += BATCH_ROWS
            turn += 1
    return {COUNTED: counted, FORGOTTEN: forgotten}


def fold_for(path: str, seconds: float) -> int:
    """Fold for a time, and until at least one fold succeeds; return the number of folds."""
    end = time.monotonic() + seconds
    folds = 0
    with _open(path) as lake:
        log = _log(lake)
        while not folds or time.monotonic() < end:
            try:
                folds += bool(log.compact().batches_folded)
            except Conflict:
                continue
    return folds


def fold_once(path: str) -> None:
    """Fold once."""
    with _open(path) as lake:
        _log(lake).compact()


def names_of(path: str) -> list[str]:
    """Return the names of the visible rows."""
    with _open(path) as lake:
        return [str(name) for name in _log(lake).to_arrow().column("name").to_pylist()]


def count_of(path: str) -> int:
    """Return the number of visible rows."""
    return len(names_of(path))


ACKNOWLEDGED: Final = "acknowledged"
HIDING: Final = "hiding"
HIDDEN: Final = "hidden"
BREATH_SECONDS: Final = 0.05
REST_SECONDS: Final = 0.3
"""Pause between steps. Nine processes share a small machine: fast ones must leave time to those that wait for Spark."""


def _note(signals: str, kind: str, writer: int, names: Iterable[str]) -> None:
    """Write a report for readers in other processes; a line is written completely or not at all."""
    with (Path(signals) / f"{kind}-{writer}").open("ab", buffering=0) as file:
        file.write("".join(f"{name}\n" for name in names).encode())


def noted(signals: str, kind: str) -> set[str]:
    """Return the reports of writers."""
    return {
        line
        for path in Path(signals).glob(f"{kind}-*")
        for line in path.read_text().rpartition("\n")[0].split("\n")
        if line
    }


def _stopped(signals: str) -> bool:
    return (Path(signals) / STOP).exists()


def row_of(name: str) -> dict[str, str]:
    """Return the row of a name, which determines its time and its person."""
    who, _, number = name.rpartition("-")
    return {"at": f"2024-05-{14 + int(number) % 2}T{int(number) % 3:02d}:00:00+00:00", "who": who, "name": name}


def append_until_stopped(path: str, signals: str, writer: int) -> list[str]:
    """Append batches, and hide every fifth person again, who then returns once; return the expected names."""
    loaded: list[str] = []
    with _open(path) as lake:
        log = _log(lake)
        turn = 0
        while not _stopped(signals):
            who = f"w{writer}-{turn}"
            names = [f"{who}-{number}" for number in range(BATCH_ROWS)]
            log.append([row_of(name) for name in names])
            _note(signals, ACKNOWLEDGED, writer, names)
            if turn % 5 == 4:
                _note(signals, HIDING, writer, names)
                log.tombstone([who])
                _note(signals, HIDDEN, writer, names)
                names = [f"{who}-{BATCH_ROWS}"]
                log.append([row_of(names[0])])
                _note(signals, ACKNOWLEDGED, writer, names)
            loaded += names
            turn += 1
            time.sleep(BREATH_SECONDS)
    return loaded


def compact_log_until_stopped(path: str, signals: str, work: str) -> dict[str, int]:
    """Run one kind of job, or one tier, repeatedly. Return the numbers of commits and of lost races."""
    counts = {"done": 0, "refused": 0}
    with _open(path) as lake:
        while not _stopped(signals):
            for result in lake.run_cycle([NAME], only=[work], force=True):
                counts["done" if result.error is None else "refused"] += 1
            if counts["done"]:
                (Path(signals) / f"done-{work}").touch()
            time.sleep(REST_SECONDS)
    return counts


def read_log_until_stopped(path: str, signals: str, number: int, on_spark: bool = False) -> dict[str, Any]:  # noqa: FBT001, FBT002
    """Read repeatedly; return the number of reads, and the first wrong read."""
    readings = 0
    with _open(path) as lake:
        log = _log(lake)
        while not _stopped(signals):
            before, gone = noted(signals, ACKNOWLEDGED), noted(signals, HIDDEN)
            table = log.read().select("name").toArrow() if on_spark else log.to_arrow()
            shown = [str(name) for name in table.column("name").to_pylist()]
            readings += 1
            wrong = {
                "twice": len(shown) - len(set(shown)),
                "lost": sorted(before - set(shown) - noted(signals, HIDING)),
                "still there": sorted(gone & set(shown)),
            }
            if any(wrong.values()):
                return {"readings": readings, "wrong": wrong}
            (Path(signals) / f"read-{number}").touch()
            time.sleep(REST_SECONDS)
    return {"readings": readings, "wrong": None}


def fold_and_roll_up(path: str) -> list[str]:
    """Fold and roll up all rows; return the errors."""
    with _open(path) as lake:
        _log(lake).compact()
        results = lake.run_cycle([NAME], only=["roll_up"], force=True)
        return [result.error for result in results if result.error]


def files_of(path: str) -> dict[str, int]:
    """Return the number of files of each period."""
    with _open(path) as lake:
        counts: dict[str, int] = {}
        for file in store_of(_log(lake)).snapshot().base.files:
            period = file.partition["_period"] or ""
            counts[period] = counts.get(period, 0) + 1
        return counts


def rows_of(path: str) -> list[dict[str, str]]:
    """Return the visible rows, times as text."""
    with _open(path) as lake:
        return [row | {"at": row["at"].isoformat()} for row in _log(lake).to_arrow().to_pylist()]


APPENDED: Final = "appended"
MEET_SECONDS: Final = 60.0


def make_logs(path: str, names: list[str]) -> None:
    """Create empty logs."""
    with _open(path) as lake:
        for name in names:
            lake.create(name, "at TIMESTAMP, who STRING, name STRING", time="at", subject="who")


def first_loads(path: str, signals: str, me: int, files: dict[str, str]) -> list[dict[str, Any]]:
    """Load a file into each of some empty logs, all written before the other process has committed.

    Return the reports.
    """
    reports = []
    with _open(path) as lake:
        for name, file in files.items():
            with arm("ingest.after_write", _meeting(Path(signals), name, me)):
                report = lake.dataset(name).ingest(file)
            reports.append({"first": report.first_load, "rows": report.rows, "skipped": report.files_skipped})
    return reports


def _meeting(signals: Path, name: str, me: int) -> Callable[[str], None]:
    """Return a function that waits, once, until both loads are written and rows were appended meanwhile."""
    awaited = [signals / f"{name}-{step}" for step in ("0", "1", APPENDED)]

    def meet(_place: str) -> None:
        (signals / f"{name}-{me}").touch()
        end = time.monotonic() + MEET_SECONDS
        while not all(file.exists() for file in awaited):
            assert time.monotonic() < end, f"{name} was not reached in time"
            time.sleep(0.01)

    return meet


def append_beside(path: str, signals: str, names: list[str]) -> dict[str, list[str]]:
    """Append to each log while its loads are written, and until the stop file exists; return the names of the rows."""
    appended: dict[str, list[str]] = {name: [] for name in names}
    with _open(path) as lake:
        logs = {name: lake.dataset(name) for name in names}
        while not _stopped(signals):
            for name, log in logs.items():
                if not any((Path(signals) / f"{name}-{loader}").exists() for loader in range(2)):
                    continue  # its load must start on an empty log
                row = row_of(f"appended-{len(appended[name])}")
                log.append([row])
                appended[name].append(row["name"])
                (Path(signals) / f"{name}-{APPENDED}").touch()
            time.sleep(BREATH_SECONDS)
    return appended


def names_by_log(path: str, names: list[str], fold: bool = False) -> dict[str, list[str]]:  # noqa: FBT001, FBT002
    """Return the visible names of each log, optionally after a fold."""
    with _open(path) as lake:
        shown = {}
        for name in names:
            log = lake.dataset(name)
            if fold:
                log.compact()
            shown[name] = sorted(str(row_name) for row_name in log.to_arrow().column("name").to_pylist())
        return shown
