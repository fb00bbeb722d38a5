import doctest
import importlib
import pkgutil
from types import ModuleType

import pytest

import siltstone.model

MODULES = [
    *[f"siltstone.model.{found.name}" for found in pkgutil.iter_modules(siltstone.model.__path__)],
    "siltstone.delta.layout",
    "siltstone.compaction.operations.fold_plan",
    "siltstone.dataset.read.time_travel",
]
WITH_EXAMPLES = {
    "siltstone.model.names",
    "siltstone.model.as_of",
    "siltstone.model.schema",
    "siltstone.model.spec",
    "siltstone.delta.layout",
    "siltstone.compaction.operations.fold_plan",
    "siltstone.dataset.read.time_travel",
}


def run(module: ModuleType) -> doctest.TestResults:
    return doctest.testmod(module, raise_on_error=False)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_are_true(name: str):
    results = run(importlib.import_module(name))
    assert results.failed == 0
    assert results.attempted > 0 or name not in WITH_EXAMPLES
