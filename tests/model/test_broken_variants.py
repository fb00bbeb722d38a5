"""Each rule is needed: with it switched off, the search finds a shortest counterexample.

Run with `-s` to read the traces. The violation's words are asserted too, so that a variant cannot
be "caught" by some unrelated accident.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from tests.model import scenarios
from tests.model.checker import Scenario, explore
from tests.model.variants import Variant

CAUGHT = {
    Variant.BASE_FIRST: (scenarios.TWO_FOLDERS, "a sound dataset was refused"),
    Variant.PRUNE_BY_LISTING: (scenarios.TWO_FOLDERS, "a read now would give"),
    Variant.REMOVES_UNCHECKED: (scenarios.CLUSTER, "a read now would give"),
    Variant.FOLD_WITHOUT_TRANSACTION: (scenarios.LOG_SQUASH, "a read now would give"),
    Variant.FOLD_IGNORES_FOLDS: (scenarios.TWO_FOLDERS, "a read now would give"),
    Variant.SQUASH_WITH_HOLE: (scenarios.BOUNDED_FOLD, "a read now would give"),
    Variant.SQUASH_FORGETS_SEQUENCES: (scenarios.LOG_SQUASH, "a read now would give"),
    Variant.INCARNATION_NOT_IN_PATH: (scenarios.STALE_HANDLE, "not gapless and unique"),
    Variant.BLIND_RETRY: (scenarios.RACING_WRITERS, "applied twice"),
    Variant.SEARCH_ONLY_AFTER_UNKNOWN: (scenarios.RACING_WRITERS, "applied twice"),
    Variant.LIVE_FILE_IS_PROOF: (scenarios.CLUSTER, "applied twice"),
    Variant.COMMIT_REBASES: (scenarios.RACING_WRITERS, "not gapless and unique"),
    Variant.FOLLOWER_NEVER_REFILLS: (scenarios.FOLLOWER, "the truth is"),
    Variant.FILL_NUMBERED_BY_CHANGES: (scenarios.LOG_FOLLOWER, "the truth is"),
    Variant.LOAD_KEEPS_CONTENT_VERSION: (scenarios.FOLLOWED_LOAD, "is not in it"),
    Variant.LOAD_WITHOUT_DEPENDENCY: (scenarios.FIRST_LOAD, "a read now would give"),
    Variant.LOAD_INTO_ROWS: (scenarios.LOG_FIRST_LOAD, "a read now would give"),
    Variant.LOAD_LEAVES_BASE_OPEN: (scenarios.LOG_SAME_FILE, "applied twice"),
    Variant.CLEANING_IGNORES_COMMITS: (scenarios.CLEANED_LOG, "acknowledged and lost"),
    Variant.CLEANED_LOG_IS_SILENCE: (scenarios.CLEANED_LOG, "applied twice"),
    Variant.EXACT_PRUNE_WITHOUT_MARK: (scenarios.EXACT_PRUNE, "the truth is"),
    Variant.PURGE_WITHOUT_EPOCH: (scenarios.PURGE, "a live file is not on disk"),
    Variant.PURGE_TAKES_ALL_STAGED: (scenarios.PURGE, "a live file is not on disk"),
    Variant.CREATE_BEFORE_MARKS: (scenarios.STALE_HANDLE, "into a dropped incarnation"),
    Variant.VISIBILITY_BY_CLOCK: (scenarios.LOG_ERASURE, "a read now would give"),
    Variant.VISIBILITY_BY_EVENT_TIME: (scenarios.LOG_ERASURE, "a read now would give"),
    Variant.TOMBSTONE_HIDES_NEWER: (scenarios.LOG_ERASURE, "a read now would give"),
    Variant.TOMBSTONE_SPARES_BASE: (scenarios.LOG_ERASURE, "a read now would give"),
    Variant.FOLD_SPARES_ROLLED_FILES: (scenarios.LOG_TIERS, "a read now would give"),
    Variant.FOLD_BY_LISTING: (scenarios.LOG_LISTED, "a read now would give"),
    Variant.PRUNE_BEFORE_COMMIT: (scenarios.LOG_TIERS, "a read now would give"),
    Variant.ROLL_UP_BY_LISTING: (scenarios.LOG_LISTED, "a read now would give"),
    Variant.ROLL_UP_REMOVES_PERIOD: (scenarios.LOG_TIERS, "a read now would give"),
    Variant.ROLL_UP_UNCHECKED: (scenarios.LOG_TIERS, "a read now would give"),
    Variant.ROLL_UP_MOVES_WATERMARK: (scenarios.LOG_TIERS, "a read now would give"),
    Variant.COMMIT_WITHOUT_EPOCH: (scenarios.LOG_TAKEOVER, "job of an older epoch landed"),
    Variant.EPOCH_OF_THE_TABLE: (scenarios.LOG_TAKEOVER, "job of an older epoch landed"),
    Variant.LEASE_TAKEN_UNCHECKED: (scenarios.LOG_TAKEOVER, "one epoch has two holders"),
    Variant.SWEEP_READS_LOG_FIRST: (scenarios.LOG_SWEEP, "a live file is not on disk"),
    Variant.WRITER_IGNORES_WATERMARK: (scenarios.COPIED, "not gapless and unique"),
    Variant.READER_IGNORES_PRUNE: (scenarios.OLDER_BASE, "the truth is"),
    Variant.READER_LOOKS_ONCE: (scenarios.TWO_FOLDERS, "a sound dataset was refused"),
    Variant.SWEEP_SPARES_NOBODY: (scenarios.LOG_SWEEP, "a live file is not on disk"),
}


def test_every_variant_has_a_scenario_that_catches_it() -> None:
    assert set(CAUGHT) == set(Variant)


@pytest.mark.parametrize("variant", list(Variant), ids=lambda variant: variant.name.lower())
def test_breaking_the_rule_is_caught(variant: Variant) -> None:
    scenario, words = CAUGHT[variant]
    report = explore(scenario, variant)
    sys.stdout.write(f"\n{variant}:\n{report.summary()}\n")
    assert words in report.violation
    assert report.trace


def test_a_commit_without_epoch_loses_rows_to_a_purge() -> None:
    """A commit of an older epoch is harmful: the purge that raised the epoch has deleted its files."""
    assert "a live file is not on disk" in explore(scenarios.PURGE, Variant.COMMIT_WITHOUT_EPOCH).violation


@pytest.mark.parametrize(
    ("scenario", "variant"),
    [
        pytest.param(scenarios.SQUASH, Variant.SQUASH_WITH_HOLE, id="hole-and-unbounded-fold"),
        pytest.param(scenarios.SQUASH, Variant.SQUASH_FORGETS_SEQUENCES, id="keyed-squash"),
        pytest.param(
            replace(scenarios.LOG_TAKEOVER, judges_epochs=False),
            Variant.COMMIT_WITHOUT_EPOCH,
            id="epoch-without-deletion",
        ),
    ],
)
def test_scopes_in_which_a_broken_rule_is_harmless(scenario: Scenario, variant: Variant) -> None:
    """Testing where a rule is not needed keeps its reason accurate."""
    assert not explore(scenario, variant).violation
