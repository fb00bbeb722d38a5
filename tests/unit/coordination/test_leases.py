import contextlib
import datetime
import random
import re
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from siltstone.config import Role, Settings
from siltstone.coordination import leases as leases_module
from siltstone.coordination.leases import COMPACTOR, Lease
from siltstone.delta.checkpoints import forget_history, write_checkpoint
from siltstone.delta.layout import LOG, Layout
from siltstone.delta.table import Table
from siltstone.errors import Corruption, Fenced, InvalidRequest, NotFound, SiltstoneError, Unavailable
from siltstone.failpoints import arm
from siltstone.model.lease import MARGIN_SECONDS, LeaseRow, LeaseState, lease_state
from tests.support.clocks import START, FakeClock
from tests.support.internals import lease_table_of, liveness_lock_of, replace_log_sync
from tests.support.leasing import ELSEWHERE, commit_with, lake_at, leases_of, taken
from tests.support.refusals import refused
from tests.support.tables import FAST, make_table

TTL = 60.0


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return lake_at(tmp_path / "lake")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def elsewhere(lake: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Lease:
    """A lease whose holder is on another machine: its liveness lock is not visible here."""
    with monkeypatch.context() as patched:
        patched.setattr(leases_module, "machine", lambda: ELSEWHERE)
        return taken(leases_of(lake, clock=clock), ttl_seconds=TTL)


def dead(lease: Lease) -> None:
    """Make a holder dead: its liveness lock is free, its row is unchanged."""
    liveness_lock_of(lease).close()


# ---- the rules as pure functions -------------------------------------------------------------------------------------


def row(**given: object) -> LeaseRow:
    found = LeaseRow(
        name="n",
        epoch=1,
        holder="h",
        machine="m",
        host="host",
        pid=1,
        role="all",
        since=START,
        renewed_at=START,
        expires_at=START + datetime.timedelta(seconds=TTL),
        ttl_seconds=TTL,
    )
    return replace(found, **given)  # type: ignore[arg-type]


def later(seconds: float) -> datetime.datetime:
    return START + datetime.timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("found", "unchanged", "now", "present", "expected"),
    [
        (None, 0.0, later(0), None, LeaseState.FREE),
        (row(released=True), 0.0, later(0), True, LeaseState.FREE),
        (row(), 0.0, later(0), True, LeaseState.HELD),
        (row(), 0.0, later(0), False, LeaseState.DEAD),
        (row(), TTL - 1, later(0), None, LeaseState.HELD),
        (row(), TTL, later(0), None, LeaseState.EXPIRED),
        (row(), TTL, later(0), True, LeaseState.EXPIRED),
        (row(), 0.0, later(TTL + MARGIN_SECONDS), None, LeaseState.HELD),
        (row(), 0.0, later(TTL + MARGIN_SECONDS + 1), None, LeaseState.EXPIRED),
        (row(), 0.0, later(1_000_000), True, LeaseState.HELD),
        (row(), 0.0, later(-1_000_000), None, LeaseState.HELD),
    ],
)
def test_the_state_of_a_lease(
    found: LeaseRow | None,
    unchanged: float,
    now: datetime.datetime,
    present: bool | None,  # noqa: FBT001
    expected: LeaseState,
):
    assert lease_state(found, unchanged_seconds=unchanged, now=now, present=present) is expected


# ---- acquire, renew, release ---------------------------------------------------------------------------------------


def test_a_free_lease_is_acquired_and_its_row_names_the_holder(lake: Path, clock: FakeClock):
    leases = leases_of(lake, clock=clock)
    assert leases.row(COMPACTOR) is None
    lease = taken(leases, ttl_seconds=TTL)
    found = leases_of(lake, clock=clock).holder(COMPACTOR)
    assert found == lease.row
    assert (found.epoch, found.role, found.released) == (1, "all", False)
    assert (found.since, found.expires_at) == (START, later(TTL))
    assert lease.previous_holder is None
    lease.release()


def test_a_held_lease_cannot_be_acquired(lake: Path):
    with taken(leases_of(lake)) as lease:
        assert leases_of(lake).acquire(COMPACTOR, role=Role.ALL) is None
        row = leases_of(lake).row(COMPACTOR)
        assert row is not None
        assert f"process {lease.row.pid} on " in row.described()
        assert f"epoch {lease.epoch}" in row.described()
        lease.check()


