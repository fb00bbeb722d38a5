"""The sound protocol holds: in every reachable state of every scenario, under every interleaving.

Each test also asserts a minimum number of states and the interleavings that must have happened. Otherwise a test could
pass without exploring anything. The deep tests check the same promises in larger worlds.
"""

from __future__ import annotations

import pytest

from tests.model import scenarios
from tests.model.checker import Report, Scenario, SearchTooLargeError, explore


def holds(scenario: Scenario, *, at_least: int) -> Report:
    report = explore(scenario)
    assert not report.violation, report.summary()
    assert report.states >= at_least
    assert report.final_states > 0
    return report


def assert_happened(report: Report, *events: str) -> None:
    missing = [event for event in events if not report.events[event]]
    assert not missing, f"never happened: {missing}; what did: {sorted(report.events)}"


def test_two_folders_without_a_lease_fold_everything_exactly_once() -> None:
    report = holds(scenarios.TWO_FOLDERS, at_least=20_000)
    assert_happened(
        report,
        "f1: fold lands",
        "f2: fold is refused",
        "f1: crashes",
        "f2: finds nothing to fold",
        "f2: prune lands",
        "f1: finds it pruned",
    )


def test_racing_writers_get_gapless_sequences_whatever_the_store_answers() -> None:
    report = holds(scenarios.RACING_WRITERS, at_least=15_000)
    assert_happened(
        report,
        "writer1: write loses the race",
        "writer2: write lands and raises",
        "writer2: write is found in the log",
        "writer1: the put that raised lands late",
        "folder: fold is found in the log",
    )


def test_squash_changes_no_answer_while_folds_and_vacuum_run() -> None:
    report = holds(scenarios.SQUASH, at_least=10_000)
    assert_happened(
        report,
        "squasher: squash lands",
        "squasher: squash is refused",
        "folder: fold lands",
        "folder: meets a missing file and starts over",
        "reader: meets a missing file and starts over",
    )


@pytest.mark.parametrize("scenario", [scenarios.EXACT_PRUNE, scenarios.LOG_EXACT_PRUNE], ids=["keyed", "log"])
def test_an_exact_prune_leaves_no_folded_row_in_changes_whatever_a_squash_merges(scenario: Scenario) -> None:
    report = holds(scenario, at_least=10_000)
    assert_happened(
        report,
        "purger: exact prune lands",
        "purger: exact prune is refused",
        "purger: finds no folded row in changes",
        "squasher: squash lands",
    )


def test_bounded_folds_over_squashed_ranges_lose_nothing() -> None:
    report = holds(scenarios.BOUNDED_FOLD, at_least=4_000)
    assert_happened(report, "f2: fold lands", "f1: fold is refused", "squasher: squash lands")


def test_cluster_and_fold_never_double_or_lose_a_base_row() -> None:
    report = holds(scenarios.CLUSTER, at_least=10_000)
    assert_happened(
        report,
        "clusterer: cluster lands",
        "clusterer: cluster is refused",
        "folder: fold lands",
        "folder: fold is refused",
        "reader: meets a missing file and starts over",
    )


def test_one_first_load_wins_and_the_loser_becomes_a_change_batch() -> None:
    report = holds(scenarios.FIRST_LOAD, at_least=20_000)
    assert_happened(
        report,
        "loader1: load lands",
        "loader2: load lands",
        "loader2: load is refused",
        "loader2: write lands",
        "loader1: finds rows and writes instead",
        "folder: fold is refused",
    )


def test_first_loads_of_a_log_lose_and_double_nothing_beside_a_tombstone_and_a_fold() -> None:
    report = holds(scenarios.LOG_FIRST_LOAD, at_least=10_000)
    assert_happened(
        report,
        "loader1: load lands",
        "loader2: load lands",
        "loader2: load is refused",
        "loader2: close lands",
        "loader1: finds base closed",
        "loader2: write lands",
        "loader1: finds rows and writes instead",
        "folder: fold lands",
        "loader1: crashes",
    )


def test_a_file_that_two_processes_load_into_a_log_is_there_once() -> None:
    report = holds(scenarios.LOG_SAME_FILE, at_least=5_000)
    assert_happened(
        report,
        "loader1: load lands",
        "loader2: finds the file loaded",
        "loader2: load is refused",
        "loader1: write lands",
        "loader1: load is found in the log",
        "loader2: close lands",
    )


def test_a_first_load_can_land_beneath_a_write_acknowledged_before_it() -> None:
    """Allowed: the load counts as older than every change that it did not see."""
    assert_happened(explore(scenarios.FOLLOWED_LOAD), "loader: load lands beneath newer writes")


def test_a_follower_sees_a_first_load_by_its_content_version() -> None:
    report = holds(scenarios.FOLLOWED_LOAD, at_least=2_000)
    assert_happened(report, "loader: load lands", "follower: refills to", "follower: applies to")


def test_a_follower_equals_the_truth_at_its_sequence() -> None:
    report = holds(scenarios.FOLLOWER, at_least=20_000)
    assert_happened(
        report,
        "follower: fills to",
        "follower: refills to",
        "follower: applies to",
        "follower: meets a missing file and starts over",
        "squasher: squash lands",
    )


def test_log_dataset_keeps_every_append_once_through_squash_and_fold() -> None:
    report = holds(scenarios.LOG_SQUASH, at_least=4_000)
    assert_happened(report, "squasher: squash lands", "squasher: squash is refused")


def test_log_dataset_keeps_every_append_once_through_roll_up_and_two_folders() -> None:
    report = holds(scenarios.LOG_ROLL_UP, at_least=12_000)
    assert_happened(report, "roll-up: roll-up lands", "roll-up: roll-up is refused", "f2: fold is refused")


