from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.maintenance import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A lake on a clock that the test moves, and its compactors, which are stopped at the end."""
    bench = Bench(tmp_path / "lake")
    yield bench
    for service in bench.services:
        service.stop()
