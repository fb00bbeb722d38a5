"""The query components of one lake: router, hot cache, cache directives. Each is built on first use."""

import threading
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
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


@dataclass(slots=True, eq=False)
class QueryComponents:
    """Builds the router and the hot cache of one lake, once each. Thread-safe."""

    registry: Registry
    layout: Layout
    _: KW_ONLY
    dataset: Callable[[str], Dataset]
    sessions: LakeSessions
    purge_listeners: PurgeListeners
    settings: Settings
    clock: Clock
    long_running: bool
    _mutex: threading.Lock = field(default_factory=threading.Lock, init=False)
    _router: "Router | None" = field(default=None, init=False)
    _hot: HotCache | None = field(default=None, init=False)

    @property
    def router(self) -> "Router":
        """The router. It imports the SQL parser."""
        from siltstone.query.router import Router

        with self._mutex:
            if self._router is None:
                self._router = router = Router(
                    hot=lambda: self.hot,
                    resolver=DatasetResolver(self.registry),
                    spark=self.sessions.for_queries,
                    dataset=self.dataset,
                    settings=self.settings,
                    clock=self.clock,
                    has_spark=self.sessions.is_running,
                    fill_in_background=self.long_running,
                )
                self.purge_listeners.add(lambda _folder: router.forget())
            return self._router

    @property
    def hot(self) -> HotCache:
        """The hot cache. In a long-running process it follows the lake's cache directives."""
        with self._mutex:
            if self._hot is None:
                directives = self.directives if self.long_running else None
                self._hot = HotCache(
                    DatasetResolver(self.registry), settings=self.settings, clock=self.clock, directives=directives
                )
                self.purge_listeners.add(self._hot.forget)
            return self._hot

    @property
    def directives(self) -> DirectiveStore:
        """The lake's cache directives."""
        return DirectiveStore(self.layout, settings=self.settings, clock=self.clock)

    def close(self) -> None:
        """Cancel running queries, then close the hot cache."""
        if self._router is not None:
            self._router.close()
        if self._hot is not None:
            self._hot.close()
