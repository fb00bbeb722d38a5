"""Asking for a compaction: done here if nobody holds the lease, handed to the holder and followed if somebody does.

Flow of `Asking.ask`:

1. take the lease: if it is free, do it here under it, with the next number, and let go;
2. a compactor holds it: write a request (`coordination.request_queue`) and follow what it tells until the answer is there;
3. another command holds it: wait until it is done, then 1. Two cycles at once are refused: "already running".

The holder can die at any moment. A compactor that stands by takes over and does the request again; if nobody does, this process
takes the lease and does it itself. Every kind of work goes the same way; a purge has an epoch above that of the lease.
"""

from typing import Final

from siltstone.coordination.leases import COMPACTOR, Lease
from siltstone.coordination.request_queue import Following
from siltstone.coordination.state_files import STATUS
from siltstone.errors import Conflict, NotFound, Unavailable
from siltstone.model.compaction_request import Answer, Ask, Wish
from siltstone.model.lease import LeaseRow
from siltstone.model.roles import check_may_compact
from siltstone.scheduler.housework import Housework, Office, Tell, Turn

POLL_SECONDS: Final = 0.2
HANDOVER_SECONDS: Final = 3.0
"""How long to wait for somebody to take over: a compactor that stands by looks each second, and nobody knows whether one does."""
COMMAND, SERVICE = "command", "compactor"
"""What holds the lease: one call that ends by itself, or a compactor that serves requests."""


class Asking:
    """Asks for compactions in one lake."""

    def __init__(self, housework: Housework, office: Office) -> None:
        """Take what is needed; nothing is read or written yet."""
        self._housework = housework
        self._office = office
        self._leases = office.leases
        self._requests = office.requests
        self._notes = office.notes
        self._settings = office.settings
        self._clock = office.clock

    def ask(self, wish: Wish, *, tell: Tell) -> Answer:
        """Have it done, here or by the holder, and return what came of it.

        Raises:
            InvalidRequest: the role may not compact.
            Conflict: a cycle was asked for while one is running.
            Unavailable, Corruption: the leases cannot be read.
        """
        check_may_compact(self._settings.role, doing=wish.what)
        waits_for: str | None = None
        while True:
            lease = self._leases.take(COMPACTOR, role=self._settings.role)
            if lease is not None:
                return self._here(lease, wish, tell=tell)
            row = self._leases.holder(COMPACTOR)
            if row is None:
                continue
            status = self.status_of(row)
            if status is not None and status["kind"] == SERVICE:
                answer = self._there(row, wish, tell=tell)
                if answer is not None:
                    return answer
                continue
            if wish.ask is Ask.CYCLE and status is not None and status.get("running_cycle") is not None:
                raise already_running(status["running_cycle"], row)
            if waits_for != row.holder:
                waits_for = row.holder
                tell({"event": "waiting", "holder": row.described()})
            self._clock.sleep(POLL_SECONDS)

    def status_of(self, row: LeaseRow) -> dict[str, object] | None:
        """Return what the holder says of itself; None if what is there was left by another one."""
        found = self._notes.read(STATUS)
        return found if found is not None and found.get("holder") == row.holder else None

    def stop(self, *, seconds: float) -> str | None:
        """Ask the compactor that holds the lease to stop, and wait until it has let go; return who has taken over.

        None if nobody has within `HANDOVER_SECONDS`.

        Raises:
            NotFound: nobody holds the lease.
            Conflict: a single command holds it.
            Unavailable: it was not let go of within that time.
        """
        row = self._leases.holder(COMPACTOR)
        if row is None:
            raise NotFound("No compactor is running in this lake.")
        status = self.status_of(row)
        if status is not None and status["kind"] != SERVICE:
            raise Conflict(f"{row.described()} runs a single command. Wait until it has ended, or end it there.")
        following = self._requests.ask(Wish(ask=Ask.STOP))
        until = self._clock.monotonic_seconds() + seconds
        try:
            while self._clock.monotonic_seconds() < until:
                now = self._leases.holder(COMPACTOR)
                if now is None or now.holder != row.holder:
                    return self._taken_over()
                self._clock.sleep(POLL_SECONDS)
        finally:
            following.close()
        raise Unavailable(f"{row.described()} has not stopped within {seconds:g} seconds.")

    def _taken_over(self) -> str | None:
        """Return who has taken the lease, as soon as somebody has; None if nobody does."""
        until = self._clock.monotonic_seconds() + HANDOVER_SECONDS
        while (row := self._leases.holder(COMPACTOR)) is None and self._clock.monotonic_seconds() < until:
            self._clock.sleep(POLL_SECONDS)
        return row.described() if row is not None else None

    # ---- here ----------------------------------------------------------------------------------------------------

    def _here(self, lease: Lease, wish: Wish, *, tell: Tell) -> Answer:
        with lease:
            number = self._office.next_cycle()
            note = {"holder": lease.row.holder, "kind": COMMAND, "pid": lease.row.pid, "host": lease.row.host}
            self._notes.write(STATUS, {**note, "state": "running", "running_cycle": number})
            started, began = self._clock.now(), self._clock.monotonic_seconds()
            try:
                why = f"asked by process {lease.row.pid} on {lease.row.host}"
                turn = Turn(number=number, lease=lease, stopping=lambda: False, tell=tell, trigger=why)
                results = self._housework.do(wish, turn)
                self._notes.ended(
                    {
                        "cycle": number,
                        "why": "command",
                        "works": [wish.what],
                        "jobs": len(results),
                        "failed": sum(1 for one in results if one.get("error")),
                        "errors": [],
                        "started": started.isoformat(timespec="seconds"),
                        "seconds": round(self._clock.monotonic_seconds() - began, 3),
                    }
                )
            finally:
                self._notes.write(STATUS, {**note, "state": "stopped", "running_cycle": None})
            return Answer(id="", cycle=number, results=tuple(results))

    # ---- there ---------------------------------------------------------------------------------------------------

    def _there(self, row: LeaseRow, wish: Wish, *, tell: Tell) -> Answer | None:
        """Hand it to the holder and follow; None if nobody is left to do it."""
        following = self._requests.ask(wish)
        try:
            tell({"event": "handed_over", "holder": row.described()})
            answer = self._followed(following, row, tell=tell)
        except BaseException:
            begun = not following.withdraw()
            tell({"event": "left" if begun else "withdrawn", "holder": row.described()})
            following.close(goes_on=begun)
            raise
        following.close()
        return answer

    def _followed(self, following: Following, row: LeaseRow, *, tell: Tell) -> Answer | None:
        while True:
            for line in following.told():
                tell(line)
            answer = following.answer()
            if answer is not None:
                for line in following.told():
                    tell(line)
                return answer
            now = self._leases.holder(COMPACTOR)
            if now is None:
                if (last := following.answer()) is not None:  # it answered, and then ended
                    return last
                tell({"event": "holder_gone", "holder": row.described()})
                return None
            if now.holder != row.holder:
                tell({"event": "taken_over", "holder": now.described()})
                row = now
            self._clock.sleep(POLL_SECONDS)


def already_running(number: object, row: LeaseRow) -> Conflict:
    """Return the error for a second cycle."""
    return Conflict(f"Cycle {number} is already running in {row.described()}. Wait until it has ended.")
