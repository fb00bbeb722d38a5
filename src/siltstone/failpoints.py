"""Named points between durable writes, at which a test can kill or fail the process.

`reach("fold.before_commit")` does nothing unless that name was armed. A test arms one in a child process through the environment
(``SILT_FAILPOINT=fold.before_commit:kill``) or in its own process with `arm`. Actions:

* ``kill``: the process ends at once with SIGKILL, as by a crash or a power cut;
* ``raise``: an OSError is raised, as by a full disk or a lost mount;
* ``name:kill:3``: the action happens the third time the point is reached.

Every name is declared in `FAILPOINTS`. A test fails if an undeclared name is used, or a declared one has no crash test.
"""

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

FAILPOINTS: Final = frozenset(
    {
        "create.before_tables",
        "create.after_marker",
        "create.after_changes",
        "create.after_base",
        "create.after_registry",
        "drop.after_registry",
        "drop.after_marks",
        "drop.after_rename",
        "upsert.after_stage",
        "commit.before_entry",
        "commit.after_draft",
        "commit.after_entry",
        "upsert.after_commit",
        "tombstone.after_audit",
        "audit.after_missing",
        "checkpoint.before_write",
        "checkpoint.after_write",
        "checkpoint.after_checksum",
        "eventlog.before_commit",
        "eventlog.after_commit",
        "eventlog.after_stage",
        "eventlog.after_append",
        "eventlog.during_catch_up",
        "eventlog.during_migration",
        "eventlog.after_squash_write",
        "eventlog.after_squash",
        "job.began",
        "job.done",
        "roll_up.after_write",
        "roll_up.after_commit",
        "cluster.after_write",
        "cluster.after_commit",
        "journal.before_cycle_began",
        "journal.after_cycle_began",
        "journal.before_job_began",
        "journal.after_job_began",
        "journal.before_job_ended",
        "journal.after_job_ended",
        "journal.before_cycle_ended",
        "journal.after_cycle_ended",
        "recovery.before_events",
        "recovery.after_events",
        "recovery.after_cycles",
        "recovery.after_datasets",
        "lease.after_stage",
        "lease.after_commit",
        "state_file.after_draft",
        "state_file.after_write",
        "ingest.after_spread",
        "ingest.after_groups",
        "ingest.after_closing",
        "ingest.after_write",
        "ingest.after_quarantine",
        "ingest.after_commit",
        "alter.after_changes",
        "alter.after_base",
        "squash.after_write",
        "squash.after_commit",
        "fold.after_plan",
        "fold.after_write",
        "fold.before_commit",
        "fold.after_commit",
        "fold.after_prune",
        "purge.after_fold",
        "purge.before_delete",
        "purge.during_delete",
        "purge.after_delete",
        "purge.after_checkpoint",
        "purge.after_log_clean",
        "vacuum.before_delete",
        "export.after_write",
        "export.after_commit",
        "export.after_marker",
        "export.before_rename",
        "export.after_aside",
        "export.after_rename",
        "backup.after_logs",
        "backup.after_file",
        "backup.after_draft",
        "backup.after_manifest",
        "backup.after_removal",
        "restore.after_files",
        "restore.after_fence",
        "restore.after_rename",
    }
)

Action = Callable[[str], None]

_armed: dict[str, Action] = {}


def reach(name: str) -> None:
    """Mark a fail point and run its armed action, if there is one."""
    if action := _armed.get(name):
        action(name)


def _raise(name: str) -> None:
    raise OSError(f"fail point {name}")


_ACTIONS: Final[dict[str, Action]] = {"kill": lambda _name: os.kill(os.getpid(), signal.SIGKILL), "raise": _raise}


def _at_count(action: Action, count: int) -> Action:
    reached = itertools.count(1)
    return lambda name: action(name) if next(reached) == count else None


@contextmanager
def arm(name: str, action: Action | str, *, count: int = 1) -> Iterator[None]:
    """Arm one fail point for the duration of the block. The action runs only when it is reached the `count`-th time."""
    if name not in FAILPOINTS:
        raise ValueError(f"unknown fail point {name!r}")
    _armed[name] = _at_count(_ACTIONS[action] if isinstance(action, str) else action, count)
    try:
        yield
    finally:
        _armed.pop(name, None)


def arm_from_environment(text: str) -> None:
    """Arm the fail points of ``SILT_FAILPOINT``: ``name:action[:count]``, several separated by commas."""
    for part in filter(None, text.split(",")):
        name, action, *count = part.split(":")
        if name not in FAILPOINTS or action not in _ACTIONS:
            raise ValueError(f"SILT_FAILPOINT: unknown fail point or action in {part!r}")
        _armed[name] = _at_count(_ACTIONS[action], int(count[0]) if count else 1)


arm_from_environment(os.environ.get("SILT_FAILPOINT", ""))
