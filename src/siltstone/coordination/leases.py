"""Leases: which process may do work that only one process of a lake should do, such as compactions.

Terms. A lease has a *name* and an *epoch*, a number that rises whenever the lease is acquired. Its *row* names the holder and the
time until which it was renewed. The rows are a Delta table of the lake, ``_system/leases``, with one live file for each name.
The app transaction ("lease/<name>", epoch) of that table decides: exactly one of several processes acquires it.

Flow of `Leases.acquire`:

1. read the row and determine the state of its holder (`lease_state`): a live holder wins;
2. acquire a liveness lock under a fresh id, because later readers of our row must see a live holder;
3. write the new row to a file that no log names yet;
4. commit it with epoch n+1 as the replacement of exactly the row that was read. If that was renewed or replaced
   meanwhile, it wins;
5. delete the replaced file.

A renewal and a release do steps 3 to 5 with the same epoch. They do so only while the row is the holder's own.

When a holder counts as dead. On this machine the liveness lock shows it at once. A holder on another machine is expired
in two cases. *We* have seen its row unchanged for its lifetime by our own monotonic clock. Or its end has passed by a
margin of our time of day. This is for a process that has just started and has not seen the row before. A clock that
jumps can make us acquire a lease from a live holder. That only costs work: the epoch protects the data.

Invariant. The lease saves work; the epoch protects the data. Every commit of a job carries the epoch of its lease. The commit
path refuses it with Fenced if a higher epoch has committed.

A crash before step 4 leaves a file that no log names. After step 4 the lease is acquired, by a holder whose liveness lock is
free. A crash before step 5 leaves a file that the log no longer names. `acquire` deletes such files. A table that cannot be
read is an error, never a free lease. There is deliberately no way to acquire a lease by force. To stop a live holder, end
its process.
"""

import datetime
import os
import re
import socket
import threading
from dataclasses import replace
from typing import Final, Self

from siltstone.clock import Clock
from siltstone.config import Role, Settings
from siltstone.coordination.host_identity import machine
from siltstone.coordination.lease_table import CachedRow, LeaseTable
from siltstone.coordination.liveness import LivenessLock, is_live
from siltstone.delta.layout import Layout, owner_of
from siltstone.errors import Conflict, Fenced, InvalidRequest, NotFound, error_text
from siltstone.model.lease import LeaseRow, LeaseState, lease_state
from siltstone.model.roles import check_may_compact

COMPACTOR: Final = "compactor"
"""The lease of the process that runs compactions in a lake."""
RENEWALS_IN_TIME: Final = 3
"""Renewals within the lifetime of a lease, so that one renewal may fail."""
LONGEST_SECONDS: Final = 86_400.0
"""Longest lifetime of a lease, in seconds. After a crash a lake is without maintenance for up to this time."""
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_./-]{0,99}")


