"""The scheduler: runs works by their cron, one cycle at a time, as long as it holds the lease.

Terms. A *tick* is one look at the lease and the clock. A *cycle* is one run of everything that was due at a tick, or that
somebody asked for, one work after the other, under one number. Without the lease the scheduler *stands by*.

Flow of a tick:

1. hold the lease: renew it, and look whether it is still ours; if we have none, take it if it can be had, else stand by;
2. choose what to run: what was asked for, else what is due (`due`, pure) unless paused;
3. run each work; before each look at the lease again. An error of one work is its result and stops no other one;
4. record the cycle and tell who wants to know.

While a work runs the lease renews itself on a thread of its own. A scheduler that stands by looks at every tick, so it takes over
within a tick when the holder on this machine dies, and after the lease's time when one on another machine falls silent. What came
due within two times of the lease before the takeover runs again: the holder may have died before it got to it.

Nothing here is durable. A crash ends the cycle; the works' own steps decide what it leaves, and the journal of the lake knows
which cycles were begun.
"""

import datetime
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from siltstone.clock import Clock
from siltstone.config import Settings
from siltstone.coordination.leases import COMPACTOR, Lease, Leases
from siltstone.errors import Conflict, Fenced, InvalidRequest, NotFound, Reason, SiltstoneError, Unavailable, reason_of
from siltstone.model.roles import check_may_compact
from siltstone.scheduler.cycles import Cycle, Outcome, Run, State, Status, Why, Work, WorkResult
from siltstone.scheduler.due import Timing, due, is_set_back, timing

TICK_SECONDS: Final = 1.0
"""How long the loop sleeps: cron counts minutes, and a takeover should not wait."""
STOP_SECONDS: Final = 1.0
HISTORY_CYCLES: Final = 100
OVERLAP_LEASES: Final = 2
"""What came due so many times of the lease before a takeover runs again."""

NOT_LOOKED: Final = "it has not looked at the lease yet"

OnCycle = Callable[[Cycle], object]
Numbers = Callable[[], int]


