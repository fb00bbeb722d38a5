"""The compactor of a lake: one that runs by itself under the lease, and what others ask of it."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from siltstone.delta.table_reader import LogMoved
from siltstone.errors import SiltstoneError
from siltstone.keeping.cycles import LakeCycles
from siltstone.model.roles import check_may_compact

if TYPE_CHECKING:
    from siltstone.compaction.execution.report import CycleReport
    from siltstone.model.compaction_request import CompactionRequest
    from siltstone.model.tiers import Tier
    from siltstone.scheduler.caretaker import Caretaker
    from siltstone.scheduler.housework import Housework, Office, Tell


class KeptLake(LakeCycles):
    """A lake as its compactor, and those who ask it, see it; see `scheduler.housework.Lakework`."""

    def compactor(
        self,
        *,
        names: Callable[[], list[str] | None] = lambda: None,
        only: Sequence[str] | None = None,
        tell: "Tell" = lambda _told: None,
        goes_on: bool = True,
    ) -> "Caretaker":
        """Return what keeps this lake in shape by itself: start it, stop it, ask it. At most one of a lake works at a time.

        Args:
            names: returns the datasets to look after, asked before each cycle; None means all.
            only: kinds of work and names of tiers; all unless told.
            tell: is told what happens, from other threads.
            goes_on: false for a single cycle: nothing runs by the clock beside it, and its jobs need no process of their own
                unless the setting `jobs` says so.

        Raises:
            InvalidRequest: the role may not compact, an unknown work, or settings that contradict each other.
        """
        from siltstone.scheduler.caretaker import Caretaker
        from siltstone.spark.session import interrupt

        self._goes_on = goes_on
        return Caretaker(
            self._housework(),
            self._office(),
            crons=self._crons if goes_on else lambda: dict.fromkeys(self._crons()),
            names=names,
            only=only,
            tell=tell,
            interrupt=interrupt,
        )

    def _crons(self) -> dict[str, str | None]:
        """Return the works of this lake and its datasets, and when each is due; remember which tiers there are."""
        from siltstone.scheduler.works import crons, tier_of

        found = crons(self.settings, of_datasets=self._dataset_tiers())
        self._tiers = frozenset(map(tier_of, found))
        return found

    def _dataset_tiers(self) -> "list[Tier]":
        """Return the tiers of all logs; those of one that cannot be read are left to its cycles to complain about."""
        from siltstone.dataset.tiers import dataset_tiers

        found: list[Tier] = []
        for one in self._registry.all():
            with suppress(SiltstoneError):
                store = self._registry.store(one)
                found += dataset_tiers(store) if store.spec.is_log else ()
        return found

    def submit(self, request: "CompactionRequest") -> "CycleReport":
        """Run a request in this process and return its result. The commit check protects the data beside a compactor.

        Raises:
            InvalidRequest: the role may not compact, or the request is not valid. Nothing was changed.
            NotFound: a dataset does not exist. Nothing was changed; one that is dropped later is its job's failure.
            Conflict: a cycle was requested while another process runs one. Nothing was changed.
        """
        self.require()
        return self.run_request(request)

    def compactor_overview(self) -> dict[str, Any]:
        """Return how this lake's compactor stands, wherever it runs, as plain data."""
        from siltstone.scheduler.overview import overview

        self.require()
        return overview(self._office())

    def pause_compactor(self) -> None:
        """Let no compactor of this lake run anything by the clock until somebody resumes; a cycle that runs goes on."""
        from siltstone.scheduler.overview import pause

        self.require()
        check_may_compact(self.settings.role, doing="pause the compactor")
        pause(self._office().notes, self._clock)

    def resume_compactor(self) -> bool:
        """Let the compactor go on by the clock; return whether it was paused."""
        from siltstone.scheduler.overview import resume

        self.require()
        check_may_compact(self.settings.role, doing="resume the compactor")
        return resume(self._office().notes)

    def stop_compactor(self, *, seconds: float) -> str | None:
        """Request the compactor that holds the lease to stop, and wait for it; return the process that takes over, if one does.

        Raises:
            NotFound: no compactor is running.
            Unavailable: it has not stopped within that time.
        """
        from siltstone.scheduler.overview import stop

        self.require()
        check_may_compact(self.settings.role, doing="stop the compactor")
        return stop(self._office(), seconds=seconds)

    def highest_epoch(self, names: Sequence[str]) -> int:
        """Return the highest epoch that has committed to any of these datasets.

        Those that are gone or cannot be read are left out: they have no jobs, or jobs that say so.
        """
        highest = 0
        for name in names:
            with suppress(SiltstoneError, LogMoved):
                highest = max(highest, self._store(name).snapshot().epoch)
        return highest

    def _housework(self) -> "Housework":
        from siltstone.scheduler.housework import Housework

        return Housework(self, clock=self._clock)

    def _office(self) -> "Office":
        from siltstone.coordination.leases import Leases
        from siltstone.scheduler.housework import Office

        return Office(
            leases=Leases(self._layout, self.settings, self._clock),
            notes=self._notes,
            settings=self.settings,
            clock=self._clock,
            next_cycle=self._next_cycle,
        )

    def _leased(self) -> int:
        from siltstone.coordination.leases import Leases

        return Leases(self._layout, self.settings, self._clock).epoch()