class Leases:
    """The leases of one lake. Use one object for as long as you wait for a lease, because it remembers the rows it has seen."""

    def __init__(self, layout: Layout, settings: Settings, clock: Clock) -> None:
        self._layout = layout
        self._settings = settings
        self._clock = clock
        self._table = LeaseTable(layout, settings, clock)

    def row(self, name: str) -> LeaseRow | None:
        """Return the row of the current or last holder; None if the lease was never acquired.

        Raises:
            Unavailable: the table cannot be read now.
            Corruption: the table is damaged.
        """
        cached = self._table.read(_check_name(name))
        return None if cached is None else cached.row

    def epoch(self, name: str = COMPACTOR) -> int:
        """Return the epoch of the lease; 0 if it was never acquired. Raises as `row` does."""
        row = self.row(name)
        return row.epoch if row is not None else 0

    def holder(self, name: str) -> LeaseRow | None:
        """Return the row of a live holder; None if the lease can be acquired. Raises as `row` does."""
        cached = self._table.read(_check_name(name))
        return cached.row if cached is not None and self._state(cached) is LeaseState.HELD else None

    def acquire(self, name: str, *, role: Role, ttl_seconds: float | None = None) -> "Lease | None":
        """Acquire the lease if it is available; None if a live holder has it, or another process acquired it first.

        The lease must be renewed: use it as a context manager, or call `Lease.renew`.

        Raises:
            InvalidRequest: the role may not compact, or the name or time is not valid.
            NotFound: the lake does not exist.
            Unavailable: the table cannot be read or written now.
            Corruption: the table is damaged.
        """
        check_may_compact(role, doing=f"acquire the lease {_check_name(name)!r}")
        ttl = self._settings.lease_seconds if ttl_seconds is None else ttl_seconds
        if not 0 < ttl <= LONGEST_SECONDS:
            raise InvalidRequest(f"A lease lasts more than 0 and at most {LONGEST_SECONDS:,.0f} seconds, not {ttl!r}.")
        self._table.ensure()
        before = self._table.read(name)
        state = self._state(before)
        if state is LeaseState.HELD:
            return None
        row = self._new_row(name, before, role=role, ttl_seconds=float(ttl))
        with self._table.errors_translated():
            liveness_lock = LivenessLock(self._layout.liveness, row.holder)
        replaced = (0, None) if before is None else (before.row.epoch, before.path)  # exactly the row that was read
        try:
            self._table.write(row, allowed=lambda epoch, path: (epoch, path) == replaced)
        except BaseException as error:
            liveness_lock.close()
            if isinstance(error, Conflict):
                return None
            raise
        self._table.sweep()
        return Lease(
            self._table,
            row,
            liveness_lock,
            clock=self._clock,
            previous_holder=before.row if before and state is not LeaseState.FREE else None,
        )

    def _new_row(self, name: str, before: CachedRow | None, *, role: Role, ttl_seconds: float) -> LeaseRow:
        now = self._clock.now()
        return LeaseRow(
            name=name,
            epoch=before.row.epoch + 1 if before is not None else 1,
            holder=self._clock.new_id(),
            machine=machine(),
            host=socket.gethostname(),
            pid=os.getpid(),
            role=role.value,
            since=now,
            renewed_at=now,
            expires_at=now + datetime.timedelta(seconds=ttl_seconds),
            ttl_seconds=ttl_seconds,
        )

    def _state(self, cached: CachedRow | None) -> LeaseState:
        if cached is None:
            return LeaseState.FREE
        present = None
        if cached.row.machine == machine():
            with self._table.errors_translated():
                present = is_live(self._layout.liveness, cached.row.holder)
        return lease_state(
            cached.row,
            unchanged_seconds=self._clock.monotonic_seconds() - cached.since_seconds,
            now=self._clock.now(),
            present=present,
        )


