"""A hundred threads query, write, evict, pin, purge and cancel at once: every answer is one current state."""

import random
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from siltstone import Lake, Settings
from siltstone.compaction.operations.garbage_collection import purge_files
from siltstone.errors import NotFound, Unavailable
from siltstone.spark.lake_sessions import LakeSessions
from tests.support.folds import fold_by_arrow
from tests.support.internals import replace_session, store_of

NAMES = ("prod.ml.t", "staging.ml.t", "prod.ml.T")
"""Names that differ by the catalog or by case only."""
ROWS = 200
END_SECONDS = 60.0
"""Longest wait in seconds for the end of a thread; a thread that takes longer hangs."""


class NoSpark(Exception):  # noqa: N818
    """A query was routed to Spark, which is absent: a small dataset was being filled or evicted at that moment."""


class Chaos:
    """Actions of the threads; `wrong` collects forbidden observations."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.written = dict.fromkeys(NAMES, 0)
        self.turns = {name: threading.Lock() for name in NAMES}
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []
        for name in NAMES:
            lake.create(name, "id BIGINT NOT NULL, n BIGINT, place STRING", key="id")
            self._write(name, 0)

    def _write(self, name: str, n: int) -> None:
        self.lake.dataset(name).upsert([{"id": at, "n": n, "place": name} for at in range(ROWS)])

    def ask(self, chance: random.Random) -> None:
        name = chance.choice(NAMES)
        before = self.written[name]
        text = f"SELECT min(n) AS a, max(n) AS b, count(*) AS c, min(place) AS d, max(place) AS e FROM {name}"
        low, high, count, first, last = self.lake.sql(text).rows[0]
        if (count, first, last) != (ROWS, name, name) or low != high or low < before:
            self.wrong.append(f"{name} at {before}: {low} {high} {count} {first} {last}")

    def join(self, _chance: random.Random) -> None:
        before = [self.written[name] for name in NAMES[:2]]
        text = (
            f"SELECT a.n, b.n AS m, count(*) AS c FROM {NAMES[0]} a JOIN {NAMES[1]} b ON a.id = b.id GROUP BY a.n, b.n"
        )
        rows = self.lake.sql(text, engine="hot").rows
        if len(rows) != 1 or rows[0][2] != ROWS or rows[0][0] < before[0] or rows[0][1] < before[1]:
            self.wrong.append(f"join at {before}: {rows}")

    def page(self, _chance: random.Random) -> None:
        result = self.lake.sql(f"SELECT id, n FROM {NAMES[0]} ORDER BY id", engine="hot")
        page = self.lake.queries.page(result.query_id, 2, size=10)
        if [row[0] for row in page.rows] != list(range(10, 20)) or len({row[1] for row in page.rows}) != 1:
            self.wrong.append(f"page: {page.rows}")

    def write(self, chance: random.Random) -> None:
        name = chance.choice(NAMES)
        with self.turns[name]:
            self._write(name, self.written[name] + 1)
            self.written[name] += 1

    def purge(self, chance: random.Random) -> None:
        name = chance.choice(NAMES)
        with self.turns[name]:
            dataset = self.lake.dataset(name)
            fold_by_arrow(dataset)
            purge_files(store_of(dataset))
            store_of(dataset).forget()

    def evict(self, chance: random.Random) -> None:
        self.lake.hot.evict(chance.choice(NAMES))

    def pin(self, chance: random.Random) -> None:
        name = chance.choice(NAMES)
        self.lake.hot.pin(name)
        self.lake.hot.unpin(name)

    def cancel(self, _chance: random.Random) -> None:
        for query_id in self.lake.queries.running()[:1]:
            self.lake.queries.cancel(query_id)

    def look(self, chance: random.Random) -> None:
        self.lake.hot.stats()
        self.lake.hot.decide(chance.choice(NAMES))


def at_once(chaos: Chaos, seconds: float) -> None:
    """Run all threads for a while; each must end soon after that."""
    stop = threading.Event()

    def work(do: Callable[[random.Random], None], seed: int, pause: float) -> None:
        chance = random.Random(seed)
        while not stop.is_set():
            try:
                do(chance)
                chaos.done[do.__name__] += 1
            except (NoSpark, NotFound, Unavailable) as error:
                chaos.done[f"{do.__name__} {type(error).__name__}"] += 1
            except Exception as error:  # noqa: BLE001  # every exception is an error here
                chaos.wrong.append(f"{do.__name__}: {error!r}")
            stop.wait(pause)

    plan = [
        (chaos.ask, 70, 0.0),
        (chaos.join, 10, 0.0),
        (chaos.page, 6, 0.0),
        (chaos.write, 6, 0.05),
        (chaos.purge, 2, 0.3),
    ]
    plan += [(chaos.evict, 1, 0.4), (chaos.pin, 2, 0.1), (chaos.cancel, 1, 0.5), (chaos.look, 2, 0.05)]
    threads = [
        threading.Thread(target=work, args=(do, at, pause), daemon=True)
        for do, many, pause in plan
        for at in range(many)
    ]
    assert len(threads) == 100
    for thread in threads:
        thread.start()
    stop.wait(seconds)
    stop.set()
    for thread in threads:
        thread.join(END_SECONDS)
    assert [thread.name for thread in threads if thread.is_alive()] == []


def run_chaos(path: Path, monkeypatch: pytest.MonkeyPatch, *, seconds: float) -> Counter[str]:
    def refuse(_sessions: LakeSessions, _server: object) -> None:
        raise NoSpark

    replace_session(monkeypatch, refuse)
    with Lake.open(path, settings=Settings(durable=False, squash_files=0, hot_cache_mb=64, hot_query_mb=64)) as lake:
        chaos = Chaos(lake)
        at_once(chaos, seconds)
        assert chaos.wrong == []
        for name in NAMES:
            assert lake.sql(f"SELECT max(n) AS n FROM {name}", engine="hot").rows == [(chaos.written[name],)]
        return chaos.done


def test_a_hundred_threads_at_once_see_one_state_each_and_no_old_one(lake_path: Path, monkeypatch: pytest.MonkeyPatch):
    done = run_chaos(lake_path, monkeypatch, seconds=2)
    assert min(done[what] for what in ("ask", "write", "purge", "evict")) > 0, done


@pytest.mark.deep
def test_a_hundred_threads_for_a_long_time(lake_path: Path, monkeypatch: pytest.MonkeyPatch):
    done = run_chaos(lake_path, monkeypatch, seconds=60)
    assert min(done[what] for what in ("ask", "join", "page", "write", "purge", "evict", "pin")) > 10, done
