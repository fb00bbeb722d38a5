"""Leases: which process may do what only one of a lake should do, as the running of compactions.

Terms. A lease has a *name* and an *epoch*, a number that rises with every taking. Its *row* says who holds it and until when
it was renewed. The rows are a Delta table of the lake, ``_system/leases``, one live file for each name; the app transaction
("lease/<name>", epoch) of that table lets exactly one of many takers win.

Flow of `Leases.take`:

1. read the row and judge its holder (`standing`): a live one is left alone;
2. take a presence under a fresh id: who reads our row later must see a live holder;
3. write the new row to a file that no log names yet;
4. commit it with epoch n+1 in the place of exactly the row that was judged; one that was renewed or taken meanwhile wins;
5. delete the replaced file.

A renewal and a release do 3 to 5 with the same epoch, and only as long as the row is the holder's own.

Who is dead. On this machine the presence lock says so, at once. A holder that cannot be seen is expired once *we* have watched
its row unchanged for its time by our own monotonic clock, or once its end has passed by a margin of our time of day: a process
that has just started has watched nothing. A clock that jumps can make us take a lease from somebody who lives. That costs work
and nothing else, because of the

Invariant. The lease saves work; the epoch keeps the data right. Every commit of a job carries the epoch of its lease, and the
commit path refuses it with Fenced where a higher one has committed.

A crash before 4 leaves a file that no log names; after 4 the lease is taken, by a holder whose presence is free; before 5 a
file that the log no longer names. `take` removes such files. A table that cannot be read is an error, never a free lease.
Deliberately absent: any way to take a lease by force. Whoever must stop a live holder ends its process.
"""

import datetime
import os
import re
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Final, Self

from siltstone.clock import Clock
from siltstone.config import Role, Settings
from siltstone.coordination.host_identity import machine
from siltstone.coordination.lease_table import LeaseTable, Seen
from siltstone.coordination.liveness import Presence, is_live
from siltstone.delta.layout import Layout, owner_of
from siltstone.errors import Conflict, Fenced, InvalidRequest, NotFound, error_text
from siltstone.model.lease import LeaseRow, Standing, standing
from siltstone.model.roles import check_may_compact

COMPACTOR: Final = "compactor"
"""The lease of whoever runs compactions in a lake."""
RENEWALS_IN_TIME: Final = 3
"""A lease is renewed this many times in its time, so that one renewal may fail."""
LONGEST_SECONDS: Final = 86_400.0
"""A lease that lasts longer would keep a lake from being looked after for a day after a crash."""
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_./-]{0,99}")