class Scheduler:
    """Runs works by the clock. `tick` does one step; `start` does them on a thread until `stop`."""

    def __init__(
        self,
        works: Iterable[Work],
        *,
        leases: Leases,
        settings: Settings,
        clock: Clock,
        next_cycle: int | Numbers = 1,
        settled: Mapping[str, datetime.datetime] | None = None,
        on_cycle: Sequence[OnCycle] = (),
    ) -> None:
        """Take the works; nothing is read or run yet.

        Args:
            works: what to run, in this order.
            leases: the leases of the lake.
            settings: the role, the lease's time and the jitter.
            clock: where time comes from.
            next_cycle: the number of the first cycle, so that numbers go on after a restart; or what gives every cycle its
                number, asked while the lease is held.
            settled: when works ran last, so that what was missed while no scheduler ran is caught up; now otherwise.
            on_cycle: called with each cycle that has ended.

        Raises:
            InvalidRequest: the role may not compact, a cron is none, or two works have the same name.
        """
        check_may_compact(settings.role, doing="run the compactor")
        self._works = _by_name(works)
        self._leases = leases
        self._settings = settings
        self._clock = clock
        self._on_cycle = list(on_cycle)
        now = clock.now()
        self._timings = {name: self._timing(name, (settled or {}).get(name, now)) for name in self._works}
        self._ticking = threading.Lock()
        self._leasing = threading.RLock()
        self._changed = threading.Condition()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._lease: Lease | None = None
        self._waits_because: str | None = NOT_LOOKED
        self._paused = False
        self._number: Numbers = itertools.count(next_cycle).__next__ if isinstance(next_cycle, int) else next_cycle
        self._requested: tuple[int, tuple[Work, ...]] | None = None
        self._running: tuple[int, Why, str | None] | None = None
        self._history: deque[Cycle] = deque(maxlen=HISTORY_CYCLES)
        self._trouble: str | None = None

    # ---- what others ask -----------------------------------------------------------------------------------------

    def trigger(self, names: Iterable[str] | None = None) -> int:
        """Ask for a cycle of all works, or of the named ones, at once, also while paused; return its number.

        It begins after the cycle that runs by the clock, if one does: nobody asked for that one, so nobody can avoid it.

        Raises:
            NotFound: there is no work of that name.
            Conflict: another cycle was asked for and has not ended, or this compactor stands by.
            Unavailable: it was stopped.
        """
        return self.trigger_work(*self._chosen(names), after=frozenset({Why.SCHEDULE}))

    def trigger_work(self, *works: Work, after: frozenset[Why] = frozenset()) -> int:
        """Ask for a cycle of these works, which need not be those of the clock; return its number.

        Args:
            works: what to run; a cron of theirs is not looked at.
            after: wait for a cycle that runs now for such a reason, instead of refusing.

        Raises:
            Conflict: a cycle is already running or asked for, or this compactor stands by.
            Unavailable: it was stopped.
        """
        self._check_free(after=after)
        if self._held() is None:
            because = (self._waits_because or "it was stopped").rstrip(".")
            raise Conflict(f"This compactor stands by: {because}. Ask the one that holds the lease.")
        with self._changed:
            self._check_free(after=after)
            number = self._number()
            self._requested = (number, works)
        self._wake.set()
        return number

    def wait(self, number: int, *, seconds: float) -> Cycle:
        """Wait until a cycle has ended.

        Raises:
            Unavailable: it has not within that time, or the scheduler was stopped before it began.
        """

        def ended() -> Cycle | None:
            return next((cycle for cycle in self._history if cycle.number == number), None)

        with self._changed:
            self._changed.wait_for(lambda: ended() is not None or self._is_over(), timeout=seconds)
            found = ended()
        if found is None:
            raise Unavailable(f"Cycle {number} has not ended within {seconds:g} seconds.")
        return found

    def take_works(self, works: Iterable[Work]) -> None:
        """Run these works by the clock from now on; what has not changed among them goes on as it was."""
        given = _by_name(works)
        with self._changed:
            old, now = self._works, self._clock.now()
            same = {name for name, work in given.items() if name in old and old[name].cron == work.cron}
            self._works = {name: old[name] if name in same else work for name, work in given.items()}
            self._timings = {
                name: self._timings[name] if name in same else self._timing(name, now) for name in self._works
            }

    def pause(self) -> None:
        """Start no further cycle by the clock. A cycle that runs goes on, and the lease stays ours."""
        self._paused = True

    def resume(self) -> None:
        """Go on by the clock: what came due meanwhile runs once."""
        self._paused = False
        self._wake.set()

    def notify(self, on_cycle: OnCycle) -> None:
        """Call this with each cycle that has ended from now on; what it raises is noted and harms nothing."""
        self._on_cycle.append(on_cycle)

    def history(self) -> tuple[Cycle, ...]:
        """Return the last cycles, oldest first."""
        with self._changed:
            return tuple(self._history)

    def status(self) -> Status:
        """Say what is being done."""
        with self._changed:
            lease, running = self._lease, self._running
            trouble = self._trouble or (lease.trouble if lease is not None else None)
            return Status(
                state=self._state(),
                paused=self._paused,
                standing_by_because=self._waits_because,
                holder=lease.row if lease is not None else None,
                running_cycle=running[0] if running else None,
                running_work=running[2] if running else None,
                cycles=len(self._history),
                due={name: found.due_at for name, found in self._timings.items()},
                trouble=trouble,
            )

    def _state(self) -> State:
        if self._running is not None:
            return State.RUNNING
        if self._stopping.is_set():
            return State.STOPPED
        if self._waits_because is not None:
            return State.STANDING_BY
        return State.PAUSED if self._paused else State.WAITING

    # ---- the thread ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Tick on a thread of its own until `stop`.

        Raises:
            InvalidRequest: it was started before.
        """
        if self._thread is not None or self._stopping.is_set():
            raise InvalidRequest("This compactor was started before. Make a new one.")
        self._thread = threading.Thread(target=self._loop, name="siltstone-scheduler", daemon=True)
        self._thread.start()

    def stop(self, *, seconds: float = STOP_SECONDS) -> bool:
        """Run nothing more and let go of the lease; return whether that is done within the time.

        A work that runs is told by `Run.stopping`. If it goes on, so does the lease, until it ends or the process does.
        """
        self._stopping.set()
        self._wake.set()
        if self._thread is None:
            self._let_go()
            return True
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _loop(self) -> None:
        try:
            while not self._stopping.is_set():
                self._wake.clear()
                try:
                    self.tick()
                except Exception as error:  # noqa: BLE001  # the loop outlives whatever happens in a tick
                    self._trouble = _said(error)
                self._wake.wait(TICK_SECONDS)
        finally:
            self._let_go()

    def _let_go(self) -> None:
        with self._leasing:
            lease, self._lease = self._lease, None
            if lease is not None:
                lease.release()
        with self._changed:
            self._waits_because = "it was stopped"
            self._changed.notify_all()

    # ---- one tick ------------------------------------------------------------------------------------------------

    def tick(self) -> Cycle | None:
        """Look at the lease and the clock once, and run what there is to run; return the cycle if there was one."""
        with self._ticking:
            if self._stopping.is_set():
                return None
            now = self._clock.now()
            self._mind_the_clock(now)
            lease = self._held()
            if lease is None:
                self._stand_by(now)
                return None
            with self._changed:
                begun = self._begin(now)
            if begun is None:
                return None
            return self._run(lease, now, *begun)

    def _mind_the_clock(self, now: datetime.datetime) -> None:
        for name, found in self._timings.items():
            if is_set_back(found, now):
                self._timings[name] = self._timing(name, now)

    def _stand_by(self, now: datetime.datetime) -> None:
        """The holder does the work; only what it may not have got to any more is left for us."""
        anchor = now - datetime.timedelta(seconds=OVERLAP_LEASES * self._settings.lease_seconds)
        for name, found in self._timings.items():
            if found.anchor < anchor:
                self._timings[name] = self._timing(name, anchor)
        with self._changed:
            if self._requested is not None:
                number, works = self._requested
                self._requested = None
                why = f"the lease was lost: {self._waits_because}"
                skipped = tuple(WorkResult(work=one.name, outcome=Outcome.SKIPPED, error=why) for one in works)
                self._record(
                    Cycle(number=number, why=Why.TRIGGER, epoch=0, started=now, ended=now, seconds=0.0, results=skipped)
                )

    def _begin(self, now: datetime.datetime) -> tuple[int, Why, tuple[Work, ...]] | None:
        if self._requested is not None:
            number, works = self._requested
            self._requested = None
            self._running = (number, Why.TRIGGER, None)
            return number, Why.TRIGGER, works
        names = () if self._paused else due(self._timings.items(), now)
        if not names:
            return None
        number = self._number()
        self._running = (number, Why.SCHEDULE, None)
        return number, Why.SCHEDULE, tuple(self._works[name] for name in names)

    def _run(self, lease: Lease, now: datetime.datetime, number: int, why: Why, works: tuple[Work, ...]) -> Cycle:
        started, epoch, results = self._clock.monotonic_seconds(), lease.epoch, []
        try:
            for group in _together(works):
                self._running = (number, why, _told(group))
                results.append(self._run_one(lease, number, why, group))
                if results[-1].outcome is not Outcome.SKIPPED:
                    self._settle(group, now)
        finally:
            cycle = Cycle(
                number=number,
                why=why,
                epoch=epoch,
                started=now,
                ended=self._clock.now(),
                seconds=self._clock.monotonic_seconds() - started,
                results=tuple(results),
            )
            with self._changed:
                self._running = None
                self._record(cycle)
        for told in tuple(self._on_cycle):
            try:
                told(cycle)
            except Exception as error:  # noqa: BLE001  # who listens must not stop the scheduler
                self._trouble = f"A callback failed after cycle {number}: {type(error).__name__}: {error}"
        return cycle

    def _settle(self, works: tuple[Work, ...], now: datetime.datetime) -> None:
        for work in works:
            if self._works.get(work.name) is work:
                self._timings[work.name] = self._timing(work.name, now)

    def _run_one(self, lease: Lease, number: int, why: Why, works: tuple[Work, ...]) -> WorkResult:
        name = _told(works)
        if self._stopping.is_set():
            return WorkResult(
                work=name,
                outcome=Outcome.SKIPPED,
                error="the compactor was stopped",
                error_reason=Reason.CANCELLED.value,
            )
        try:
            lease.check()
        except Exception as error:  # noqa: BLE001  # what cannot be looked at is not ours to work under
            return WorkResult(
                work=name,
                outcome=Outcome.SKIPPED,
                error=_said(error),
                error_kind=_kind(error),
                error_reason=reason_of(error),
            )
        run = Run(
            cycle=number,
            why=why,
            work=name,
            works=tuple(work.name for work in works),
            epoch=lease.epoch,
            lease=lease,
            stopping=self._stopping.is_set,
        )
        started = self._clock.monotonic_seconds()
        try:
            value = works[0].run(run)
        except Exception as error:  # noqa: BLE001  # an error of one work is its result and stops no other one
            return WorkResult(
                work=name,
                outcome=Outcome.FAILED,
                seconds=self._clock.monotonic_seconds() - started,
                error=_said(error),
                error_kind=_kind(error),
                error_reason=reason_of(error),
            )
        return WorkResult(
            work=name, outcome=Outcome.DONE, seconds=self._clock.monotonic_seconds() - started, value=value
        )

    def _record(self, cycle: Cycle) -> None:
        self._history.append(cycle)
        self._changed.notify_all()

    # ---- the lease -----------------------------------------------------------------------------------------------

    def _held(self) -> Lease | None:
        """Return our lease if it is ours now, taken if it can be had; None, and why, if not."""
        with self._leasing:
            try:
                lease = self._renewed() or self._taken()
            except Exception as error:  # noqa: BLE001  # a table that cannot be read is no free lease
                self._waits_because = _said(error)
                return None
            if lease is not None:
                self._waits_because = None
            return lease

    def _renewed(self) -> Lease | None:
        lease = self._lease
        if lease is None:
            return None
        try:
            lease.check()
            lease.renew_if_due()
        except Fenced:
            self._lease = None
            lease.release()
            return None
        return lease

    def _taken(self) -> Lease | None:
        if self._stopping.is_set():
            return None
        lease = self._leases.take(COMPACTOR, role=self._settings.role)
        if lease is None:
            row = self._leases.row(COMPACTOR)
            self._waits_because = f"{row.described()} holds the lease" if row else "another process was quicker"
            return None
        self._lease = lease.keep()
        return lease

    # ---- small things --------------------------------------------------------------------------------------------

    def _timing(self, name: str, anchor: datetime.datetime) -> Timing:
        jitter = self._clock.jitter() * self._settings.schedule_jitter_seconds
        return timing(self._works[name].cron, anchor, jitter_seconds=jitter)

    def _chosen(self, names: Iterable[str] | None) -> tuple[Work, ...]:
        if names is None:
            return tuple(self._works.values())
        wanted = set(names)
        if unknown := sorted(wanted - self._works.keys()):
            raise NotFound(f"There is no work {unknown[0]!r}. There are: {', '.join(self._works)}.")
        if not wanted:
            raise InvalidRequest("No work was named. Name some, or leave the names out to run all.")
        return tuple(work for name, work in self._works.items() if name in wanted)

    def _check_free(self, *, after: frozenset[Why]) -> None:
        with self._changed:
            if self._stopping.is_set():
                raise Unavailable("This compactor was stopped. Make a new one.")
            is_waited_for = self._running is None or self._running[1] in after
            busy = self._requested if is_waited_for else self._running
            if busy is not None:
                raise Conflict(f"Cycle {busy[0]} is already running. Wait until it has ended.")

    def _is_over(self) -> bool:
        return self._stopping.is_set() and self._running is None


def _together(works: tuple[Work, ...]) -> list[tuple[Work, ...]]:
    """Return works in their order; neighbours that have the same function are one run."""
    return [tuple(group) for _, group in itertools.groupby(works, key=lambda work: work.run)]


def _said(error: Exception) -> str:
    """Say what went wrong: our own errors are sentences, others need their name."""
    return str(error) if isinstance(error, SiltstoneError) else f"{type(error).__name__}: {error}"


def _kind(error: Exception) -> str:
    return error.kind if isinstance(error, SiltstoneError) else SiltstoneError.kind


def _told(works: tuple[Work, ...]) -> str:
    return ", ".join(work.name for work in works)


def _by_name(works: Iterable[Work]) -> dict[str, Work]:
    found: dict[str, Work] = {}
    for work in works:
        if work.name in found:
            raise InvalidRequest(f"There are two works with the name {work.name!r}. Give each its own.")
        found[work.name] = work
    return found