def test_two_names_are_two_leases(lake: Path):
    leases = leases_of(lake)
    one, other = (leases.acquire(name, role=Role.ALL) for name in ("compactor", "other"))
    assert one is not None
    assert other is not None
    assert (one.epoch, other.epoch) == (1, 1)


def test_a_released_lease_is_free_at_once_and_its_epoch_rises(lake: Path):
    for epoch in (1, 2, 3):
        with taken(leases_of(lake)) as lease:
            assert lease.epoch == epoch
        assert leases_of(lake).holder(COMPACTOR) is None
        with pytest.raises(Fenced, match="'compactor'"):
            lease.check()
    assert list((lake / "_system" / "liveness").iterdir()) == []


def test_a_block_that_fails_releases_too(lake: Path):
    with pytest.raises(ZeroDivisionError), taken(leases_of(lake)):
        _ = 1 / 0
    assert leases_of(lake).holder(COMPACTOR) is None


def test_a_renewal_keeps_the_epoch_and_moves_the_end(lake: Path, clock: FakeClock):
    lease = taken(leases_of(lake, clock=clock), ttl_seconds=TTL)
    clock.pass_time(seconds=TTL / 3 - 1)
    assert not lease.renew_if_due()
    clock.pass_time(seconds=1)
    assert lease.renew_if_due()
    found = leases_of(lake, clock=clock).row(COMPACTOR)
    assert found is not None
    assert (found.epoch, found.since, found.expires_at) == (1, START, later(TTL / 3 + TTL))


def test_a_lease_renews_itself_while_its_block_works(lake: Path):
    with taken(leases_of(lake), ttl_seconds=0.06) as lease:
        first = lease.row.expires_at
        deadline = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=20)  # noqa: TID251
        while lease.row.expires_at == first:
            assert datetime.datetime.now(datetime.UTC) < deadline  # noqa: TID251
        assert lease.trouble is None


def test_an_unexpected_error_does_not_end_the_renewals_and_is_reported(lake: Path, monkeypatch: pytest.MonkeyPatch):
    with taken(leases_of(lake), ttl_seconds=0.06) as lease:
        with monkeypatch.context() as broken:
            broken.setattr(lease_table_of(lease), "write", breaks(KeyError("epoch")))
            until(lambda: lease.trouble is not None)
            assert "KeyError: 'epoch'" in (lease.trouble or "")
            lease.check()
        row = lease.row
        until(lambda: lease.trouble is None and lease.row != row)


def test_an_unrenewed_lease_is_ours_until_it_is_taken_or_cannot_be_looked_up(lake: Path, clock: FakeClock):
    lease = taken(leases_of(lake, clock=clock), ttl_seconds=TTL)
    log, aside = lake / "_system" / "leases" / LOG, lake / "_system" / "aside"
    log.rename(aside)
    with pytest.raises(SiltstoneError) as found:
        lease.check()
    assert not isinstance(found.value, Fenced), "it was renewed a moment ago"
    aside.rename(log)
    clock.pass_time(seconds=TTL + 1)
    lease.check()
    log.rename(aside)
    with pytest.raises(Fenced, match="'compactor'"):
        lease.check()
    aside.rename(log)
    with pytest.raises(Fenced, match="'compactor'"):
        lease.check()
    lease.release()
    assert taken(leases_of(lake, clock=clock)).epoch == 2, "its liveness lock was released"


def test_a_release_that_fails_unexpectedly_frees_the_liveness_lock(lake: Path, monkeypatch: pytest.MonkeyPatch):
    lease = taken(leases_of(lake))
    with monkeypatch.context() as broken:
        broken.setattr(lease_table_of(lease), "write", breaks(KeyError("epoch")))
        lease.release()
    assert leases_of(lake).holder(COMPACTOR) is None


def breaks(error: Exception) -> Callable[..., None]:
    def write(*_given: object, **_named: object) -> None:
        raise error

    return write


def until(true: Callable[[], bool]) -> None:
    for _ in range(2000):
        if true():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not come to be")


