"""Access of other processes to the compactor of a lake: status, pause and stop, through the lease and state files."""

from typing import Any, Final

from siltstone.clock import Clock, utc_text
from siltstone.coordination.leases import COMPACTOR, Leases
from siltstone.coordination.state_files import PAUSED, STATUS, STOP, StateFiles
from siltstone.errors import NotFound, Unavailable
from siltstone.model.lease import LeaseRow

POLL_SECONDS: Final = 0.2
TAKEOVER_SECONDS: Final = 3.0
"""Seconds that `stop` waits for a standby compactor to take over. A standby polls the lease each second."""


class CompactorState:
    """The lease and the state files of a lake's compactor."""

    def __init__(self, leases: Leases, files: StateFiles, clock: Clock) -> None:
        self._leases = leases
        self._files = files
        self._clock = clock
        self._lake = files.folder.parent.parent  # the files are in _system/compactor

    def pause(self) -> None:
        """Pause the schedule of all compactors of the lake until a resume."""
        if self._files.read(PAUSED) is None:
            self._files.write(PAUSED, {"since": self._now()})

    def resume(self) -> bool:
        """Resume the schedule. Return true if it was paused."""
        return self._files.remove(PAUSED)

    def is_paused(self) -> bool:
        """True if the schedule is paused."""
        return self._files.read(PAUSED) is not None

    def stop(self, *, seconds: float) -> str | None:
        """Request the lease holder to stop, wait until the lease is free, and return the next holder, if any.

        The request names the holder. A request that a crash left behind does not stop another compactor.

        Raises:
            NotFound: no compactor holds the lease.
            Unavailable: the lease was not released within that time.
        """
        row = self._leases.holder(COMPACTOR)
        if row is None:
            raise NotFound(
                f"No compactor is running in lake {self._lake}. Nothing was stopped. silt compactor status shows the last one."
            )
        until = self._clock.monotonic_seconds() + seconds
        self._files.write(STOP, {"holder": row.holder, "since": self._now()})
        try:
            while self._clock.monotonic_seconds() < until:
                now = self._leases.holder(COMPACTOR)
                if now is None or now.holder != row.holder:
                    return self._next_holder()
                self._clock.sleep(POLL_SECONDS)
        finally:
            self._files.remove(STOP)
        raise Unavailable(
            f"Lake {self._lake}: {row.described()} has not stopped within {seconds:g} seconds. That process may stop later. "
            "See silt compactor status."
        )

    def is_stop_requested(self, holder: str) -> bool:
        """True if another process has requested this lease holder to stop."""
        request = self._files.read(STOP)
        return request is not None and request.get("holder") == holder

    def status(self) -> dict[str, Any]:
        """Return the status of the lake's compactor as plain data."""
        row, holder = self._leases.row(COMPACTOR), self._leases.holder(COMPACTOR)
        status, cycles, paused = self._files.read(STATUS), self._files.cycles(), self._files.read(PAUSED)
        current = status if status and holder is not None and status.get("holder") == holder.holder else {}
        return {
            "running": holder is not None,
            "holder": holder_facts(holder) if holder is not None else None,
            "last_holder": holder_facts(row) if row is not None and holder is None else None,
            "state": current.get("state"),
            "paused": paused is not None,
            "paused_since": paused.get("since") if paused else None,
            "running_cycle": current.get("running_cycle"),
            "running_tasks": current.get("running_tasks", []),
            "running_since": current.get("running_since"),
            "last_cycle": cycles.get("ended"),
            "cycles": cycles.get("last", 0),
            "due": current.get("due", {}),
            "trouble": current.get("trouble"),
        }

    def _next_holder(self) -> str | None:
        """Return the process that has acquired the lease; None if no process did within `TAKEOVER_SECONDS`."""
        until = self._clock.monotonic_seconds() + TAKEOVER_SECONDS
        while (row := self._leases.holder(COMPACTOR)) is None and self._clock.monotonic_seconds() < until:
            self._clock.sleep(POLL_SECONDS)
        return row.described() if row is not None else None

    def _now(self) -> str:
        return utc_text(self._clock.now(), timespec="seconds")


def holder_facts(row: LeaseRow) -> dict[str, Any]:
    """Return a lease holder as plain data."""
    return {
        "holder": row.holder,
        "pid": row.pid,
        "host": row.host,
        "role": row.role,
        "epoch": row.epoch,
        "since": utc_text(row.since, timespec="seconds"),
    }