class Leases:
    """The leases of one lake. Keep one for as long as you wait for a lease: it remembers what it has watched."""

    def __init__(self, layout: Layout, settings: Settings, clock: Clock) -> None:
        """Remember where the lake is; nothing is read or written yet."""
        self._layout = layout
        self._settings = settings
        self._clock = clock
        self._table = LeaseTable(layout, settings, clock)

    # ---- reading -------------------------------------------------------------------------------------------------

    def row(self, name: str) -> LeaseRow | None:
        """Return who holds the lease or held it last; None if nobody ever did.

        Raises:
            Unavailable: the table cannot be read now.
            Corruption: it is damaged.
        """
        found = self._table.look(_checked(name))
        return None if found is None else found.row

    def epoch(self, name: str = COMPACTOR) -> int:
        """Return the epoch of the lease; 0 if nobody ever held it.

        Raises:
            Unavailable, Corruption: see `row`.
        """
        row = self.row(name)
        return row.epoch if row is not None else 0

    def holder(self, name: str) -> LeaseRow | None:
        """Return the row of a holder that lives, as far as can be told; None if the lease can be taken.

        Raises:
            Unavailable: the table cannot be read now.
            Corruption: it is damaged.
        """
        found = self._table.look(_checked(name))
        return found.row if found is not None and self._standing(found) is Standing.HELD else None

    # ---- taking --------------------------------------------------------------------------------------------------

    def take(self, name: str, *, role: Role, ttl_seconds: float | None = None) -> "Lease | None":
        """Take the lease if it can be had; None if a live holder has it, or somebody else was quicker.

        The lease has to be renewed: use it as a context manager, or call `Lease.renew`.

        Raises:
            InvalidRequest: the role may not compact, or the name or time makes no sense.
            NotFound: there is no lake.
            Unavailable: the table cannot be read or written now.
            Corruption: the table is damaged.
        """
        check_may_compact(role, doing=f"take the lease {_checked(name)!r}")
        ttl = _checked_seconds(self._settings.lease_seconds if ttl_seconds is None else ttl_seconds)
        self._table.ensure()
        before = self._table.look(name)
        found = self._standing(before)
        if found is Standing.HELD:
            return None
        row = self._fresh(name, before, role=role, ttl_seconds=ttl)
        with self._table.speaking():
            presence = Presence(self._layout.work, row.holder)
        try:
            self._table.write(row, allowed=_still(before))
        except Conflict:
            presence.close()
            return None
        except BaseException:
            presence.close()
            raise
        self._table.sweep()
        return Lease(
            self._table,
            row,
            presence,
            clock=self._clock,
            taken_from=before.row if before and found is not Standing.FREE else None,
        )

    def hold(self, name: str, *, role: Role, ttl_seconds: float | None = None) -> "Lease":
        """Take the lease or say who has it; as `with leases.hold(...) as lease:` it is renewed inside and released after.

        Raises:
            Conflict: a live holder has it.
        """
        lease = self.take(name, role=role, ttl_seconds=ttl_seconds)
        if lease is not None:
            return lease
        row = self.row(name)
        who = row.described() if row is not None else "another process"
        raise Conflict(
            f"Lease {name!r} of lake {self._layout.root} is held by {who}. Leave the work to it, or wait until it ends."
        )

    def _fresh(self, name: str, before: Seen | None, *, role: Role, ttl_seconds: float) -> LeaseRow:
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

    def _standing(self, found: Seen | None) -> Standing:
        row = found.row if found is not None else None
        present = None
        if row is not None and row.machine == machine():
            with self._table.speaking():
                present = is_live(self._layout.work, row.holder)
        return standing(
            row,
            unchanged_seconds=self._clock.monotonic_seconds() - found.since_seconds if found is not None else 0.0,
            now=self._clock.now(),
            present=present,
        )


