from pathlib import Path

import pytest

from tests.e2e.silt import silt

PEOPLE = "crm.sales.people"
PRICES = "shop.eu.prices"


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip fsync: no test here depends on a power cut."""
    monkeypatch.setenv("SILT_DURABLE", "no")


def make_lake(path: Path) -> Path:
    """Create a lake with two datasets: people by a text, prices by a text and a number."""
    people = (
        "id STRING, name STRING, age INT, score DOUBLE, pay DECIMAL(10,2), born DATE, at TIMESTAMP, tags ARRAY<STRING>"
    )
    assert silt("--lake", path, "create", PEOPLE, "--key", "id", "--subject", "id", "--schema", people).code == 0
    prices = "sku STRING, store BIGINT, price DECIMAL(10,2)"
    assert silt("--lake", path, "create", PRICES, "--key", "sku,store", "--schema", prices).code == 0
    return path


@pytest.fixture
def lake(lake_path: Path) -> Path:
    """A lake for one test."""
    return make_lake(lake_path)


@pytest.fixture(scope="session")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake for tests that check that nothing is changed."""
    return make_lake(tmp_path_factory.mktemp("untouched") / "lake")
