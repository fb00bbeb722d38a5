"""Snapshots of a dataset: the state that a reader sees, as two pinned tables and a watermark.

A *snapshot* is (changes version c, base version v, watermark w), taken in this order. Open `changes` at c, *then*
`base` at v, then read the watermark of that same v. Changes are pruned only after the fold that holds them has
committed. So this order can never miss a change; the other order can.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from siltstone.delta.table import TableVersion
from siltstone.errors import Conflict, Corruption, Reason, SiltstoneError, Unavailable
from siltstone.model.columns import APP_CONTENT, APP_EPOCH, APP_SEQ, SEQ
from siltstone.model.files import DataFile
from siltstone.model.schema import own_columns

if TYPE_CHECKING:
    from siltstone.dataset.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state that a reader sees: both tables pinned, and the watermark up to which changes are in base."""

    changes: TableVersion
    base: TableVersion
    watermark: int
    past: bool = False
    """True for an earlier state. Its derived data is not cached, because later reads cannot use it."""

    @property
    def sequence(self) -> int:
        """The highest sequence that this snapshot contains."""
        return max(self.watermark, self.changes.transactions.get(APP_SEQ, 0))

    @property
    def unfolded(self) -> tuple[DataFile, ...]:
        """The change files that can hold rows above the watermark, oldest first."""
        live = [file for file in self.changes.files if sequence_of(file) > self.watermark]
        return tuple(sorted(live, key=lambda file: (sequence_of(file), file.path)))

    @property
    def unfolded_rows(self) -> int:
        """Number of change rows in those files."""
        return sum(file.rows for file in self.unfolded)

    def until(self, sequence: int) -> "Snapshot":
        """Return the state after a sequence, or after the last one before it at which a change file ends."""
        files = tuple(file for file in self.changes.files if sequence_of(file) <= sequence)
        last = max((sequence_of(file) for file in files), default=0)
        return replace(self, changes=replace(self.changes, files=files, transactions={APP_SEQ: last}), past=True)

    @property
    def changed_ms(self) -> tuple[int, int] | None:
        """Commit times of the first and the last unfolded change; None if a squash has hidden the first one's time."""
        times = [file.modified_ms for file in self.unfolded]
        first = [file.modified_ms for file in self.unfolded if sequence_of(file) == self.watermark + 1]
        return (min(first), max(times)) if first and all(times) else None

    @property
    def epoch(self) -> int:
        """The highest epoch that has committed to base."""
        return self.base.transactions.get(APP_EPOCH, 0)

    @property
    def content(self) -> int:
        """The content version: it grows when rows appear or disappear without a change row."""
        return self.base.transactions.get(APP_CONTENT, 0)


def check_columns(store: "Store", snapshot: Snapshot) -> None:
    """Raise Conflict if another process altered the dataset: rows must not be rewritten in columns that it lacks."""
    expected = {f.name: f.type for f in store.schema}
    tables = (snapshot.base, snapshot.changes)
    if any({f.name: f.type for f in own_columns(table.schema)} != expected for table in tables):
        raise Conflict(
            f"Dataset {store.name}: its columns were altered meanwhile. Plan again.", reason=Reason.SCHEMA_CHANGED
        )


def files_vanished(store: "Store") -> SiltstoneError:
    """Return why files were missing at every try: a live file is lost, or other files were removed each time."""
    # twice, because a compaction may remove a file between the listing and the check
    lost = _missing_files(store) & _missing_files(store)
    if lost:
        return Corruption(
            f"Dataset {store.name}: live file {min(lost)} is missing from {store.path}. Restore it from a copy.",
            reason=Reason.MISSING_FILE,
            paths=sorted(lost),
        )
    return Unavailable(f"Dataset {store.name}: files kept disappearing while it was read. Try again.")


def _missing_files(store: "Store") -> set[str]:
    snapshot = store.snapshot()
    live = (
        (table.path, file.path)
        for table, files in ((store.base, snapshot.base.files), (store.changes, snapshot.changes.files))
        for file in files
    )
    return {f"{folder.name}/{path}" for folder, path in live if not (folder / path).exists()}


def sequence_of(file: DataFile) -> int:
    """Return the sequence of a change file: its partition value."""
    return int(file.partition[SEQ] or 0)