class Lease:
    """A lease that this process has taken. Safe to share between threads.

    As a context manager it renews itself on a thread of its own, and is released at the end.
    """

    def __init__(
        self, table: LeaseTable, row: LeaseRow, presence: Presence, *, clock: Clock, taken_from: LeaseRow | None
    ) -> None:
        """Use `Leases.take` or `Leases.hold`."""
        self.taken_from = taken_from
        """The holder that died or fell silent, if this lease was taken over from one: it may have left work undone."""
        self.trouble: str | None = None
        """What went wrong with the last renewal on the lease's own thread, None if nothing did."""
        self._table = table
        self._row = row
        self._presence = presence
        self._clock = clock
        self._mutex = threading.RLock()
        self._renewed_seconds = clock.monotonic_seconds()
        self._over: str | None = None
        self._stop = threading.Event()
        self._keeper: threading.Thread | None = None

    @property
    def name(self) -> str:
        """The lease's name."""
        return self._row.name

    @property
    def epoch(self) -> int:
        """The epoch for commits. A job keeps the one it was planned with, also if `advance` raises it meanwhile."""
        return self._row.epoch

    @property
    def row(self) -> LeaseRow:
        """What the table says of this holder."""
        return self._row

    def check(self) -> None:
        """Do nothing while the lease is ours: a few looks at the disk, for every tick and before every commit.

        A lease is ours until somebody takes it, also if it could not be renewed. But where that has been so for its whole time,
        and the table cannot be read either, somebody may have taken it and we would not know: then it is lost.

        Raises:
            Fenced: somebody has taken over, the lease was released, or it is lost.
            Unavailable: the table cannot be read now.
        """
        with self._mutex:
            self._check_not_over()
            try:
                is_ours = self._table.owns(self._row)
            except Exception as error:
                if self._unrenewed_seconds() >= self._row.ttl_seconds:
                    raise self._lost(f"could not be renewed in its time and cannot be looked up ({error})") from error
                raise
            if not is_ours:
                raise self._lost()

    def renew(self) -> None:
        """Say that we are alive: the epoch stays, the end moves.

        Raises:
            Fenced: somebody has taken over; stop.
            Unavailable: it could not be written; the lease is ours until somebody takes it.
        """
        with self._mutex:
            now = self._clock.now()
            ends = now + datetime.timedelta(seconds=self._row.ttl_seconds)
            self._write(replace(self._row, renewed_at=now, expires_at=ends))
            self._renewed_seconds = self._clock.monotonic_seconds()

    def renew_if_due(self) -> bool:
        """Renew if a third of the lease's time has passed since the last time; return whether that was done."""
        with self._mutex:
            if self._unrenewed_seconds() < self._row.ttl_seconds / RENEWALS_IN_TIME:
                return False
            self.renew()
            return True

    def advance(self, *, above: int) -> int:
        """Raise the epoch above a number, as the holder: a purge has raised a dataset's epoch beyond ours; return the new one.

        Work that was planned with the old epoch stays fenced out.

        Raises:
            Fenced: somebody has taken over; stop.
        """
        with self._mutex:
            if self._row.epoch <= above:
                self._write(replace(self._row, epoch=above + 1))
            return self._row.epoch

    def release(self) -> None:
        """Let go, so that the next one need not wait. Safe to repeat, and after somebody has taken over.

        What the disk refuses is left as it is: the presence is let go of, so that others on this machine see a dead holder.
        """
        self._stop.set()
        if self._keeper is not None and self._keeper is not threading.current_thread():
            self._keeper.join()
        with self._mutex:
            try:
                if self._over is None:
                    self._write(replace(self._row, expires_at=self._clock.now(), released=True))
                    self._over = "was released"
            except Exception as error:  # noqa: BLE001  # whatever it is, the presence says that we are gone
                self._over = self._over or f"was let go of, and could not be released ({error})"
            finally:
                self._presence.close()

    def keep(self) -> Self:
        """Renew the lease on a thread of its own until it is released."""
        self._keeper = threading.Thread(target=self._keep, name=f"siltstone-lease-{self.name}", daemon=True)
        self._keeper.start()
        return self

    def __enter__(self) -> Self:
        return self.keep()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _keep(self) -> None:
        while not self._stop.wait(self._row.ttl_seconds / RENEWALS_IN_TIME):
            try:
                self.renew()
            except Fenced as error:
                self.trouble = str(error)
                return
            except Exception as error:  # noqa: BLE001  # a thread that ends would let the lease expire without a reason
                self.trouble = f"Lease {self.name!r} cannot be renewed: {error_text(error)}"
            else:
                self.trouble = None

    def _write(self, row: LeaseRow) -> None:
        self._check_not_over()
        mine = self._row
        try:
            self._table.write(row, allowed=lambda epoch, path: epoch == mine.epoch and _owner(path) == mine.holder)
        except (Conflict, NotFound) as error:  # replaced, or the whole table was
            raise self._lost() from error
        self._row = row

    def _check_not_over(self) -> None:
        if self._over is not None:
            raise Fenced(f"Lease {self.name!r} with epoch {self.epoch} {self._over}. Stop this work.")

    def _unrenewed_seconds(self) -> float:
        return self._clock.monotonic_seconds() - self._renewed_seconds

    def _lost(self, why: str = "was taken over by another holder") -> Fenced:
        self._over = why
        return Fenced(f"Lease {self.name!r} with epoch {self.epoch} {self._over}. Stop this work.")


def _still(before: Seen | None) -> Callable[[int, str | None], bool]:
    """Allow a taking only in the place of exactly the row that was judged."""
    if before is None:
        return lambda epoch, path: (epoch, path) == (0, None)
    return lambda epoch, path: (epoch, path) == (before.row.epoch, before.path)


def _owner(path: str | None) -> str | None:
    return owner_of(path) if path is not None else None


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidRequest(f"{name!r} is no name of a lease. Use small letters, digits, '_', '-', '.' and '/'.")
    return name


def _checked_seconds(seconds: float) -> float:
    if not 0 < seconds <= LONGEST_SECONDS:
        raise InvalidRequest(f"A lease lasts more than 0 and at most {LONGEST_SECONDS:,.0f} seconds, not {seconds!r}.")
    return float(seconds)