def test_a_subject_tombstone_hides_what_was_appended_before_it_and_nothing_after() -> None:
    """Clocks of writers and times of events have no effect: one clock is ahead, one event is late."""
    report = holds(scenarios.LOG_ERASURE, at_least=15_000)
    assert_happened(
        report, "eraser: write lands", "appender: write lands", "folder: fold lands", "daily: roll-up lands"
    )


def test_hourly_and_daily_roll_ups_beside_a_fold_lose_and_double_nothing() -> None:
    report = holds(scenarios.LOG_TIERS, at_least=10_000)
    assert_happened(
        report,
        "hourly: roll-up lands",
        "hourly: roll-up is refused",
        "daily: roll-up lands",
        "folder: fold is refused",
        "reader: meets a missing file and starts over",
    )


def test_folds_squash_and_roll_up_of_a_log_work_on_live_files_alone() -> None:
    report = holds(scenarios.LOG_LISTED, at_least=5_000)
    assert_happened(report, "squasher: squash lands", "f2: fold is refused", "daily: roll-up lands")


def test_a_takeover_loses_nothing_and_the_older_epoch_never_commits_after_the_newer() -> None:
    report = holds(scenarios.LOG_TAKEOVER, at_least=12_000)
    assert_happened(
        report,
        "c1: crashes",
        "c2: finds the lease free",
        "c2: takes a live holder for dead",
        "c2: is late for the lease",
        "c1: fold is fenced",
        "c1: roll-up is fenced",
        "c1: fold lands",
        "c2: fold lands",
        "c2: prune lands",
        "c2: roll-up lands",
    )


def test_the_sweep_deletes_files_of_dead_owners_and_none_that_a_commit_needs() -> None:
    report = holds(scenarios.LOG_SWEEP, at_least=3_000)
    assert_happened(
        report, "sweeper: sweeps", "sweeper: finds nothing to sweep", "daily: roll-up lands", "folder: crashes"
    )


def test_a_follower_of_a_log_dataset_never_doubles_an_append() -> None:
    report = holds(scenarios.LOG_FOLLOWER, at_least=9_000)
    assert_happened(report, "follower: refills to", "follower: applies to")


def test_log_cleaning_neither_swallows_a_write_nor_hides_one_from_its_writer() -> None:
    report = holds(scenarios.CLEANED_LOG, at_least=5_000)
    assert_happened(report, "cleaner: cleans the log", "writer1: write is refused")


def test_a_purge_deletes_no_file_that_a_commit_then_needs() -> None:
    report = holds(scenarios.PURGE, at_least=15_000)
    assert_happened(
        report,
        "folder: fold is fenced",
        "folder: fold lands",
        "clusterer: cluster is fenced",
        "purger: deletes unreferenced files",
        "purger: crashes",
    )


def test_a_copy_made_beside_a_writer_is_refused_until_it_is_repaired_and_loses_nothing_it_holds() -> None:
    report = holds(scenarios.COPIED, at_least=3_000)
    assert_happened(
        report,
        "copier: puts the copy back",
        "writer: finds the tables apart and writes nothing",
        "reader: finds the tables apart and reads nothing",
        "late: finds the tables apart and folds nothing",
        "repairer: raise of the sequence lands",
    )


def test_a_backup_made_beside_writers_and_folds_needs_no_repair() -> None:
    report = holds(scenarios.BACKED_UP, at_least=3_000)
    assert_happened(
        report,
        "backup: copies base, which is ahead, and begins again",
        "backup: puts the copy back",
        "writer: write lands",
        "late: fold lands",
    )
    assert not [event for event in report.events if "apart" in event]


def test_an_older_base_under_pruned_changes_is_never_read() -> None:
    report = holds(scenarios.OLDER_BASE, at_least=3_000)
    assert_happened(
        report,
        "copier: puts the copy back",
        "reader: finds the tables apart and reads nothing",
        "writer: finds the tables apart and writes nothing",
    )


@pytest.mark.parametrize(
    ("scenario", "at_least"),
    [(scenarios.STALE_HANDLE, 2_500), (scenarios.RECREATED, 4_000)],
    ids=["stale-handle", "readers"],
)
def test_a_stale_handle_never_reaches_the_recreated_dataset(scenario: Scenario, at_least: int) -> None:
    report = holds(scenario, at_least=at_least)
    assert_happened(
        report,
        "writer: write is gone",
        "writer: write lands",
        "creator: registers a new incarnation",
        "creator: finishes the mark on changes",
        "dropper: sweeps the folder",
    )


def test_a_search_that_outgrows_its_bound_is_an_error() -> None:
    with pytest.raises(SearchTooLargeError):
        explore(scenarios.TWO_FOLDERS, most=1_000)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("scenario", "at_least"),
    [
        pytest.param(scenarios.DEEP_KEYED, 400_000, id="keyed-everything"),
        pytest.param(scenarios.DEEP_LOG, 500_000, id="log-everything"),
        pytest.param(scenarios.DEEP_UNKNOWNS, 100_000, id="unknown-outcomes"),
        pytest.param(scenarios.DEEP_BOUNDED, 250_000, id="bounded-folds"),
        pytest.param(scenarios.DEEP_LISTED, 200_000, id="log-live-files"),
        pytest.param(scenarios.DEEP_TIERS, 70_000, id="log-tiers"),
        pytest.param(scenarios.DEEP_TAKEOVER, 600_000, id="log-takeover"),
    ],
)
def test_larger_worlds_keep_every_invariant(scenario: Scenario, at_least: int) -> None:
    holds(scenario, at_least=at_least)
