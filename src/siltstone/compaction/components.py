"""Composition of one lake: the components that a lake object and a worker process share.

`LakeContext` holds the inputs of every component. `LakeComponents` builds the components. Both composition roots
(`Lake` and the worker process) use it. Nothing is read or written until a component is used.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from siltstone.clock import Clock
from siltstone.compaction.operations.dataset_maintenance import DatasetMaintenance
from siltstone.config import Settings
from siltstone.dataset.purge_listeners import PurgeListeners
from siltstone.dataset.registry import Registry
from siltstone.dataset.store import Store
from siltstone.dataset.write.idempotency_marks import forget_oldest
from siltstone.delta.background import Background, BackgroundCheckpoints
from siltstone.delta.layout import CHANGES, Layout
from siltstone.delta.read_cache import ReadCache
from siltstone.delta.table import Table
from siltstone.delta.table_reader import LogChanged
from siltstone.errors import SiltstoneError
from siltstone.model.names import DatasetName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from siltstone.coordination.leases import Leases
    from siltstone.coordination.state_files import StateFiles

BYTES_PER_MB: Final = 1024 * 1024

OnWrite = Callable[[Store, int], None]
"""Called after each commit to the changes of a dataset, with its version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeContext:
    """Inputs that the components of one lake share."""

    layout: Layout
    settings: Settings
    clock: Clock
    spark: "Callable[[], SparkSession]"
    """Returns the session for jobs; starts Spark if none runs."""
    session_given: bool = False
    """True if the caller passed a session: jobs then run on it."""


def no_background_squash(_context: LakeContext, _background: Background, _operations: DatasetMaintenance) -> OnWrite:
    """Return a hook that does nothing; a worker process squashes only as a job."""
    return lambda _store, _version: None


class LakeComponents:
    """The components of one lake."""

    def __init__(
        self,
        context: LakeContext,
        *,
        on_write: Callable[[LakeContext, Background, DatasetMaintenance], OnWrite] = no_background_squash,
    ) -> None:
        """Build the components. `on_write` builds the hook that is called after commits to changes."""
        settings, clock = context.settings, context.clock
        self.context = context
        self.purge_listeners = PurgeListeners()
        self.operations = DatasetMaintenance(spark=context.spark, leased=self._lease_epoch)
        self._background = Background()
        self._tidying = BackgroundCheckpoints(self._background, settings=settings, clock=clock)
        self.registry = Registry(
            context.layout,
            settings=settings,
            clock=clock,
            after_commit=self._on_commit,
            after_write=on_write(context, self._background, self.operations),
            reads=ReadCache(settings.lookup_cache_mb * BYTES_PER_MB),
            purge_listeners=self.purge_listeners,
        )

    @cached_property
    def leases(self) -> "Leases":
        """The leases of the lake. All callers share one object, because it remembers the rows that it has watched."""
        from siltstone.coordination.leases import Leases

        return Leases(self.context.layout, self.context.settings, self.context.clock)

    @cached_property
    def state_files(self) -> "StateFiles":
        """The state files of the compactor."""
        from siltstone.coordination.state_files import StateFiles

        return StateFiles(self.context.layout, durable=self.context.settings.durable)

    def store(self, name: str) -> Store:
        """Open the store of a dataset.

        Raises:
            NotFound: the dataset does not exist.
        """
        return self.registry.store(self.registry.find(DatasetName.parse(name)))

    def close(self) -> None:
        """Wait for background work."""
        self._background.close()

    def _lease_epoch(self) -> int:
        """Return the epoch of the compactor's lease.

        Use a new reader each time, because a forked child may not share one.
        """
        from siltstone.coordination.leases import Leases

        return Leases(self.context.layout, self.context.settings, self.context.clock).epoch()

    def _on_commit(self, table: Table, version: int) -> None:
        """Checkpoint a table every N commits. For `changes`, also delete the oldest idempotence marks."""
        self._tidying.notice(table, version, then=self._delete_marks if table.path.name == CHANGES else None)

    def _delete_marks(self, table: Table) -> None:
        with suppress(OSError, SiltstoneError, LogChanged):  # the next checkpoint tries again
            forget_oldest(table, most=self.context.settings.idempotence_marks)
