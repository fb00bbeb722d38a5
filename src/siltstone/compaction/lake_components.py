"""The composition root of a lake: builds the components that a lake object and a worker process share.

`LakeContext` holds the inputs of every component. `LakeComponents` builds the components. Nothing is read or written
until a component is used.

`Lake` and the worker process (`execution.worker_main`) both use this module. The worker belongs to `compaction`, and
imports point down. So the module is here, and not beside `lake.py`.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from siltstone.clock import Clock
from siltstone.config import Settings
from siltstone.coordination.leases import Leases
from siltstone.coordination.state_files import StateFiles
from siltstone.dataset.registry import Registry
from siltstone.dataset.store import PurgeListeners, Store
from siltstone.dataset.write.idempotency_marks import forget_oldest
from siltstone.delta.background import Background, BackgroundCheckpoints
from siltstone.delta.layout import CHANGES, LOG, Layout, has_versions
from siltstone.delta.read_cache import ReadCache
from siltstone.delta.table import Table
from siltstone.delta.table_reader import LogChanged
from siltstone.errors import SiltstoneError
from siltstone.host.system_errors import log_errors
from siltstone.model.names import DatasetName
from siltstone.model.units import BYTES_PER_MB

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from siltstone.compaction.operations.dataset_maintenance import DatasetMaintenance

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


class LakeComponents:
    """The components of one lake."""

    def __init__(self, context: LakeContext, *, on_write: "Callable[[LakeComponents], OnWrite] | None" = None) -> None:
        """Build the components. `on_write` builds the hook after commits to changes. A worker has none: it runs jobs."""
        settings, clock = context.settings, context.clock
        self.context = context
        self._mutex = threading.Lock()
        self._operations: DatasetMaintenance | None = None
        self._leases: Leases | None = None
        self.purge_listeners = PurgeListeners()
        self.state_files = StateFiles(context.layout, durable=settings.durable)
        self.background = Background()
        self._checkpoints = BackgroundCheckpoints(self.background, settings=settings, clock=clock)
        self.registry = Registry(
            context.layout,
            settings=settings,
            clock=clock,
            after_commit=self._on_commit,
            after_write=on_write(self) if on_write is not None else lambda _store, _version: None,
            reads=ReadCache(settings.lookup_cache_mb * BYTES_PER_MB),
            purge_listeners=self.purge_listeners,
        )

    @property
    def operations(self) -> "DatasetMaintenance":
        """The operations that rewrite data. Most commands need none, and their modules take long to import."""
        from siltstone.compaction.operations.dataset_maintenance import DatasetMaintenance

        with self._mutex:
            if self._operations is None:
                # a new reader for each epoch: a forked child may not share one
                self._operations = DatasetMaintenance(
                    spark=self.context.spark, leased=lambda: self._new_leases().epoch()
                )
            return self._operations

    @property
    def leases(self) -> Leases:
        """The leases of the lake. All callers share one object, because it remembers the rows that it has watched."""
        with self._mutex:
            if self._leases is None:
                self._leases = self._new_leases()
            return self._leases

    def _new_leases(self) -> Leases:
        return Leases(self.context.layout, self.context.settings, self.context.clock)

    def store(self, name: str) -> Store:
        """Open the store of a dataset. Raise NotFound if the dataset does not exist."""
        return self.registry.store(self.registry.find(DatasetName.parse(name)))

    def has_journal(self) -> bool:
        """True if the journal has entries, without opening it. Raise Unavailable if it cannot be read."""
        with log_errors(self.context.layout.events / LOG):
            return has_versions(self.context.layout.events)

    def close(self) -> None:
        """Wait for background work."""
        self.background.close()

    def _on_commit(self, table: Table, version: int) -> None:
        """Checkpoint a table every N commits. For `changes`, also delete the oldest idempotence marks."""
        self._checkpoints.notice(table, version, then=self._delete_marks if table.path.name == CHANGES else None)

    def _delete_marks(self, table: Table) -> None:
        with suppress(OSError, SiltstoneError, LogChanged):  # the next checkpoint tries again
            forget_oldest(table, most=self.context.settings.idempotence_marks)
