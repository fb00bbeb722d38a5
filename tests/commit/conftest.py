"""Fixtures of the tests of the commit path: a pool of processes that is started once."""

from collections.abc import Iterator

import pytest

from tests.support.processes import Pool


@pytest.fixture(scope="package")
def pool() -> Iterator[Pool]:
    """A pool of eight other processes."""
    found = Pool(8)
    yield found
    found.close()
