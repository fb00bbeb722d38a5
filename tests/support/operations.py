"""Operations that crash tests interrupt, and the visible state of a dataset as plain data.

Everything here takes and returns JSON values, so that it can run in a child process.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from deltalake import DeltaTable

from siltstone import Lake
from siltstone.config import Settings
from siltstone.dataset.dataset import Dataset
from siltstone.errors import Conflict, NotFound, SiltstoneError
from siltstone.failpoints import arm

NAME: Final = "crash.test.people"
SCHEMA: Final = "id STRING NOT NULL, n BIGINT, note STRING"
LOADED: Final = "loaded.parquet"
"""A Parquet file beside the lake that `ingest` loads."""

LOADED_EVENTS: Final = "loaded_events.parquet"
"""The same for a log."""

EXPORTED: Final = "exported"
"""The folder beside the lake that `export` creates."""

State = dict[str, Any]


def open_lake(path: str | Path, **given: Any) -> Lake:  # noqa: ANN401
    """Open a lake with settings for crash tests; a vacuum may delete at once."""
    return Lake.open(path, settings=Settings.load(lake=Path(path), vacuum_floor_hours=0.0, **given))


def row(number: int, n: int, note: str | None = None) -> dict[str, Any]:
    """Return one row."""
    return {"id": f"p-{number:03d}", "n": n, "note": note}


def event(number: int, n: int, note: str | None = None) -> dict[str, Any]:
    """Return one row of the log, an hour for each twenty."""
    return row(number, n, note) | {"at": f"2026-11-15T{n // 20 % 24:02d}:30:00Z"}


def observe(dataset: Dataset) -> State:
    """Return the state that readers see, without Spark."""
    status = dataset.status()
    return {
        "rows": _plain(dataset.to_arrow().to_pylist()),
        "raw": _plain(dataset.to_arrow(raw=True).to_pylist()),
        "sequence": status.sequence,
        "watermark": status.watermark,
        "tombstones": sorted([row["id"], row["sequence"]] for row in dataset.tombstones()),
        "exported": _exported(dataset),
    }


def _plain(rows: list[dict[str, Any]]) -> list[list[Any]]:
    return sorted([row["id"], row["n"], row["note"], *([row["score"]] if "score" in row else [])] for row in rows)


def state(path: str) -> State | None:
    """Open the lake afresh and observe its dataset; None if it does not exist."""
    with open_lake(path) as lake:
        try:
            return observe(lake.dataset(NAME))
        except NotFound:
            return None


def _exported(dataset: Dataset) -> list[list[Any]] | None:
    """Return the rows of the export beside the lake, read as any Delta reader would; None if there is no such folder."""
    target = dataset.path.parents[4] / EXPORTED
    return _plain(DeltaTable(target).to_pyarrow_table().to_pylist()) if target.exists() else None


def _create(lake: Lake) -> None:
    lake.create(NAME, SCHEMA, key="id")


def _create_log(lake: Lake) -> Dataset:
    return lake.create(NAME, f"{SCHEMA}, at TIMESTAMP", time="at", subject="id")


def _upsert(lake: Lake) -> None:
    rows = [row(number, 900 + number, "new") for number in (3, 8, 30, 31)] + [row(31, 77, "twice")]
    lake.dataset(NAME).upsert(rows, producer="feed", sequence=7)


def _tombstone(lake: Lake) -> None:
    lake.dataset(NAME).tombstone(["p-004", "p-024", "p-999"], actor="dpo", reason="asked", producer="feed", sequence=7)


def _append(lake: Lake) -> None:
    rows = [event(number, 900 + number, "new") for number in (3, 8, 30, 31)] + [event(31, 77, "twice")]
    lake.dataset(NAME).append(rows, producer="feed", sequence=7)


def _checkpoint(lake: Lake) -> None:
    dataset = lake.dataset(NAME)
    for turn in range(3):
        dataset.upsert([row(40 + turn, turn)], producer=f"feed{turn}", sequence=7)
    lake.close()


def _ingest(lake: Lake) -> None:
    dataset = lake.dataset(NAME)
    dataset.ingest(lake.path.parent / (LOADED if dataset.spec.key else LOADED_EVENTS))


def _quarantine(lake: Lake) -> None:
    beside = lake.path.parent
    bad = beside / "bad.parquet"
    bad.write_bytes(b"not Parquet")
    lake.dataset(NAME).ingest([beside / LOADED, bad], quarantine=beside / "quarantine")


def _alter(lake: Lake) -> None:
    lake.dataset(NAME).alter(add="score BIGINT", defaults={"score": 7}, comments={"n": "a number"})


def _roll_up(lake: Lake) -> None:
    for done in lake.run_cycle([NAME], only=["daily"], force=True):
        if done.error is not None:
            raise Conflict(done.error)


def _purge_beside_squash(lake: Lake) -> None:
    """Purge while another handle writes and squashes. The second squash of this operation is that of the purge."""

    def write_and_squash(_: str) -> None:
        _upsert(lake)
        lake.dataset(NAME).squash()

    with arm("fold.before_commit", write_and_squash):
        lake.dataset(NAME).compact(purge=True)


def _purge_beside_squash_again(lake: Lake) -> None:
    """Purge twice: the second fold includes the rows that were written beside the first one."""
    _purge_beside_squash(lake)
    _purge_beside_squash(lake)


def _export(lake: Lake) -> None:
    lake.dataset(NAME).export(lake.path.parent / EXPORTED, format="delta", overwrite=True)


def _export_again(lake: Lake) -> None:
    _export(lake)
    _export(lake)


OPERATIONS: Final[dict[str, Callable[[Lake], object]]] = {
    "create": _create,
    "drop": lambda lake: lake.drop(NAME),
    "upsert": _upsert,
    "upsert_files": _upsert,
    "append": _append,
    "tombstone": _tombstone,
    "checkpoint": _checkpoint,
    "ingest": _ingest,
    "quarantine": _quarantine,
    "alter": _alter,
    "squash": lambda lake: lake.dataset(NAME).squash(),
    "fold": lambda lake: lake.dataset(NAME).compact(),
    "roll_up": _roll_up,
    "cluster": lambda lake: lake.dataset(NAME).cluster(),
    "purge": lambda lake: lake.dataset(NAME).compact(purge=True),
    "purge_beside_squash": _purge_beside_squash,
    "purge_beside_squash_again": _purge_beside_squash_again,
    "vacuum": lambda lake: lake.dataset(NAME).vacuum(retention_hours=0),
    "export": _export,
    "export_again": _export_again,
}


SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "checkpoint": {"checkpoint_interval_commits": 1},
    "upsert_files": {"upsert_rows": 2},  # one batch of three files
    "ingest": {"target_file_bytes": 500},  # several files: rows are spread and gathered
}


def _open_for(path: str, operation: str) -> Lake:
    return open_lake(path, **SETTINGS.get(operation, {}))


def perform(path: str, operation: str) -> None:
    """Do one operation on the lake at the path."""
    with _open_for(path, operation) as lake:
        OPERATIONS[operation](lake)


def perform_failing(path: str, operation: str, failpoint: str, count: int) -> dict[str, Any]:
    """Run one operation that gets an OSError at the fail point; then observe, and repeat it through the same handle."""
    raised: str | None = None
    with _open_for(path, operation) as lake:
        with arm(failpoint, "raise", count=count):
            try:
                OPERATIONS[operation](lake)
            except (SiltstoneError, OSError) as error:
                raised = type(error).__name__
        seen = state(path)
        try:
            same_handle = observe(lake.dataset(NAME))
        except NotFound:
            same_handle = None
        repeated: str | None = None
        try:
            OPERATIONS[operation](lake)
        except (SiltstoneError, OSError) as error:
            repeated = type(error).__name__
    return {"raised": raised, "seen": seen, "same_handle": same_handle, "repeated": repeated}


def build_lakes(folder: str) -> None:
    """Create the initial lakes of crash tests; this needs Spark, so it runs in a child with Spark.

    ``empty``: a dataset without rows. ``pending``: base after two folds (with files that they removed), and changes of
    every unfolded kind. ``folded``: the same, folded, with its removed files still on disk. ``log``: as
    ``pending``, but a log with the keys as subjects. ``empty_log``: such a log without rows.
    """
    root = Path(folder)
    with open_lake(root / "empty") as lake:
        _create(lake)
    with open_lake(root / "pending") as lake:
        _create(lake)
        people = lake.dataset(NAME)
        _write_history(people, people.upsert, row)
    with open_lake(root / "empty_log") as lake:
        _create_log(lake)
    with open_lake(root / "log") as lake:
        log = _create_log(lake)
        _write_history(log, log.append, event)
    shutil.copytree(root / "pending", root / "folded")
    perform(str(root / "folded"), "fold")


def _write_history(
    dataset: Dataset, write: Callable[[list[dict[str, Any]]], object], make: Callable[..., dict[str, Any]]
) -> None:
    """Write two batches that are folded, and changes that are not. The last two rows have one key: both count in a log."""
    write([make(number, number) for number in range(20)])
    dataset.compact()
    write([make(number, 100 + number, "second") for number in range(15, 25)])
    dataset.tombstone(["p-001"])
    dataset.compact()
    write([make(number, 200 + number, "third") for number in (2, 3, 24, 25, 26)])
    dataset.tombstone(["p-002", "p-005", "p-006", "p-888"], actor="dpo", reason="request")
    write([make(6, 600, "back"), make(27, 1), make(27, 2, "last")])
