"""Invariants between the two tables of a dataset, and how they break.

In every sound dataset "siltstone.prune" <= "siltstone.fold" <= "siltstone.seq". Changes are pruned after the fold that
holds them, and a fold reads only written changes. Above the watermark no sequence is missing. Each has a change file of
its own, or is in the range of a squashed file. That file has the last number of its range.

Files that were copied beside a writer and restored can break this:

* `changes` is older than `base`: the next write would get a sequence that base counts as folded, and stay invisible;
* `base` is older than `changes`: pruned rows are in neither table;
* an entry or checkpoint was lost: a sequence is missing.

Each is Corruption for readers and writers. Every check uses only data that was already read. A writer compares the
watermark that it has read *before* it acquires the commit lock. A reader opens `changes` again only if the watermark is
above its sequence.
"""

from collections.abc import Iterable

from siltstone.delta.layout import is_squashed
from siltstone.errors import Corruption
from siltstone.model.columns import SEQ
from siltstone.model.files import DataFile
from siltstone.model.names import DatasetName


def check_watermark(name: DatasetName, *, sequence: int, watermark: int) -> None:
    """Raise Corruption if `changes` is older than `base`. The sequence must have been read after the watermark."""
    if watermark > sequence:
        raise Corruption(
            f"Dataset {name}: base holds the changes up to sequence {watermark}, and the last sequence of changes is {sequence}. "
            "The folder of changes is older than that of base, as after a copy beside a writer. Nothing was read or written. "
            "Restore both from one backup, or run silt doctor --repair, which raises the sequence."
        )


def check_pruned(name: DatasetName, *, pruned: int, watermark: int) -> None:
    """Raise Corruption if `base` is older than `changes`. The watermark must have been read after `pruned`."""
    if pruned > watermark:
        raise Corruption(
            f"Dataset {name}: changes were pruned up to sequence {pruned}, and base holds them only up to {watermark}. The "
            "folder of base is older than that of changes, and the rows in between are in neither. Nothing was read or written. "
            "Restore both from one backup."
        )


def check_gapless(name: DatasetName, files: Iterable[DataFile], *, watermark: int, sequence: int) -> None:
    """Raise Corruption if live change files do not hold every sequence above the watermark."""
    numbered: dict[int, bool] = {}
    for file in files:
        number = int(file.partition[SEQ] or 0)
        if number > watermark:
            numbered[number] = numbered.get(number, False) or is_squashed(file.path)
    expected = watermark + 1
    for number in sorted(numbered):
        if number > expected and not numbered[number]:
            raise _missing(name, expected, number - 1)
        expected = number + 1
    if expected <= sequence:
        raise _missing(name, expected, sequence)
    if numbered and expected - 1 > sequence:
        raise Corruption(
            f"Dataset {name}: changes hold sequence {expected - 1}, but their log ends at sequence {sequence}. A log "
            "entry was lost in part. Nothing was read or written. Restore the dataset's folder from a backup."
        )


def _missing(name: DatasetName, first: int, last: int) -> Corruption:
    which = f"sequence {first} is" if first == last else f"sequences {first} to {last} are"
    return Corruption(
        f"Dataset {name}: {which} missing from changes, although later ones exist or were acknowledged. A log entry or "
        "checkpoint was lost. Nothing was read or written. Restore the dataset's folder from a backup."
    )
