"""The rules of the protocol, each named by the fault it prevents.

A `Variant` switches exactly one rule off. The sound protocol is `None`. Each member's value describes the broken
protocol. `test_broken_variants.py` asserts that the search finds a counterexample for each. So a model that is too weak
to notice a rule fails its own tests.
"""

from __future__ import annotations

from enum import StrEnum


class Variant(StrEnum):
    """One rule that is deliberately broken."""

    BASE_FIRST = "a reader opens base before changes"
    PRUNE_BY_LISTING = "prune removes whatever is listed at that moment"
    REMOVES_UNCHECKED = "a commit does not check that the files it removes are live"
    FOLD_WITHOUT_TRANSACTION = "a fold does not carry siltstone.fold"
    FOLD_IGNORES_FOLDS = "a fold sets siltstone.fold but does not depend on it"
    SQUASH_WITH_HOLE = "squash takes a range with a live file left out of the middle"
    SQUASH_FORGETS_SEQUENCES = "squash does not keep each row's own sequence"
    INCARNATION_NOT_IN_PATH = "a re-created dataset takes the folder of the dropped one"
    BLIND_RETRY = "an unknown outcome is retried without searching for the commit id"
    SEARCH_ONLY_AFTER_UNKNOWN = "the log is searched once after an unknown outcome, not before each later try"
    LIVE_FILE_IS_PROOF = "after an unknown outcome the writer asks whether its file is live"
    COMMIT_REBASES = "a commit lands on any later version, not only on the one it was checked against"
    FOLLOWER_NEVER_REFILLS = "a follower does not look at siltstone.prune"
    FILL_NUMBERED_BY_CHANGES = "a follower numbers its fill by changes alone, not by the watermark too"
    LOAD_KEEPS_CONTENT_VERSION = "a first load does not advance siltstone.content"
    LOAD_WITHOUT_DEPENDENCY = "a first load does not depend on siltstone.fold"
    LOAD_INTO_ROWS = "a first load goes straight to base without asking whether the log is empty"
    LOAD_LEAVES_BASE_OPEN = "a file is loaded as changes while base is still open for first loads"
    CLEANING_IGNORES_COMMITS = "log cleaning does not outlast a commit that is under way"
    CLEANED_LOG_IS_SILENCE = "log entries missing since the plan are taken for a log without the commit"
    EXACT_PRUNE_WITHOUT_MARK = "an exact prune rewrites squashed files without setting siltstone.prune"
    PURGE_WITHOUT_EPOCH = "a purge deletes unreferenced files without raising the epoch"
    PURGE_TAKES_ALL_STAGED = "a purge deletes the staged files of jobs of its own epoch too"
    CREATE_BEFORE_MARKS = "create does not first finish the marks of the drop before it"
    VISIBILITY_BY_CLOCK = "a tombstone hides what its writer's clock says is older"
    VISIBILITY_BY_EVENT_TIME = "a tombstone hides the events that happened before it"
    TOMBSTONE_HIDES_NEWER = "a tombstone hides every append of its subject, newer ones too"
    TOMBSTONE_SPARES_BASE = "a tombstone hides appends in changes and no row of base"
    FOLD_SPARES_ROLLED_FILES = "a fold looks for hidden rows in hours alone, not in rolled-up periods"
    FOLD_BY_LISTING = "a fold takes the change files that lie on disk instead of the live ones"
    PRUNE_BEFORE_COMMIT = "a fold prunes before its commit"
    ROLL_UP_BY_LISTING = "a roll-up reads the files of its periods that lie on disk instead of the live ones"
    ROLL_UP_REMOVES_PERIOD = "a roll-up removes what its periods hold at its commit instead of what it read"
    ROLL_UP_UNCHECKED = "a roll-up does not check that the files it removes are live"
    ROLL_UP_MOVES_WATERMARK = "a roll-up sets siltstone.fold to the newest sequence"
    COMMIT_WITHOUT_EPOCH = "a commit does not compare its epoch with the table's"
    EPOCH_OF_THE_TABLE = "a job commits with the epoch that it finds in the table instead of its lease's"
    LEASE_TAKEN_UNCHECKED = "a lease is taken from its present holder, not from the holder that was checked"
    SWEEP_READS_LOG_FIRST = "the sweep reads the log before it looks whether a file's owner is dead"
    WRITER_IGNORES_WATERMARK = "a writer takes the next sequence without comparing it with base's watermark"
    READER_IGNORES_PRUNE = "a reader does not compare base's watermark with what was pruned"
    READER_LOOKS_ONCE = "a reader compares the watermark with the changes it opened before, and does not look again"
    SWEEP_SPARES_NOBODY = "the sweep deletes the unreferenced files of live owners too"
