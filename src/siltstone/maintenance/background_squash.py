"""Background squash: merges small change files of a dataset after a writer's acknowledgement."""

from typing import Final

import pyarrow as pa

from siltstone.compaction.components import LakeContext
from siltstone.compaction.operations.dataset_maintenance import DatasetMaintenance
from siltstone.dataset.store import Store
from siltstone.delta.background import Background
from siltstone.delta.table_reader import LogChanged
from siltstone.errors import SiltstoneError
from siltstone.model.roles import may_compact

CHECK_COMMITS: Final = 8
"""Commits to the changes of a dataset between two counts of its small files."""


class BackgroundSquash:
    """Hook that is called after commits to changes. It never fails a write. After an error the next commits retry."""

    def __init__(self, context: LakeContext, background: Background, operations: DatasetMaintenance) -> None:
        """Squash on the thread of `background`, if the role may compact."""
        self._min_files = context.settings.squash_files if may_compact(context.settings.role) else 0
        self._background = background
        self._operations = operations

    def __call__(self, store: Store, version: int) -> None:
        """Squash the changes of a dataset if they have too many small files."""
        if not self._min_files or version % CHECK_COMMITS or len(store.changes.files()) < self._min_files:
            return
        self._background.start("squash", store.path, lambda: self._squash(store))

    def _squash(self, store: Store) -> str | None:
        """Squash the changes. Return the error text instead of raising."""
        try:
            self._operations.squash(store, many=self._min_files)
        except (OSError, SiltstoneError, LogChanged, pa.ArrowException) as error:
            return str(error)
        return None
