"""The caretaker: a scheduler with the works of a lake, and what others see of it and tell it. What `silt compactor` runs.

Two threads. The scheduler's (`loop`) holds the lease and runs cycles. The *watch* looks a few times a second at the state files:

1. ``paused.json``: nothing runs by the clock while it is there. It is of the lake, so a pause outlives the process;
2. ``stop.json``: names the holder that is to stop;
3. ``status.json``: written anew when something has changed.

After each taking of the lease the recovery comes before the first cycle: the holder before may have died.
A cycle's number is durable before the cycle begins, and when works ran last after it: numbers go on, and what was missed while
no compactor ran is caught up once.
"""

import datetime
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from siltstone.coordination.state_files import PAUSED, STATUS, STOP
from siltstone.errors import SiltstoneError
from siltstone.scheduler.cycles import Cycle, Outcome, Run, State, Status, Why, Work
from siltstone.scheduler.housework import Housework, Office, Tell, Told, Turn
from siltstone.scheduler.loop import NOT_LOOKED, Scheduler
from siltstone.scheduler.overview import pause, resume, told_cycle, told_holder
from siltstone.scheduler.works import due_crons, tier_of, works

LOOK_SECONDS: Final = 0.25
INTERRUPT_SECONDS: Final = 15.0
"""How long a job that was interrupted may take to end."""
Names = Callable[[], list[str] | None]
Crons = Callable[[], Mapping[str, str | None]]


