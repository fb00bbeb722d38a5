"""The rules of the protocol, each named by what goes wrong without it.

A `Variant` switches exactly one rule off. The sound protocol is `None`. Each member's value says
what the broken protocol does; `test_broken_variants.py` asserts that the search finds a
counterexample for each, so a model that had grown too weak to notice a rule would fail its own
tests.
"""

from __future__ import annotations

from enum import StrEnum


class Variant(StrEnum):
    """One rule broken on purpose."""

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
    CLEANING_IGNORES_COMMITS = "log cleaning does not outlast a commit that is under way"
    CLEANED_LOG_IS_SILENCE = "log entries missing since the plan are taken for a log without the commit"
    PURGE_WITHOUT_EPOCH = "a purge deletes unreferenced files without raising the epoch"
    PURGE_TAKES_ALL_STAGED = "a purge deletes the staged files of jobs of its own epoch too"
    CREATE_BEFORE_MARKS = "create does not first finish the marks of the drop before it"
