"""The query components of one lake: router, hot cache, cache directives. Each is built on first use."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from siltstone.clock import Clock
from siltstone.config import Settings
from siltstone.dataset.dataset import Dataset
from siltstone.dataset.registry import Registry
from siltstone.dataset.store import PurgeListeners
from siltstone.delta.layout import Layout
from siltstone.query.hot.cache import HotCache
from siltstone.query.hot.dataset_resolver import DatasetResolver
from siltstone.query.hot.directives import DirectiveStore
from siltstone.spark.lake_sessions import LakeSessions

if TYPE_CHECKING:
    from siltstone.query.router import Router


class QueryComponents:
    """Builds the router and the hot cache of one lake, once each. Thread-safe."""

    def __init__(
        self,
        registry: Registry,
        layout: Layout,
        *,
        dataset: Callable[[str], Dataset],
        sessions: LakeSessions,
        purge_listeners: PurgeListeners,
        settings: Settings,
        clock: Clock,
        long_running: bool,
    ) -> None:
        """Set up the components. Nothing is built, read or written yet."""
        self._registry = registry
        self._layout = layout
        self._dataset = dataset
        self._sessions = sessions
        self._purge_listeners = purge_listeners
        self._settings = settings
        self._clock = clock
        self._long_running = long_running
        self._mutex = threading.Lock()
        self._router: Router | None = None
        self._hot: HotCache | None = None

    @property
    def router(self) -> "Router":
        """The router. It imports the SQL parser."""
        from siltstone.query.router import Router

        with self._mutex:
            if self._router is None:
                self._router = router = Router(
                    hot=lambda: self.hot,
                    resolver=DatasetResolver(self._registry),
                    spark=self._sessions.for_queries,
                    dataset=self._dataset,
                    settings=self._settings,
                    clock=self._clock,
                    has_spark=self._sessions.is_running,
                    fill_in_background=self._long_running,
                )
                self._purge_listeners.add(lambda _folder: router.forget())
            return self._router

    @property
    def hot(self) -> HotCache:
        """The hot cache. In a long-running process it follows the lake's cache directives."""
        with self._mutex:
            if self._hot is None:
                directives = self.directives if self._long_running else None
                self._hot = HotCache(
                    DatasetResolver(self._registry), settings=self._settings, clock=self._clock, directives=directives
                )
                self._purge_listeners.add(self._hot.forget)
            return self._hot

    @property
    def directives(self) -> DirectiveStore:
        """The lake's cache directives."""
        return DirectiveStore(self._layout, settings=self._settings, clock=self._clock)

    def close(self) -> None:
        """Cancel running queries, then close the hot cache."""
        if self._router is not None:
            self._router.close()
        if self._hot is not None:
            self._hot.close()
