"""Finds the commits of a job in the log of its table: every commit carries the id of its job."""

from typing import Final

from siltstone.compaction.planning.model import JobKind
from siltstone.dataset.store import Store
from siltstone.delta.log_reader import LogEntry, list_log, read_entry
from siltstone.delta.table import Table
from siltstone.model.columns import COMMIT_KIND, JOB
from siltstone.model.commit import CommitKind

_ASIDE: Final = frozenset(
    {CommitKind.PRUNE.value, CommitKind.EPOCH.value, CommitKind.METADATA.value, CommitKind.RESTORE.value}
)
"""Commits that are made beside a job's own commit. The next job repeats them if they are missing."""


def table_of(store: Store, kind: JobKind) -> Table | None:
    """Return the table that a kind of job commits to; None if the kind has no commit of its own."""
    match kind:
        case JobKind.FOLD | JobKind.ROLL_UP | JobKind.CLUSTER | JobKind.PURGE:
            return store.base
        case JobKind.SQUASH:
            return store.changes
        case JobKind.VACUUM | JobKind.EVENTS:
            return None


def version_of(store: Store, kind: JobKind) -> int | None:
    """Return the current version of the table that a kind of job commits to. The job's commits have higher versions."""
    table = table_of(store, kind)
    return table.version() if table is not None else None


def commits_of(store: Store, kind: JobKind, job: str, *, above: int | None = None) -> list[LogEntry]:
    """Return the commits of a job above a version, oldest first, as far as the log still has them.

    `base` keeps its log entries for days, `changes` for minutes. So the commit of an old squash may be deleted. An
    entry that cannot be read is Corruption, which does not mean that there is no commit.
    """
    table = table_of(store, kind)
    if table is None:
        return []
    table.version()  # raises Gone if the dataset was dropped
    commits: list[LogEntry] = []
    for version in list_log(table.path).entries:
        if above is not None and version <= above:
            continue
        try:
            entry = read_entry(table.path, version)
        except FileNotFoundError:
            continue  # deleted after it was listed
        if _is_of(str(entry.info.get(JOB, "")), job) and entry.info.get(COMMIT_KIND) not in _ASIDE:
            commits.append(entry)
    return commits


def _is_of(name: str, job: str) -> bool:
    """True if a commit belongs to a job, or to a part of it.

    >>> _is_of("7-ab", "7-ab"), _is_of("7-ab.2", "7-ab"), _is_of("7-abc", "7-ab")
    (True, True, False)
    """
    return name == job or name.startswith(f"{job}.")