def test_the_lease_table_stays_small_after_many_renewals(lake: Path, clock: FakeClock):
    settings = replace(FAST, checkpoint_interval_commits=10)
    lease = taken(leases_of(lake, clock=clock, settings=settings))
    for _ in range(250):
        lease.renew()
    assert len(list((lake / "_system" / "leases" / "data").iterdir())) == 1
    assert len(list((lake / "_system" / "leases" / LOG).iterdir())) < 150


def test_old_files_of_crashed_holders_are_swept(lake: Path, clock: FakeClock):
    lease = taken(leases_of(lake))
    with arm("lease.after_stage", "raise"), pytest.raises(Unavailable):
        lease.renew()
    dead(lease)
    data = lake / "_system" / "leases" / "data"
    taken(leases_of(lake))
    assert len(list(data.iterdir())) == 2
    clock = FakeClock(lease.row.since + datetime.timedelta(hours=FAST.changes_retention_hours + 1))
    dead(taken_now := taken(_released(lake, clock)))
    assert [path.name.split(".")[0] for path in data.iterdir()] == [taken_now.row.holder]


def _released(lake: Path, clock: FakeClock) -> leases_module.Leases:
    """Pass the lifetime of the lease without a renewal by the holder."""
    leases = leases_of(lake, clock=clock)
    leases.row(COMPACTOR)
    clock.pass_time(seconds=TTL)
    return leases


# ---- dead and silent holders -----------------------------------------------------------------------------------------


def test_a_dead_holder_on_this_machine_is_replaced_at_once(lake: Path, clock: FakeClock):
    first = taken(leases_of(lake, clock=clock))
    dead(first)
    second = taken(leases_of(lake, clock=clock))
    assert second.epoch == 2
    assert second.previous_holder == first.row
    for call in (first.check, first.renew, lambda: first.advance(above=7)):
        with pytest.raises(Fenced, match="'compactor'"):
            call()
    first.release()
    second.check()


def test_a_silent_holder_elsewhere_is_replaced_after_its_time_by_our_clock(lake: Path, elsewhere: Lease):
    ours = FakeClock(START - datetime.timedelta(days=400))  # the clocks differ by more than a year
    leases = leases_of(lake, clock=ours)
    assert leases.acquire(COMPACTOR, role=Role.ALL) is None
    ours.pass_time(seconds=TTL - 1)
    assert leases.acquire(COMPACTOR, role=Role.ALL) is None
    ours.pass_time(seconds=1)
    assert taken(leases).epoch == 2
    with pytest.raises(Fenced):
        elsewhere.renew()


def test_a_holder_elsewhere_that_renews_is_never_replaced(lake: Path, clock: FakeClock, elsewhere: Lease):
    ours = FakeClock(START - datetime.timedelta(days=400))
    leases = leases_of(lake, clock=ours)
    for _ in range(20):
        assert leases.acquire(COMPACTOR, role=Role.ALL) is None
        for passing in (ours, clock):
            passing.pass_time(seconds=TTL / 2)
        elsewhere.renew()
    assert leases.holder(COMPACTOR) == elsewhere.row


def test_a_process_that_has_watched_nothing_replaces_a_holder_whose_end_is_long_past(
    lake: Path, clock: FakeClock, elsewhere: Lease
):
    clock.pass_time(seconds=TTL + MARGIN_SECONDS)
    assert leases_of(lake, clock=clock).acquire(COMPACTOR, role=Role.ALL) is None
    clock.pass_time(seconds=1)
    assert taken(leases_of(lake, clock=clock)).previous_holder == elsewhere.row


def test_a_holder_on_this_machine_that_hangs_is_replaced_after_its_time(lake: Path, clock: FakeClock):
    hanging = taken(leases_of(lake, clock=clock), ttl_seconds=TTL)
    second = taken(_released(lake, clock))
    assert second.epoch == 2
    with pytest.raises(Fenced):
        hanging.check()


@pytest.mark.parametrize("days", [-400, -1, 1, 400])
def test_a_clock_that_jumps_takes_nothing_from_a_live_holder_on_this_machine(lake: Path, clock: FakeClock, days: int):
    lease = taken(leases_of(lake, clock=clock))
    clock.jump(days=days)
    assert leases_of(lake, clock=clock).acquire(COMPACTOR, role=Role.ALL) is None
    lease.renew()
    lease.check()


