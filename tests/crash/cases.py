"""Every fail point at which a process can die, and the one of two allowed states that it leaves.

`count` selects the commit if one operation has several. A fold commits to base, then prunes `changes`. A drop commits to
the registry, then marks both tables. `export_again` is an export that replaces its own earlier output. Between the
rename of the old export and that of the new one there is no dataset, as before.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One operation on one lake, interrupted at one fail point."""

    operation: str
    start: str
    failpoint: str
    done: bool
    count: int = 1
    spark: bool = False

    def __str__(self) -> str:
        return f"{self.operation}-{self.start}-{self.failpoint}-{self.count}"


def _cases(
    operation: str, start: str, *, before: tuple[str, ...] = (), after: tuple[str, ...] = (), spark: bool = False
) -> list[Case]:
    cases = []
    for done, places in ((False, before), (True, after)):
        for place in places:
            name, _, count = place.partition("#")
            cases.append(
                Case(operation=operation, start=start, failpoint=name, done=done, count=int(count or 1), spark=spark)
            )
    return cases


CASES: Final = [
    *_cases(
        "create",
        "nothing",
        before=(
            "create.before_tables",
            "create.after_marker",
            "create.after_changes",
            "create.after_base",
            "commit.before_entry",
            "commit.after_draft",
        ),
        after=("commit.after_entry", "create.after_registry"),
    ),
    *_cases(
        "drop",
        "pending",
        before=("commit.before_entry", "commit.after_draft"),
        after=(
            "commit.after_entry",
            "drop.after_registry",
            "commit.before_entry#2",
            "commit.after_entry#3",
            "drop.after_marks",
            "drop.after_rename",
        ),
    ),
    *_cases(
        "upsert",
        "pending",
        before=("upsert.after_stage", "commit.before_entry", "commit.after_draft"),
        after=("commit.after_entry", "upsert.after_commit"),
    ),
    *_cases(
        "upsert_files",
        "pending",
        before=("upsert.after_stage#2", "commit.before_entry"),
        after=("commit.after_entry",),
    ),
    *_cases(
        "tombstone",
        "pending",
        before=("upsert.after_stage", "commit.before_entry", "commit.after_draft"),
        after=("commit.after_entry", "upsert.after_commit", "tombstone.after_audit"),
    ),
    *_cases(
        "ingest",
        "empty",
        before=("ingest.after_spread", "ingest.after_write", "commit.before_entry"),
        after=("commit.after_entry", "ingest.after_commit"),
        spark=True,
    ),
    *_cases(
        "ingest",
        "pending",
        before=("ingest.after_write",),
        after=("upsert.after_commit", "ingest.after_commit"),
        spark=True,
    ),
    *_cases(
        "ingest",
        "empty_log",
        before=("ingest.after_groups", "ingest.after_write", "commit.before_entry"),
        after=("commit.after_entry", "ingest.after_commit"),
        spark=True,
    ),
    *_cases(
        "ingest",
        "log",
        before=("ingest.after_closing", "commit.before_entry", "commit.before_entry#2"),
        after=("upsert.after_commit", "ingest.after_commit"),
        spark=True,
    ),
    *_cases("quarantine", "pending", before=("ingest.after_quarantine",), after=("ingest.after_commit",), spark=True),
    *_cases(
        "fold",
        "pending",
        before=(
            "fold.after_plan",
            "audit.after_missing",
            "fold.after_write",
            "fold.before_commit",
            "commit.before_entry",
        ),
        after=(
            "commit.after_entry",
            "fold.after_commit",
            "commit.before_entry#2",
            "commit.after_entry#2",
            "fold.after_prune",
        ),
        spark=True,
    ),
    *_cases(
        "alter",
        "pending",
        before=("commit.before_entry", "alter.after_changes", "commit.after_draft#2"),
        after=("commit.after_entry#2", "alter.after_base"),
    ),
    *_cases(
        "squash",
        "pending",
        before=("audit.after_missing", "squash.after_write", "commit.before_entry", "commit.after_draft"),
        after=("commit.after_entry", "squash.after_commit"),
    ),
    *_cases("append", "log", before=("upsert.after_stage",), after=("upsert.after_commit",)),
    *_cases("squash", "log", before=("squash.after_write",), after=("squash.after_commit",)),
    *_cases(
        "fold",
        "log",
        before=("fold.after_plan", "fold.after_write", "fold.before_commit", "commit.before_entry"),
        after=("commit.after_entry", "fold.after_commit", "fold.after_prune"),
        spark=True,
    ),
    *_cases(
        "roll_up",
        "log",
        before=("roll_up.after_write", "commit.before_entry#3"),
        after=("roll_up.after_commit",),
        spark=True,
    ),
    *_cases(
        "cluster",
        "log",
        before=("cluster.after_write", "commit.before_entry"),
        after=("cluster.after_commit",),
        spark=True,
    ),
    *_cases("purge", "pending", after=("purge.after_fold", "purge.during_delete"), spark=True),
    *_cases("purge_beside_squash", "pending", after=("squash.after_write#2", "squash.after_commit#2"), spark=True),
    *_cases("purge", "log", after=("purge.after_fold", "purge.during_delete"), spark=True),
    *_cases(
        "purge",
        "folded",
        before=("commit.before_entry", "commit.after_draft"),
        after=(
            "commit.after_entry",
            "purge.before_delete",
            "purge.during_delete#2",
            "purge.after_delete",
            "checkpoint.before_write",
            "checkpoint.after_write#2",
            "checkpoint.after_checksum",
            "purge.after_checkpoint",
            "purge.after_checkpoint#2",
            "purge.after_log_clean",
            "purge.after_log_clean#2",
        ),
    ),
    *_cases(
        "export",
        "pending",
        before=(
            "export.after_write",
            "commit.before_entry",
            "export.after_commit",
            "export.after_marker",
            "export.before_rename",
        ),
        after=("export.after_rename",),
        spark=True,
    ),
    *_cases("export_again", "pending", before=("export.after_aside",), spark=True),
    *_cases("vacuum", "folded", after=("vacuum.before_delete", "purge.during_delete")),
]
"""Background checkpoints are tested in `test_checkpoint`: the caller does not control the moment of their crash."""