class Lease:
    """A lease that this process holds. Safe to share between threads.

    As a context manager it renews itself on its own thread, and is released at the end.
    """

    def __init__(
        self,
        table: LeaseTable,
        row: LeaseRow,
        liveness_lock: LivenessLock,
        *,
        clock: Clock,
        previous_holder: LeaseRow | None,
    ) -> None:
        self.previous_holder = previous_holder
        """The dead or expired holder from which this lease was taken over, if any. It may have left unfinished work."""
        self.trouble: str | None = None
        """Error text of the last renewal on the lease's own thread; None after a successful one."""
        self._table = table
        self._row = row
        self._liveness_lock = liveness_lock
        self._clock = clock
        self._mutex = threading.RLock()
        self._renewed_seconds = clock.monotonic_seconds()
        self._end_reason: str | None = None
        self._stop = threading.Event()
        self._renewer: threading.Thread | None = None

    @property
    def name(self) -> str:
        """The lease's name."""
        return self._row.name

    @property
    def epoch(self) -> int:
        """The epoch for commits. A job keeps the epoch with which it was planned, even if `advance` raises it."""
        return self._row.epoch

    @property
    def row(self) -> LeaseRow:
        """The row of this holder in the table."""
        return self._row

    def check(self) -> None:
        """Return while the lease is ours. Costs a few file checks, for every tick and before every commit.

        A lease is ours until another process acquires it, even if it could not be renewed. But perhaps it was not
        renewed for its whole lifetime, and the table cannot be read either. Then another process may have acquired it
        unseen, and it is lost.

        Raises:
            Fenced: another process has taken over, the lease was released, or it is lost.
            Unavailable: the table cannot be read now.
        """
        with self._mutex:
            self._check_not_ended()
            try:
                is_ours = self._table.owns(self._row)
            except Exception as error:
                if self._unrenewed_seconds() >= self._row.ttl_seconds:
                    raise self._lost(f"was not renewed in time and cannot be looked up ({error})") from error
                raise
            if not is_ours:
                raise self._lost()

    def renew(self) -> None:
        """Extend the lease. The epoch stays, the end moves.

        Raises:
            Fenced: another process has taken over; stop.
            Unavailable: the row could not be written; the lease is ours until another process acquires it.
        """
        with self._mutex:
            now = self._clock.now()
            ends = now + datetime.timedelta(seconds=self._row.ttl_seconds)
            self._write(replace(self._row, renewed_at=now, expires_at=ends))
            self._renewed_seconds = self._clock.monotonic_seconds()

    def renew_if_due(self) -> bool:
        """Renew if a third of the lease's lifetime has passed since the last renewal; return whether it was renewed."""
        with self._mutex:
            if self._unrenewed_seconds() < self._row.ttl_seconds / RENEWALS_IN_TIME:
                return False
            self.renew()
            return True

    def advance(self, *, above: int) -> int:
        """Raise the holder's epoch above a number, because a purge raised a dataset's epoch beyond ours; return it.

        Work that was planned with the old epoch stays fenced out.

        Raises:
            Fenced: another process has taken over; stop.
        """
        with self._mutex:
            if self._row.epoch <= above:
                self._write(replace(self._row, epoch=above + 1))
            return self._row.epoch

    def release(self) -> None:
        """Release the lease, so that the next holder need not wait. Safe to repeat, also after a takeover.

        If the disk fails, the row stays as it is. The liveness lock is released, so that processes on this machine see a dead
        holder.
        """
        self._stop.set()
        if self._renewer is not None and self._renewer is not threading.current_thread():
            self._renewer.join()
        with self._mutex:
            try:
                if self._end_reason is None:
                    self._write(replace(self._row, expires_at=self._clock.now(), released=True))
                    self._end_reason = "was released"
            except Exception as error:  # noqa: BLE001  # in any case the free liveness lock shows that we are gone
                self._end_reason = self._end_reason or f"was given up, and could not be released ({error})"
            finally:
                self._liveness_lock.close()

    def keep(self) -> Self:
        """Renew the lease on its own thread until it is released."""
        self._renewer = threading.Thread(
            target=self._renew_until_stopped, name=f"siltstone-lease-{self.name}", daemon=True
        )
        self._renewer.start()
        return self

    def __enter__(self) -> Self:
        return self.keep()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _renew_until_stopped(self) -> None:
        while not self._stop.wait(self._row.ttl_seconds / RENEWALS_IN_TIME):
            try:
                self.renew()
            except Fenced as error:
                self.trouble = str(error)
                return
            except Exception as error:  # noqa: BLE001  # if this thread ended, the lease would expire
                self.trouble = f"Lease {self.name!r} cannot be renewed: {error_text(error)}"
            else:
                self.trouble = None

    def _write(self, row: LeaseRow) -> None:
        self._check_not_ended()
        current = self._row
        try:
            self._table.write(
                row,
                allowed=lambda epoch, path: (
                    epoch == current.epoch and path is not None and owner_of(path) == current.holder
                ),
            )
        except (Conflict, NotFound) as error:  # the row, or the whole table, was replaced
            raise self._lost() from error
        self._row = row

    def _check_not_ended(self) -> None:
        if self._end_reason is not None:
            raise self._lost(self._end_reason)

    def _unrenewed_seconds(self) -> float:
        return self._clock.monotonic_seconds() - self._renewed_seconds

    def _lost(self, why: str = "was taken over by another holder") -> Fenced:
        self._end_reason = why
        return Fenced(f"Lease {self.name!r} with epoch {self.epoch} {why}. Stop this work.")


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidRequest(f"{name!r} is not a valid lease name. Use small letters, digits, '_', '-', '.' and '/'.")
    return name
