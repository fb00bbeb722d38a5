"""The caretaker: a scheduler with the works of a lake, and a desk where others ask for more. What `silt compactor` runs.

Two threads. The scheduler's (`loop`) holds the lease and runs cycles. The *desk* looks a few times a second, as long as the
lease is ours, at what others want:

1. ``paused.json``: nothing runs by the clock while it is there. It is of the lake, so a pause outlives the process;
2. requests (`coordination.request_queue`), oldest first: a cycle is refused if one still runs after a second ("already
   running"), any single work waits for it. One that nobody follows any more is not begun; one that a dead holder had begun
   is done again;
3. ``status.json``: written anew when something has changed.

After each taking of the lease the recovery comes before the first cycle: the holder before may have died.
A cycle's number is durable before the cycle begins, and when works ran last after it: numbers go on, and what was missed while
no compactor ran is caught up once.
"""

import datetime
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from siltstone.coordination.state_files import PAUSED, STATUS
from siltstone.errors import Conflict, SiltstoneError
from siltstone.model.compaction_request import Answer, Ask, Request
from siltstone.scheduler.asking import SERVICE
from siltstone.scheduler.cycles import Cycle, Outcome, Run, State, Status, Why, Work
from siltstone.scheduler.housework import Housework, Office, Tell, Told, Turn
from siltstone.scheduler.loop import NOT_LOOKED, Scheduler
from siltstone.scheduler.overview import pause, resume, told_cycle, told_holder, told_wish
from siltstone.scheduler.works import due_crons, tier_of, works

LOOK_SECONDS: Final = 0.25
SWEEP_SECONDS: Final = 600.0
INTERRUPT_SECONDS: Final = 15.0
"""How long a job that was interrupted may take to end."""
PATIENCE_SECONDS: Final = 1.0
"""A cycle that is asked for waits so long for the one that runs: most only look and find nothing to do."""
ASKED: Final = "asked"

Names = Callable[[], list[str] | None]
Crons = Callable[[], Mapping[str, str | None]]


