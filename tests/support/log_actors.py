"""Processes that work on one log at once, and what it shows then. Everything takes and returns JSON values."""

import time
from pathlib import Path
from typing import Any, Final

from siltstone import Lake
from siltstone.config import Settings
from siltstone.dataset.dataset import Dataset
from siltstone.errors import Conflict

NAME: Final = "stress.test.events"
COUNTED: Final = "rows"
FORGOTTEN: Final = "forgotten"
BATCH_ROWS: Final = 5


def _open(path: str) -> Lake:
    return Lake.open(path, settings=Settings.load(lake=Path(path), squash_files=8))


def make(path: str) -> None:
    """Create the log."""
    with _open(path) as lake:
        lake.create(NAME, "at TIMESTAMP, who STRING, name STRING", time="at", subject="who")


def _log(lake: Lake) -> Dataset:
    return lake.dataset(NAME)


def append_for(path: str, writer: int, seconds: float) -> dict[str, Any]:
    """Append batches, and hide every fourth one again; return how many rows must be there, and which must not."""
    counted, forgotten = 0, []
    end = time.monotonic() + seconds
    with _open(path) as lake:
        log = _log(lake)
        turn = 0
        while time.monotonic() < end:
            who = f"w{writer}-{turn}"
            names = [f"{who}-{number}" for number in range(BATCH_ROWS)]
            rows = [
                {"at": f"2026-11-15T{turn % 3:02d}:00:00Z", "who": who, "name": name} for turn, name in enumerate(names)
            ]
            log.append(rows, producer=who, sequence=1)
            log.append(rows, producer=who, sequence=1)  # again, as after a lost answer
            if turn % 4 == 3:
                log.tombstone([who])
                forgotten += names
            else:
                counted += BATCH_ROWS
            turn += 1
    return {COUNTED: counted, FORGOTTEN: forgotten}


def fold_for(path: str, seconds: float) -> int:
    """Fold again and again; return how many folds there were."""
    end = time.monotonic() + seconds
    folds = 0
    with _open(path) as lake:
        log = _log(lake)
        while time.monotonic() < end:
            try:
                folds += bool(log.compact().batches_folded)
            except Conflict:
                continue
    return folds


def fold_once(path: str) -> None:
    """Fold what is there."""
    with _open(path) as lake:
        _log(lake).compact()


def names_of(path: str) -> list[str]:
    """Return what is shown."""
    with _open(path) as lake:
        return [str(name) for name in _log(lake).to_arrow().column("name").to_pylist()]


def count_of(path: str) -> int:
    """Return how many rows are shown."""
    return len(names_of(path))
