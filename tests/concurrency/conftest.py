"""One worker on the Connect server, for folds that tests run themselves."""

from collections.abc import Iterator

import pytest

from siltstone.spark.connect_server import ConnectServer
from tests.support.children import Worker


@pytest.fixture(scope="session")
def worker(connect_server: ConnectServer) -> Iterator[Worker]:
    """A process with a Spark session."""
    with Worker(remote=connect_server.address) as started:
        yield started