@dataclass(slots=True)
class _Open:
    """A request that is begun, or waits for its turn."""

    request: Request
    refused_from: float | None
    """From when on a cycle is refused because of another one; None if it may wait as long as that takes."""
    number: int | None = None


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
            office: leases, requests and notes of the lake, and its settings: crons, tiers, role, lease, jitter.
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
        self._requests = office.requests
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
        self._mutex = threading.Lock()
        self._minding = threading.Lock()
        self._open: dict[str, _Open] = {}
        self._answers: list[Answer] = []
        self._noted: dict[str, Any] = {}
        self._holder: str | None = None
        self._recovered: str | None = None
        self._because: str | None = None
        self._trouble: str | None = None
        self._since: dict[int, str] = {}
        self._swept_seconds = office.clock.monotonic_seconds() - SWEEP_SECONDS
        self._stopped = False
        self._wanted_stop = threading.Event()
        self._closing = threading.Event()
        self._desk: threading.Thread | None = None

    # ---- what a user holds ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Run until `stop`, on threads of its own."""
        self._mind_pause()
        self._scheduler.start()
        self._desk = threading.Thread(target=self._look, name="siltstone-compactor-desk", daemon=True)
        self._desk.start()

    def step(self) -> Cycle | None:
        """Look at the desk and at the clock once, for whoever has a loop of its own; return the cycle if one was run."""
        self.look()
        cycle = self._scheduler.tick()
        self.look()
        return cycle

    def stop(self, *, seconds: float | None = None) -> bool:
        """Begin nothing more, end the job that runs, let go of the lease.

        Jobs are cancelled, those that somebody asked for, too: the next holder does them, or whoever asked.

        Returns whether all that was done; if not, the process must end for the lease to be free.
        """
        patience = self._settings.stop_seconds if seconds is None else seconds
        self._stopped = True
        self._tell({"event": "stopping"})
        done = self._scheduler.stop(seconds=patience)
        if not done:
            self._tell({"event": "interrupting"})
            until = self._clock.monotonic_seconds() + INTERRUPT_SECONDS
            while not done and self._clock.monotonic_seconds() < until:
                self._try_to_interrupt()
                done = self._scheduler.stop(seconds=1.0)
        self._closing.set()
        if self._desk is not None:
            self._desk.join(INTERRUPT_SECONDS)
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
        """Remember when works ran, answer who asked, say what came of it."""
        with self._mutex:
            mine = [asked.request for asked in self._open.values() if asked.number == cycle.number]
        for request in mine:
            self._answer_for(request, cycle)
        told = told_cycle(cycle)
        if told["jobs"] or told["failed"] or told["cancelled"] or mine:
            self._tell({"event": "cycle_ended", **told})
        settled = {
            name: cycle.started.isoformat()
            for result in cycle.results
            if result.outcome is not Outcome.SKIPPED
            for name in result.works
            if name != ASKED
        }
        self._notes.ended(told, settled=settled)

    def _answer_for(self, request: Request, cycle: Cycle) -> None:
        result = cycle.results[0] if cycle.results else None
        with self._mutex:
            if self._open.pop(request.id, None) is None:
                return  # it was answered
            if result is None or result.outcome is Outcome.SKIPPED or result.error_kind == "fenced":
                return  # the lease is lost, or we were stopped: the next holder does it, or the requester itself
            value = tuple(result.value) if result.outcome is Outcome.DONE else ()
            if self._stopped and any(one.get("error") for one in value):
                return  # its jobs were ended with us
            answer = Answer(
                id=request.id,
                cycle=cycle.number,
                results=value,
                error=result.error,
                error_kind=result.error_kind,
                error_reason=result.error_reason,
            )
            self._answers.append(answer)
        self._send()

    # ---- the desk ------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        while not self._closing.is_set():
            try:
                self.look()
                self._trouble = None
            except Exception as error:  # noqa: BLE001  # the desk outlives whatever happens at one look
                said = str(error) if isinstance(error, SiltstoneError) else f"{type(error).__name__}: {error}"
                if said != self._trouble:
                    self._trouble = said
                    self._tell({"event": "trouble", "error": said})
            self._closing.wait(LOOK_SECONDS)

    def look(self) -> None:
        """Look once at the pause, at what others ask, and at what they should know."""
        status = self._scheduler.status()
        self._mind_holder(status)
        self._mind_pause()
        if status.holder is None or status.state in (State.STANDING_BY, State.STOPPED):
            with self._mutex:
                self._open.clear()
            return
        self._send()
        self._serve()
        self._note(self._scheduler.status())
        now = self._clock.monotonic_seconds()
        if now - self._swept_seconds >= SWEEP_SECONDS:
            self._swept_seconds = now
            self._requests.sweep()

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

    def _serve(self) -> None:
        for request in self._requests.waiting():
            with self._mutex:
                known = self._open.get(request.id)
                answered = any(answer.id == request.id for answer in self._answers)
            if answered or (known is not None and known.number is not None):
                continue
            if known is None:
                known = self._opened(request)
            if known is not None:
                self._begin(known)

    def _opened(self, request: Request) -> "_Open | None":
        """Take up a request; None if nobody follows it any more, or it was withdrawn."""
        if not self._requests.is_followed(request):
            self._requests.forget(request.id)
            return None
        again = self._requests.is_taken(request.id)  # by a holder that is dead: it was not refused then
        if not self._requests.begin(request):
            return None
        may_be_refused = request.wish.ask is Ask.CYCLE and not again
        return _Open(
            request, refused_from=self._clock.monotonic_seconds() + PATIENCE_SECONDS if may_be_refused else None
        )

    def _begin(self, asked: "_Open") -> None:
        request = asked.request
        if request.wish.ask is Ask.STOP:
            self._answers.append(Answer(id=request.id))
            self._send()
            self._wanted_stop.set()
            return
        with self._mutex:
            self._open[request.id] = asked
        after = frozenset(Why) if asked.refused_from is None else frozenset[Why]()
        try:
            number = self._scheduler.trigger_work(self._asked(request), after=after)
        except Conflict as error:
            late = asked.refused_from is not None and self._clock.monotonic_seconds() >= asked.refused_from
            if late and self._scheduler.status().state is not State.STANDING_BY:
                self._refuse(request, error)
            return
        asked.number = number
        self._late(request, number)
        self._tell(
            {"event": "request", "cycle": number, "pid": request.pid, "host": request.host, **told_wish(request.wish)}
        )

    def _late(self, request: Request, number: int) -> None:
        """Answer at once if the cycle was quicker than we were to note its number."""
        for cycle in self._scheduler.history():
            if cycle.number == number and request.id in self._open:
                self._answer_for(request, cycle)

    def _refuse(self, request: Request, error: SiltstoneError) -> None:
        with self._mutex:
            self._open.pop(request.id, None)
            answer = Answer(id=request.id, error=str(error), error_kind=error.kind, error_reason=error.reason)
            self._answers.append(answer)
        self._send()

    def _asked(self, request: Request) -> Work:
        def tell(told: Told) -> None:
            self._requests.tell(request.id, told)
            self._tell(told)

        def run(run: Run) -> list[Told]:
            self._requests.tell(request.id, {"event": "begun", "cycle": run.cycle})
            self._recover_first(run)
            why = f"asked by process {request.pid} on {request.host}, request {request.id}"
            return self._housework.do(request.wish, replace(self._turn(run, tell), trigger=why))

        return Work(name=ASKED, run=run)

    def _send(self) -> None:
        """Write the answers that wait; what the disk refuses is tried again at the next look."""
        with self._mutex:
            while self._answers:
                self._requests.answer(self._answers[0])
                self._answers.pop(0)

    # ---- what others read ----------------------------------------------------------------------------------------

    def _note(self, status: Status) -> None:
        row = status.holder
        if row is None:
            return
        if status.running_cycle is not None and status.running_cycle not in self._since:
            self._since = {status.running_cycle: self._clock.now().isoformat(timespec="seconds")}
        note = {
            **told_holder(row),
            "kind": SERVICE,
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
