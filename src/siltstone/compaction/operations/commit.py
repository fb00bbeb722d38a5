"""The order of a compaction's durable steps. A change of this order changes what a crash leaves behind.

1. new files are written and verified          crash: orphans of a dead owner, which the sweep deletes
2. base commits: removes the plan's files, adds the new ones, sets "siltstone.fold"      the fold takes effect here
3. base is synced, then `changes` is pruned up to the watermark of base                 crash before: recovery prunes
4. removed files are deleted, later or in a purge                                       readers take a new snapshot

A reader is correct at every point. Before 2 it sees base and changes. After 2 it skips every change at or below the
watermark, pruned or not.
"""

from siltstone.compaction.operations.fold_plan import FoldPlan
from siltstone.dataset.snapshot import sequence_of
from siltstone.dataset.store import Store
from siltstone.delta.table import ParentVersion
from siltstone.errors import Corruption
from siltstone.failpoints import reach
from siltstone.model.columns import (
    APP_EPOCH,
    APP_FOLD,
    APP_PRUNE,
    CHANGED_FROM,
    CHANGED_TO,
    FOLDED_BYTES,
    FOLDED_FILES,
    JOB,
)
from siltstone.model.commit import Commit, CommitKind
from siltstone.model.files import DataFile


class _NothingToPrune(Exception):  # noqa: N818
    """Another process pruned first."""


def commit_fold(store: Store, plan: FoldPlan, written: tuple[DataFile, ...]) -> int:
    """Verify the counts and commit the fold; return base's new version.

    Raises:
        Conflict: another fold, load or rewrite was first. Nothing was changed.
        Corruption: the written files do not match the plan. Nothing was changed.
    """
    rows = sum(file.rows for file in written)
    if rows != plan.expected_rows:
        raise Corruption(
            f"Dataset {store.name}: the fold wrote {rows} rows and should have written {plan.expected_rows}; "
            "nothing was committed. Check the disk, and fold again."
        )
    commit = Commit(
        kind=CommitKind.FOLD,
        plan_version=plan.base_version,
        adds=written,
        removes=plan.touched,
        transactions={APP_FOLD: plan.target},
        depends=frozenset({APP_FOLD}),
        epoch=plan.epoch,
        info={
            FOLDED_FILES: str(plan.change_files),
            FOLDED_BYTES: str(plan.change_bytes),
            **fold_info(plan.changed_ms),
            **job_info(plan.job),
        },
    )
    reach("fold.before_commit")
    committed = store.base.commit(lambda _: commit)
    reach("fold.after_commit")
    store.note_commit(store.base, committed.version)
    return committed.version


def fold_info(changed_ms: tuple[int, int] | None) -> dict[str, str]:
    """Return the commit times of folded changes for the log entry: they outlive the entries of `changes`."""
    return {} if changed_ms is None else {CHANGED_FROM: str(changed_ms[0]), CHANGED_TO: str(changed_ms[1])}


def job_info(job: str) -> dict[str, str]:
    """Return the job id for the log entry, if a job of a cycle makes the commit."""
    return {JOB: job} if job else {}


def raise_epoch(store: Store, epoch: int) -> int:
    """Commit only the epoch, so that every job with a lower epoch is refused from now on. Return base's version."""
    return store.base.commit(
        lambda parent: Commit(
            kind=CommitKind.EPOCH,
            plan_version=parent.version,
            transactions={APP_EPOCH: max(epoch, parent.transaction(APP_EPOCH) or 0)},
        )
    ).version


def prune(store: Store) -> int:
    """Remove from `changes` exactly the files that base holds; return their number.

    The watermark is read from base, which is synced first. A change must never be pruned because of an entry that a
    power cut could undo. The commit is built again for each parent, so a concurrent commit is no conflict.
    """
    store.base.sync()
    watermark = store.base.pin(APP_FOLD).transactions.get(APP_FOLD, 0)
    removed = 0

    def build(parent: ParentVersion) -> Commit:
        nonlocal removed
        folded = tuple(file for file in parent.files() if sequence_of(file) <= watermark)
        if not folded or (parent.transaction(APP_PRUNE) or 0) > watermark:
            raise _NothingToPrune
        removed = len(folded)
        return Commit(
            kind=CommitKind.PRUNE,
            plan_version=parent.version,
            removes=folded,
            transactions={APP_PRUNE: watermark},
            depends=frozenset({APP_PRUNE}),
        )

    try:
        committed = store.changes.commit(build)
    except _NothingToPrune:
        return 0
    store.note_commit(store.changes, committed.version)
    reach("fold.after_prune")
    return removed