@pytest.mark.parametrize("days", [-400, 400])
def test_whatever_the_clocks_do_an_older_epoch_cannot_commit_after_a_newer_one(
    lake: Path, tmp_path: Path, elsewhere: Lease, days: int
):
    table = make_table(tmp_path / "t")
    commit_with(table, elsewhere.epoch)
    ours = FakeClock()
    leases = leases_of(lake, clock=ours)
    leases.row(COMPACTOR)
    ours.jump(days=days)
    ours.pass_time(seconds=TTL)
    second = taken(leases)
    commit_with(table, second.epoch)
    with refused(Fenced, None, "1", "2"):
        commit_with(table, elsewhere.epoch)
    commit_with(table, second.epoch)


def test_a_holder_that_renews_between_check_and_takeover_keeps_its_lease(lake: Path, elsewhere: Lease):
    ours = FakeClock()
    leases = leases_of(lake, clock=ours)
    leases.row(COMPACTOR)
    ours.pass_time(seconds=TTL)

    def renewed(_place: str) -> None:
        with arm("lease.after_stage", lambda _: None):
            elsewhere.renew()

    with arm("lease.after_stage", renewed):
        assert leases.acquire(COMPACTOR, role=Role.ALL) is None
    elsewhere.check()
    assert len(list((lake / "_system" / "leases" / "data").iterdir())) == 1


def test_an_epoch_can_be_raised_above_one_that_a_purge_has_set(lake: Path, tmp_path: Path):
    table = make_table(tmp_path / "t")
    lease = taken(leases_of(lake))
    commit_with(table, 7)
    planned = lease.epoch
    assert lease.advance(above=7) == 8
    assert lease.advance(above=3) == 8
    commit_with(table, lease.epoch)
    with pytest.raises(Fenced):
        commit_with(table, planned)
    lease.renew()
    lease.release()
    assert taken(leases_of(lake)).epoch == 9


def may_commit(table: Table, lease: Lease) -> bool:
    try:
        commit_with(table, lease.epoch)
    except Fenced:
        return False
    return True


@pytest.mark.parametrize("seed", range(4))
def test_in_any_history_of_takers_with_clocks_of_their_own_epochs_commit_in_their_order(
    lake: Path, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
):
    """Three machines acquire, renew, die, sleep, commit and set their clocks.

    Each epoch has one holder, and no epoch returns.
    """
    draw = random.Random(seed)
    clocks = [FakeClock(START + datetime.timedelta(days=draw.randint(-3, 3))) for _ in range(3)]
    leases = [leases_of(lake, clock=clock) for clock in clocks]
    held: list[tuple[int, Lease]] = []
    table, committed = make_table(tmp_path / "t"), []
    for _ in range(250):
        who = draw.randrange(3)
        monkeypatch.setattr(leases_module, "machine", lambda who=who: f"machine {who}")
        match draw.choice(["take", "take", "renew", "commit", "commit", "die", "time", "time", "jump"]):
            case "take":
                if (lease := leases[who].acquire(COMPACTOR, role=Role.ALL, ttl_seconds=TTL)) is not None:
                    held.append((who, lease))
            case "renew" if held:
                with contextlib.suppress(Fenced):
                    draw.choice(held)[1].renew()
            case "commit" if held:
                who, lease = draw.choice(held)  # also a holder that is not yet aware of its replacement
                committed.append((lease.epoch, lease.row.holder, may_commit(table, lease)))
            case "die" if held and draw.random() < 0.3:
                dead(held.pop(draw.randrange(len(held)))[1])
            case "time":
                for clock in clocks:
                    clock.pass_time(seconds=draw.choice([1, 20, 45]))
            case "jump":
                clocks[who].jump(hours=draw.randint(-48, 48))
            case _:
                pass
    epochs = [epoch for epoch, _, landed in committed if landed]
    assert epochs == sorted(epochs)
    assert len({holder for _, holder, _ in committed}) == len({epoch for epoch, _, _ in committed})
    assert len(set(epochs)) > 1
    assert not all(landed for _, _, landed in committed), "at least one commit must have been fenced"


# ---- errors ----------------------------------------------------------------------------------------------------------


