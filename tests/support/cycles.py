"""Cycles that crash tests interrupt: squashes of two datasets, without Spark. Everything takes and returns JSON values."""

from pathlib import Path
from typing import Any, Final

from siltstone import Lake
from siltstone.config import Settings
from siltstone.model.compaction_request import CompactionRequest, RequestKind
from tests.support.internals import recovery_of

NAMES: Final = ("crash.cycle.first", "crash.cycle.second")
ROWS: Final = 4


def open_cycles(path: str | Path) -> Lake:
    """Open the lake; only a cycle squashes."""
    return Lake.open(path, settings=Settings.load(lake=Path(path), squash_files=0, durable=False))


def forced(path: str | Path) -> Lake:
    """Open the lake for a cycle that squashes."""
    return Lake.open(path, settings=Settings.load(lake=Path(path), durable=False))


def build(path: str, rows: int = ROWS) -> None:
    """Create a lake with two datasets, each with a number of small change files."""
    with open_cycles(path) as lake:
        for name in NAMES:
            dataset = lake.create(name, "id STRING NOT NULL, n BIGINT", key="id")
            for number in range(rows):
                dataset.upsert([{"id": f"p{number}", "n": number}])


def cycle(path: str) -> dict[str, Any]:
    """Run a cycle that squashes both."""
    with forced(path) as lake:
        return lake.run_cycle(only=["squash"], force=True).to_dict()


def submit(path: str, what: str) -> dict[str, Any]:
    """Squash or purge the first dataset."""
    purge = what == "purge"
    kind = RequestKind.COMPACT if purge else RequestKind(what)
    with forced(path) as lake:
        return lake.submit(CompactionRequest(kind=kind, names=NAMES[:1], purge=purge)).to_dict()


def recover(path: str) -> dict[str, Any]:
    """Recover the lake."""
    with forced(path) as lake:
        return lake.recover().to_dict()


def observe(path: str) -> dict[str, Any]:
    """Return the rows and files of both datasets, and the cycles and jobs of the journal."""
    with forced(path) as lake:
        datasets = [lake.dataset(name) for name in NAMES]
        return {
            "rows": [sorted((row["id"], row["n"]) for row in dataset.to_arrow().to_pylist()) for dataset in datasets],
            "files": [dataset.status().backlog_files for dataset in datasets],
            "unreferenced": sum(dataset.status().unreferenced_files for dataset in datasets),
            "cycles": [entry.status for entry in lake.history()],
            "jobs": {record.dataset: record.status.name for record in reversed(lake.jobs())},
            "unfinished": len(recovery_of(lake).unsettled().running),
        }
