"""State files: small JSON files beside the lease, which people may have edited."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from siltstone.coordination.state_files import CYCLES, StateFiles
from siltstone.delta.layout import Layout
from siltstone.errors import Corruption, Reason
from tests.support.refusals import refused

CYCLE = {"cycle": 7, "started": "2026-11-16T10:00:00+00:00", "jobs": 1, "failed": 0, "errors": [], "seconds": 1.5}


@pytest.fixture
def notes(tmp_path: Path) -> StateFiles:
    return StateFiles(Layout.at(tmp_path), durable=False)


def test_concurrent_callers_never_get_the_same_cycle_number(notes: StateFiles) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(
            pool.map(lambda _: StateFiles(Layout.at(notes.folder.parents[1]), durable=False).next_cycle(), range(80))
        )
    assert sorted(found) == list(range(1, 81))


def test_cycle_numbers_continue_and_past_runs_are_recorded(notes: StateFiles) -> None:
    assert notes.cycles() == {}
    assert (notes.next_cycle(), notes.next_cycle(at_least=7)) == (1, 7)
    notes.ended(CYCLE, settled={"fold": "2026-11-16T10:00:00+00:00"})
    assert notes.next_cycle() == 8
    assert notes.cycles() == {"last": 8, "ended": CYCLE, "settled": {"fold": "2026-11-16T10:00:00+00:00"}}


@pytest.mark.parametrize(
    "text",
    [
        '{"last": "x"}',
        '{"last": -1}',
        '{"last": 1e999}',
        '{"last": 1.5}',
        '{"last": 1' + "0" * 30 + "}",
        '{"last": 1, "settled": []}',
        '{"last": 1, "settled": {"fold": 5}}',
        '{"last": 1, "settled": {"fold": "yesterday"}}',
        '{"last": 1, "settled": {"fold": "2026-11-16T10:00:00"}}',
        '{"last": 1, "ended": 7}',
        '{"last": 1, "ended": {"cycle": 7}}',
        "[]",
        "[" * 200_000,
        "",
    ],
    ids=lambda text: text[:60],
)
def test_an_invalid_cycles_file_is_named_and_left_unchanged(notes: StateFiles, text: str) -> None:
    notes.folder.mkdir(parents=True)
    path = notes.folder / CYCLES
    path.write_text(text)
    for doing in (notes.cycles, notes.next_cycle, lambda: notes.ended(CYCLE)):
        with refused(Corruption, Reason.DAMAGED_FILE, CYCLES):
            doing()
    assert path.read_text() == text
