"""Background squash: merges small change files of a dataset after a writer's acknowledgement."""

from typing import Final

import pyarrow as pa

from siltstone.compaction.lake_components import LakeComponents
from siltstone.dataset.store import Store
from siltstone.delta.table_reader import LogChanged
from siltstone.errors import SiltstoneError
from siltstone.model.roles import may_compact

CHECK_COMMITS: Final = 8
"""Commits to the changes of a dataset between two counts of its small files."""


class BackgroundSquash:
    """Hook that is called after commits to changes. It never fails a write. After an error the next commits retry."""

    def __init__(self, components: LakeComponents) -> None:
        """Squash on the background thread of a lake, if the role may compact."""
        settings = components.context.settings
        self._min_files = settings.squash_files if may_compact(settings.role) else 0
        self._components = components

    def __call__(self, store: Store, version: int) -> None:
        """Squash the changes of a dataset if they have too many small files."""
        if not self._min_files or version % CHECK_COMMITS or len(store.changes.files()) < self._min_files:
            return

        def squash() -> str | None:
            try:
                self._components.operations.squash(store, many=self._min_files)
            except (OSError, SiltstoneError, LogChanged, pa.ArrowException) as error:
                return str(error)
            return None

        self._components.background.start("squash", store.path, squash)
