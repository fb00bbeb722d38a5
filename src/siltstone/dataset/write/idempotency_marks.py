"""Marks of applied writes, and how the oldest are forgotten.

A mark is an app transaction on `changes`, set in the commit that it records. ``producer/<id>`` has the producer's last
sequence, and ``producer/<id>/ack`` the sequence of that write. ``loaded/<sha256>`` has the sequence of a load. Whether
a write was applied is read from its mark. So no clock may drop a mark: it has no time and never expires.

To keep logs small, a dataset retains only the newest marks (setting `idempotence_marks`). The newest are those with the
highest sequence of their last write. One commit forgets the others and depends on each of them. If one of these producers
writes meanwhile, this commit is a Conflict, and nothing is forgotten. A forgotten mark carries a time of long ago, and the
next checkpoint drops it.
"""

from collections.abc import Mapping
from typing import Final

from siltstone.delta.table import Table
from siltstone.errors import Conflict
from siltstone.model.columns import APP_LOADED, APP_PRODUCER
from siltstone.model.commit import Commit, CommitKind

ACK: Final = "/ack"
"""Suffix of a producer's second mark: the sequence of its last write."""
REMAINING_SHARE: Final = 0.9
"""Share of the limit that is left after forgetting, so that it does not follow every checkpoint."""


def loaded_marks(table: Table) -> set[str]:
    """Return the marks of loaded files in the newest version of a table."""
    return set(table.marks(APP_LOADED))


def forget_oldest(table: Table, *, most: int) -> int:
    """Forget the oldest marks beyond `most`; return how many. A crash leaves all of them, or the commit."""
    marks = table.marks(APP_PRODUCER, APP_LOADED)
    oldest = _oldest(marks, most=most)
    if not oldest:
        return 0
    forgotten = {app: marks[app] for mark in oldest for app in (mark, mark + ACK) if app in marks}
    version = table.version()
    commit = Commit(kind=CommitKind.FORGET, plan_version=version, forgets=forgotten, depends=frozenset(forgotten))
    now = table.marks(APP_PRODUCER, APP_LOADED)
    if any(now.get(app) != number for app, number in forgotten.items()):  # one moved before the plan's version
        raise Conflict(f"{table.label}: a producer wrote while the oldest marks were chosen; none was forgotten.")
    table.commit(lambda _: commit)
    return len(oldest)


def _oldest(marks: Mapping[str, int], *, most: int) -> list[str]:
    """Choose the marks that are beyond the limit, the lowest sequence first.

    >>> _oldest({"producer/a": 9, "producer/a/ack": 3, "loaded/x": 1, "loaded/y": 2}, most=2)
    ['loaded/x', 'loaded/y']
    >>> _oldest({"loaded/x": 1, "loaded/y": 2}, most=2)
    []
    """
    sequences = {app: marks.get(app + ACK, number) for app, number in marks.items() if not app.endswith(ACK)}
    if len(sequences) <= most:
        return []
    ordered = sorted(sequences, key=lambda app: (sequences[app], app))
    return ordered[: len(sequences) - int(most * REMAINING_SHARE)]
