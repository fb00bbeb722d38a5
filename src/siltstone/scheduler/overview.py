"""How a lake's compactor stands, as plain data for whoever asks in another process; and the pause, which is of the lake."""

from typing import Final

from siltstone.clock import Clock
from siltstone.coordination.leases import COMPACTOR
from siltstone.coordination.state_files import PAUSED, STATUS, STOP, Notes
from siltstone.errors import NotFound, Unavailable
from siltstone.model.lease import LeaseRow
from siltstone.scheduler.cycles import Cycle
from siltstone.scheduler.housework import Office, Told

POLL_SECONDS: Final = 0.2
TAKEOVER_SECONDS: Final = 3.0
"""How long `stop` waits for a standby compactor to take over. One polls the lease each second."""
CANCELLED: Final = "cancelled"
"""The outcome of a job that was ended because the compactor was told to stop; it has an error, too, and has not failed."""


def pause(notes: Notes, clock: Clock) -> None:
    """Let no compactor of a lake run anything by the clock until somebody resumes."""
    if notes.read(PAUSED) is None:
        notes.write(PAUSED, {"since": clock.now().isoformat(timespec="seconds")})


def resume(notes: Notes) -> bool:
    """Let compactors of a lake go on by the clock; return whether they were paused."""
    return notes.remove(PAUSED)


def stop(office: Office, *, seconds: float) -> str | None:
    """Request the lease holder to stop, and wait until it has released the lease; return the process that takes over.

    The request names the holder. One that is left by a crash stops no other compactor.

    Raises:
        NotFound: no compactor holds the lease.
        Unavailable: the lease was not released within that time.
    """
    row = office.leases.holder(COMPACTOR)
    if row is None:
        raise NotFound("No compactor is running in this lake.")
    clock = office.clock
    until = clock.monotonic_seconds() + seconds
    office.notes.write(STOP, {"holder": row.holder, "since": clock.now().isoformat(timespec="seconds")})
    try:
        while clock.monotonic_seconds() < until:
            now = office.leases.holder(COMPACTOR)
            if now is None or now.holder != row.holder:
                return _successor(office)
            clock.sleep(POLL_SECONDS)
    finally:
        office.notes.remove(STOP)
    raise Unavailable(f"{row.described()} has not stopped within {seconds:g} seconds.")


def _successor(office: Office) -> str | None:
    """Return the process that has taken the lease; None if no process has within `TAKEOVER_SECONDS`."""
    until = office.clock.monotonic_seconds() + TAKEOVER_SECONDS
    while (row := office.leases.holder(COMPACTOR)) is None and office.clock.monotonic_seconds() < until:
        office.clock.sleep(POLL_SECONDS)
    return row.described() if row is not None else None


def overview(office: Office) -> Told:
    """Return how a lake's compactor stands, as plain data, for whoever asks in another process.

    Raises:
        Unavailable, Corruption: the leases or the notes cannot be read.
    """
    notes = office.notes
    row, holder = office.leases.row(COMPACTOR), office.leases.holder(COMPACTOR)
    status, cycles = notes.read(STATUS), notes.cycles()
    known = status if status is not None and holder is not None and status.get("holder") == holder.holder else None
    paused = notes.read(PAUSED)
    return {
        "running": holder is not None,
        "holder": told_holder(holder) if holder is not None else None,
        "last_holder": told_holder(row) if row is not None and holder is None else None,
        "state": known.get("state") if known else None,
        "paused": paused is not None,
        "paused_since": paused.get("since") if paused else None,
        "running_cycle": known.get("running_cycle") if known else None,
        "running_work": known.get("running_work") if known else None,
        "running_since": known.get("running_since") if known else None,
        "last_cycle": cycles.get("ended"),
        "cycles": cycles.get("last", 0),
        "due": known.get("due", {}) if known else {},
        "trouble": known.get("trouble") if known else None,
    }


def told_holder(row: LeaseRow) -> Told:
    """Return who holds a lease, as plain data."""
    return {
        "holder": row.holder,
        "pid": row.pid,
        "host": row.host,
        "role": row.role,
        "epoch": row.epoch,
        "since": row.since.isoformat(timespec="seconds"),
    }


def told_cycle(cycle: Cycle) -> Told:
    """Return what came of a cycle, counted."""
    jobs = [one for result in cycle.results if isinstance(result.value, list) for one in result.value]
    done = [one for one in jobs if "report" in one]
    errors = [result.error for result in cycle.results if result.error]
    cancelled = sum(1 for one in jobs if one.get("outcome") == CANCELLED)
    return {
        "cycle": cycle.number,
        "why": str(cycle.why),
        "works": [name for result in cycle.results for name in result.works],
        "jobs": len(done),
        "failed": len(errors) + sum(1 for one in jobs if one.get("error")) - cancelled,
        "cancelled": cancelled,
        "errors": errors,
        "started": cycle.started.isoformat(timespec="seconds"),
        "seconds": round(cycle.seconds, 3),
    }