class Caretaker:
    """Keeps one lake in shape. `start` and `stop` it, or use it in a ``with`` block."""

    def __init__(
        self,
        housework: Housework,
        office: Office,
        *,
        crons: Crons,
        names: Names = lambda: None,
        only: Sequence[str] | None = None,
        tell: Tell = lambda _told: None,
        interrupt: Callable[[], None] = lambda: None,
    ) -> None:
        """Take the lake's work; nothing runs yet. Use `Lake.compactor`.

        Args:
            housework: what is done.
            office: leases and notes of the lake, and its settings: crons, tiers, role, lease, jitter.
            crons: the works, and when each is due; asked again at each cycle, because datasets may have crons of their own.
            names: which datasets are looked after, asked before each cycle; None means all.
            only: names of works, if not all.
            tell: is told what happens, from several threads.
            interrupt: ends what runs on Spark now.

        Raises:
            InvalidRequest: the role may not compact, an unknown work, or settings that contradict each other.
            Corruption: the notes of the lake cannot be read.
        """
        self._housework = housework
        self._notes = office.notes
        self._settings = office.settings
        self._clock = office.clock
        self._names = names
        self._tell = tell
        self._interrupt = interrupt
        self._find_crons, self._only = crons, only
        self._crons = crons()
        self._scheduler = Scheduler(
            self._works(),
            leases=office.leases,
            settings=office.settings,
            clock=office.clock,
            next_cycle=office.next_cycle,
            settled=self._settled(),
            on_cycle=[self._ended],
        )
        self._minding = threading.Lock()
        self._noted: dict[str, Any] = {}
        self._holder: str | None = None
        self._recovered: str | None = None
        self._because: str | None = None
        self._trouble: str | None = None
        self._since: dict[int, str] = {}
        self._wanted_stop = threading.Event()
        self._closing = threading.Event()
        self._watch: threading.Thread | None = None

    # ---- what a user holds ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Run until `stop`, on threads of its own."""
        self._mind_pause()
        self._scheduler.start()
        self._watch = threading.Thread(target=self._look, name="siltstone-compactor-watch", daemon=True)
        self._watch.start()

    def step(self) -> Cycle | None:
        """Look at the state files and at the clock once, for whoever has a loop of its own; return the cycle if one was run."""
        self.look()
        cycle = self._scheduler.tick()
        self.look()
        return cycle

    def stop(self, *, seconds: float | None = None) -> bool:
        """Begin nothing more, end the job that runs, let go of the lease.

        Running jobs are cancelled. The next holder plans them again.

        Returns whether all that was done; if not, the process must end for the lease to be free.
        """
        patience = self._settings.stop_seconds if seconds is None else seconds
        self._tell({"event": "stopping"})
        done = self._scheduler.stop(seconds=patience)
        if not done:
            self._tell({"event": "interrupting"})
            until = self._clock.monotonic_seconds() + INTERRUPT_SECONDS
            while not done and self._clock.monotonic_seconds() < until:
                self._try_to_interrupt()
                done = self._scheduler.stop(seconds=1.0)
        self._closing.set()
        if self._watch is not None:
            self._watch.join(INTERRUPT_SECONDS)
        self._note_stopped()
        self._tell({"event": "stopped", "clean": done})
        return done

    def _try_to_interrupt(self) -> None:
        """End what runs on Spark; a session that is just being made is met the next time."""
        try:
            self._interrupt()
        except Exception as error:  # noqa: BLE001  # whatever Spark says, we go on to stop
            self._tell({"event": "trouble", "error": f"{type(error).__name__}: {error}"})

    def __enter__(self) -> "Caretaker":
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def wait_until_told_to_stop(self, seconds: float) -> bool:
        """Wait that long, or until somebody asks this compactor to stop (`silt compactor stop`); return whether somebody did."""
        return self._wanted_stop.wait(seconds)

    def trigger(self, names: Sequence[str] | None = None) -> int:
        """Ask for a cycle of all works, or of the named ones, at once, also while paused; return its number.

        It begins after the cycle that runs by the clock, if one does.

        Raises:
            NotFound: there is no work of that name.
            Conflict: another cycle was asked for and has not ended, or this compactor stands by.
            Unavailable: it was stopped.
        """
        number = self._scheduler.trigger(None if names is None else self._variants(names))
        self._mind_holder(self._scheduler.status())
        return number

    def _variants(self, names: Sequence[str]) -> list[str]:
        """Return works by the names of tiers, those with crons of their own among them."""
        found = self._scheduler.status().due
        return [*names, *(work for work in found if work not in names and tier_of(work) in names)]

    def wait(self, number: int, *, seconds: float) -> Cycle:
        """Wait until a cycle has ended.

        Raises:
            Unavailable: it has not within that time, or the compactor was stopped before it began.
        """
        return self._scheduler.wait(number, seconds=seconds)

    def pause(self) -> None:
        """Let no compactor of this lake run anything by the clock until somebody resumes; a cycle that runs goes on."""
        pause(self._notes, self._clock)
        self._mind_pause()

    def resume(self) -> None:
        """Go on by the clock: what came due meanwhile runs once."""
        resume(self._notes)
        self._mind_pause()

    def status(self) -> Status:
        """Say what this compactor is doing."""
        return self._scheduler.status()

    def history(self) -> tuple[Cycle, ...]:
        """Return the last cycles of this compactor, oldest first."""
        return self._scheduler.history()

    def notify(self, on_cycle: Callable[[Cycle], object]) -> None:
        """Call this with each cycle that has ended from now on."""
        self._scheduler.notify(on_cycle)

    # ---- what the scheduler runs ---------------------------------------------------------------------------------

    def _works(self) -> list[Work]:
        return works(self._crons, recover=self._recover, lanes=self._lanes, only=self._only)

    def _mind_crons(self) -> None:
        """Look whether datasets have other crons than before; those that cannot be read now are looked at by the cycle itself."""
        try:
            found = self._find_crons()
        except SiltstoneError:
            return
        if found != self._crons:
            self._crons = found
            self._scheduler.take_works(self._works())

    def _recover(self, run: Run) -> list[Told]:
        self._recovered = run.lease.row.holder
        troubles = self._housework.recover(self._turn(run, self._tell))
        for one in troubles:
            self._tell({"event": "recovery_failed", "cycle": run.cycle, **one})
        return troubles

    def _lanes(self, run: Run) -> list[Told]:
        names = self._names()
        if names is not None and not names:
            return []
        self._recover_first(run)
        crons = due_crons(run.works, self._crons)
        self._mind_crons()
        return self._housework.cycle(
            names, self._turn(run, self._tell), only=tuple(crons), crons=crons if run.why is Why.SCHEDULE else None
        )

    def _recover_first(self, run: Run) -> None:
        if self._recovered != run.lease.row.holder:
            self._recover(run)

    def _turn(self, run: Run, tell: Tell) -> Turn:
        return Turn(number=run.cycle, lease=run.lease, stopping=run.stopping, tell=tell)

    def _ended(self, cycle: Cycle) -> None:
        """Remember when works ran, and say what came of it."""
        told = told_cycle(cycle)
        if told["jobs"] or told["failed"] or told["cancelled"]:
            self._tell({"event": "cycle_ended", **told})
        settled = {
            name: cycle.started.isoformat()
            for result in cycle.results
            if result.outcome is not Outcome.SKIPPED
            for name in result.works
        }
        self._notes.ended(told, settled=settled)

    # ---- the watch -----------------------------------------------------------------------------------------------

    def _look(self) -> None:
        while not self._closing.is_set():
            try:
                self.look()
                self._trouble = None
            except Exception as error:  # noqa: BLE001  # the watch outlives whatever happens at one look
                said = str(error) if isinstance(error, SiltstoneError) else f"{type(error).__name__}: {error}"
                if said != self._trouble:
                    self._trouble = said
                    self._tell({"event": "trouble", "error": said})
            self._closing.wait(LOOK_SECONDS)

    def look(self) -> None:
        """Look once at the pause and at a request to stop, and write the status."""
        status = self._scheduler.status()
        self._mind_holder(status)
        self._mind_pause()
        if status.holder is None or status.state in (State.STANDING_BY, State.STOPPED):
            return
        self._mind_stop(status.holder.holder)
        self._note(self._scheduler.status())

    def _mind_holder(self, status: Status) -> None:
        """Say who holds the lease when that changes."""
        with self._minding:
            if status.holder is None or status.state is State.STANDING_BY:
                self._holder = None
                because = status.standing_by_because
                if because not in (self._because, NOT_LOOKED) and status.state is State.STANDING_BY:
                    self._because = because
                    self._tell({"event": "standing_by", "because": because})
            elif status.holder.holder != self._holder and status.state is not State.STOPPED:
                self._holder, self._because = status.holder.holder, None
                self._tell({"event": "holding", "epoch": status.holder.epoch})

    def _mind_pause(self) -> None:
        wanted = self._notes.read(PAUSED) is not None
        if wanted == self._scheduler.status().paused:
            return
        (self._scheduler.pause if wanted else self._scheduler.resume)()
        self._tell({"event": "paused" if wanted else "resumed"})

    def _mind_stop(self, holder: str) -> None:
        """Remember that another process has requested this holder to stop."""
        found = self._notes.read(STOP)
        if found is not None and found.get("holder") == holder:
            self._wanted_stop.set()

    # ---- what others read ----------------------------------------------------------------------------------------

    def _note(self, status: Status) -> None:
        row = status.holder
        if row is None:
            return
        if status.running_cycle is not None and status.running_cycle not in self._since:
            self._since = {status.running_cycle: self._clock.now().isoformat(timespec="seconds")}
        note = {
            **told_holder(row),
            "state": str(status.state),
            "paused": status.paused,
            "running_cycle": status.running_cycle,
            "running_work": status.running_work,
            "running_since": self._since.get(status.running_cycle) if status.running_cycle is not None else None,
            "due": {name: at.isoformat() if at else None for name, at in status.due.items()},
            "trouble": self._trouble or status.trouble,
        }
        if note != self._noted:
            self._notes.write(STATUS, note)
            self._noted = note

    def _note_stopped(self) -> None:
        """Say that nobody runs any more, unless somebody has taken over meanwhile."""
        if not self._noted:
            return
        try:
            known = self._notes.read(STATUS)
            if known is not None and known.get("holder") == self._noted["holder"]:
                self._notes.write(STATUS, {**self._noted, "state": str(State.STOPPED), "running_cycle": None})
        except SiltstoneError:
            return  # the lease says it, too

    def _settled(self) -> dict[str, datetime.datetime]:
        found = self._notes.cycles().get("settled", {})
        return {name: datetime.datetime.fromisoformat(at) for name, at in found.items()}
