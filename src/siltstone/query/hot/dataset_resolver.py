"""Resolves dataset names to stores. The lookup is cached until the registry changes."""

import threading

from siltstone.dataset.registry import Registry
from siltstone.dataset.store import Store
from siltstone.model.names import DatasetName


class DatasetResolver:
    """Finds the stores of dataset names, with open tables. Thread-safe."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._cached: dict[str, tuple[int, Store]] = {}
        """Version of the registry at the lookup, and the store."""
        self._mutex = threading.Lock()

    def store(self, name: str) -> Store:
        """Return the store that a name has now."""
        version = self._registry.version()
        cached_version, cached = self._cached.get(name, (None, None))
        if cached is not None and cached_version == version:
            return cached
        with self._mutex:
            record = self._registry.find(DatasetName.parse(name))
            if cached is None or cached.incarnation != record.incarnation:
                cached = self._registry.store(record)
            self._cached[name] = (version, cached)
            return cached
