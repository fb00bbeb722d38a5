"""The hot cache in a process beside a writer and a compactor.

No acknowledged write is missed, and every answer is one state.
"""

import time
from pathlib import Path

import pytest

from siltstone import Lake, Settings
from tests.support import clicks, people
from tests.support.children import Child
from tests.support.hot import hot_table
from tests.support.hot_actors import ACKNOWLEDGED, ANSWERED, PACE, STOP, Expected

ACTORS = "tests.support.hot_actors"


def acknowledged(signals: Path) -> int:
    try:
        return int((signals / ACKNOWLEDGED).read_text())
    except FileNotFoundError:
        return 0


def follow(lake_path: Path, signals: Path, *, log: bool, steps: int) -> dict[str, int]:
    """Query repeatedly while other processes write and compact.

    Every answer must match its sequence, which must not be older than the last acknowledged one.
    """
    name = clicks.NAME if log else people.NAME
    with Lake.open(lake_path, settings=Settings(durable=False)) as lake:
        clicks.create(lake) if log else people.create(lake)
        lake.hot.fill(name)
        expected, answers, sequences = Expected(log=log), 0, set()
        given = {"path": str(lake_path), "name": name, "signals": str(signals)}
        writer = Child(f"{ACTORS}:write", {**given, "steps": steps})
        compactor = Child(f"{ACTORS}:compact", given)
        while writer.running or answers == 0:
            before = acknowledged(signals)
            with lake.hot.snapshot([name]) as hot:
                sequence = hot.states[name].sequence
                rows = hot.cursor.execute(
                    f"SELECT {'n, visitor' if log else 'id, n'} FROM {hot.tables[name]}"
                ).fetchall()
            assert sequence >= before
            assert len(rows) == len(dict(rows))
            assert dict(rows) == expected.at(sequence)
            answers += 1
            sequences.add(sequence)
            if sequence % PACE == 0:
                (signals / f"{ANSWERED}-{sequence}").touch()
        assert writer.value() == steps
        (signals / STOP).touch()
        done: dict[str, int] = compactor.value()
        assert dict(zip(*_last(lake, name, log=log), strict=True)) == expected.at(steps)
        entry = lake.hot.stats().entries[0]
        return done | {"answers": answers, "states": len(sequences), "fills": entry.fills, "refreshes": entry.refreshes}


def _last(lake: Lake, name: str, *, log: bool) -> tuple[list[object], list[object]]:
    rows = hot_table(lake, name)
    key, value = ("n", "visitor") if log else ("id", "n")
    return rows[key].to_pylist(), rows[value].to_pylist()


@pytest.mark.parametrize("log", [False, True], ids=["keyed", "log"])
def test_no_acknowledged_write_is_missed_while_others_write_and_compact(lake_path: Path, tmp_path: Path, log: bool):  # noqa: FBT001
    seen = follow(lake_path, tmp_path, log=log, steps=100)
    assert min(seen[what] for what in ("fold", "squash", "rewrite", "purge")) > 0, seen
    assert seen["states"] > 5, seen


@pytest.mark.deep
@pytest.mark.parametrize("log", [False, True], ids=["keyed", "log"])
def test_no_acknowledged_write_is_missed_for_a_long_time(lake_path: Path, tmp_path: Path, log: bool):  # noqa: FBT001
    started = time.monotonic()
    seen = follow(lake_path, tmp_path, log=log, steps=4000)
    assert min(seen[what] for what in ("fold", "squash", "rewrite", "purge")) > 10, seen
    assert time.monotonic() - started > 0


def test_evicted_memory_goes_back_to_the_system(lake_path: Path):
    seen = Child(f"{ACTORS}:fill_and_evict", {"path": str(lake_path)}).value()
    assert seen["evicted"] > 200 * 1024 * 1024
    assert seen["before"] - seen["after"] >= 0.7 * seen["evicted"], seen