def test_a_renewal_whose_answer_is_lost_keeps_the_lease(lake: Path):
    lease = taken(leases_of(lake))
    with arm("lease.after_commit", "raise"), pytest.raises(Unavailable):
        lease.renew()
    lease.check()
    lease.renew()


def test_an_acquisition_that_could_not_be_synced_holds_if_it_is_in_the_table(
    lake: Path, monkeypatch: pytest.MonkeyPatch
):
    taken(leases_of(lake)).release()
    failures = [OSError("no sync")]

    def sync_log(_table: Table, _until: int) -> None:
        if failures:
            raise failures.pop()

    replace_log_sync(monkeypatch, sync_log)
    lease = taken(leases_of(lake))
    lease.check()
    lease.renew()
    assert (failures, lease.epoch) == ([], 2)


def test_a_reader_cannot_acquire_a_lease(lake: Path):
    with refused(InvalidRequest, None, "'reader'", "'compactor'"):
        leases_of(lake).acquire(COMPACTOR, role=Role.READER)
    assert not (lake / "_system" / "leases").exists()


@pytest.mark.parametrize("name", ["", "Compactor", "a b", "../x", "x" * 101])
def test_an_invalid_lease_name_is_refused(lake: Path, name: str):
    with pytest.raises(InvalidRequest, match=re.escape(repr(name))):
        leases_of(lake).acquire(name, role=Role.ALL)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf"), 1e9])
def test_an_invalid_lifetime_is_refused(lake: Path, seconds: float):
    with pytest.raises(InvalidRequest):
        leases_of(lake).acquire(COMPACTOR, role=Role.ALL, ttl_seconds=seconds)


def test_a_lease_without_a_lake_is_refused(tmp_path: Path):
    with pytest.raises(NotFound, match="mistyped"):
        leases_of(tmp_path / "mistyped").acquire(COMPACTOR, role=Role.ALL)
    assert not (tmp_path / "mistyped").exists()


def _empty_entry(table: Path) -> None:
    max((table / LOG).glob("*.json")).write_bytes(b"")


def _no_row(table: Path) -> None:
    shutil.rmtree(table / "data")


def _broken_row(table: Path) -> None:
    [path] = (table / "data").iterdir()
    path.write_bytes(b"PAR1 no more PAR1")


def _no_log(table: Path) -> None:
    shutil.rmtree(table / LOG)


@pytest.mark.parametrize("damage", [_empty_entry, _no_row, _broken_row, _no_log])
def test_a_table_that_cannot_be_read_is_an_error_and_no_free_lease(lake: Path, damage: object):
    assert callable(damage)
    dead(taken(leases_of(lake)))
    damage(lake / "_system" / "leases")
    for call in ("row", "holder"):
        with pytest.raises((Corruption, Unavailable)):
            getattr(leases_of(lake), call)(COMPACTOR)
    with pytest.raises((Corruption, Unavailable)):
        leases_of(lake).acquire(COMPACTOR, role=Role.ALL)


def test_a_file_at_the_path_of_the_table_is_an_error(lake: Path):
    (lake / "_system" / "leases").write_text("no table")
    with pytest.raises((Corruption, Unavailable)):
        leases_of(lake).acquire(COMPACTOR, role=Role.ALL)


def test_a_table_that_is_deleted_under_its_holder_is_an_error_for_it(lake: Path):
    lease = taken(leases_of(lake))
    shutil.rmtree(lake / "_system" / "leases")
    with pytest.raises(Unavailable):
        lease.check()
    with pytest.raises((Unavailable, Fenced)):
        lease.renew()
    lease.release()


def test_the_epoch_outlives_checkpoints_and_cleaning(lake: Path):
    for _ in range(3):
        taken(leases_of(lake)).release()
    write_checkpoint(Layout.at(lake).leases, durable=False)
    forget_history(Layout.at(lake).leases)
    assert taken(leases_of(lake)).epoch == 4


def test_the_time_of_a_lease_comes_from_the_settings(lake: Path):
    lease = leases_of(lake, settings=Settings(durable=False, lease_seconds=7)).acquire(COMPACTOR, role=Role.ALL)
    assert lease is not None
    assert lease.row.ttl_seconds == 7
