import doctest
import importlib
import pkgutil
from types import ModuleType

import pytest

import siltstone.model

MODULES = [
    *[f"siltstone.model.{found.name}" for found in pkgutil.iter_modules(siltstone.model.__path__)],
    "siltstone.storage.layout",
    "siltstone.compaction.planner",
    "siltstone.dataset.travel",
]
WITH_EXAMPLES = {
    "siltstone.model.names",
    "siltstone.model.points",
    "siltstone.model.schema",
    "siltstone.model.spec",
    "siltstone.storage.layout",
    "siltstone.compaction.planner",
    "siltstone.dataset.travel",
}


def run(module: ModuleType) -> doctest.TestResults:
    return doctest.testmod(module, raise_on_error=False)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_are_true(name: str):
    results = run(importlib.import_module(name))
    assert results.failed == 0
    assert results.attempted > 0 or name not in WITH_EXAMPLES
