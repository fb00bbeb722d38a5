"""Shared by the tests of the commit path: processes that are started once."""

from collections.abc import Iterator

import pytest

from tests.support.processes import Pool


@pytest.fixture(scope="package")
def pool() -> Iterator[Pool]:
    """Eight other processes."""
    found = Pool(8)
    yield found
    found.close()
