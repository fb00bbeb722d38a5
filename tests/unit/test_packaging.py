"""The installed package: public names, type hints, bounds of dependencies, and shipped documents."""

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import siltstone

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "siltstone"
PROJECT = (ROOT / "pyproject.toml").read_text()
INTERNAL = {
    "MaintenanceService": "the component behind the methods of a lake that plan and run cycles",
    "Registration": "a record of the registry, for our own modules",
    "Snapshot": "a view of the log, for our own modules",
    "HotSnapshot": "a cursor of the hot engine, for the router",
}
"""Values of methods that are public only for other modules of ours."""
OPENED = ["CompactorService", "Dataset", "DirectiveStore", "EventLog", "HotCache", "Lake", "Producer", "Router"]
"""Exported classes with methods: a user creates them, or gets them from a lake."""


@cache
def homes(module: str) -> tuple[dict[str, ast.ClassDef], dict[str, tuple[str, str]]]:
    """Return the classes of a module, and the origins of its other names from our modules."""
    path = ROOT.joinpath("src", *module.split("."))
    tree = ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    imported = {
        name.asname or name.name: (node.module, name.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("siltstone")
        for name in node.names
    }
    return classes, imported


def class_of(module: str, name: str) -> tuple[str, str] | None:
    """Return the module and name of our class that a module imports or defines by this name."""
    classes, imported = homes(module)
    if name in classes:
        return module, name
    return class_of(*imported[name]) if name in imported else None


def names_in(annotation: ast.AST) -> Iterator[str]:
    for node in ast.walk(annotation):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from names_in(ast.parse(node.value))


def returned(module: str, name: str) -> Iterator[tuple[str, str]]:
    """Yield our classes that public methods of a class return, including methods of its base classes."""
    definition = homes(module)[0][name]
    for base in definition.bases:
        found = class_of(module, ast.unparse(base))
        if found:
            yield from returned(*found)
    for method in definition.body:
        if isinstance(method, ast.FunctionDef) and not method.name.startswith("_") and method.returns:
            yield from filter(None, (class_of(module, one) for one in names_in(method.returns)))


@pytest.mark.parametrize("name", OPENED)
def test_every_value_that_a_public_method_returns_is_exported(name: str):
    values = set(returned(getattr(siltstone, name).__module__, name))
    assert values
    assert {value for _, value in values} - set(INTERNAL) <= set(siltstone.__all__)
    for module, value in values:
        if value not in INTERNAL:
            assert getattr(siltstone, value) is getattr(import_module(module), value)


def test_every_value_that_is_not_exported_is_returned_by_a_public_method():
    values = {value for name in OPENED for _, value in returned(getattr(siltstone, name).__module__, name)}
    assert set(INTERNAL) - values == set(), "an exception that nothing needs any more"


def test_every_exported_name_exists_and_is_known_to_type_checkers():
    assert [name for name in siltstone.__all__ if getattr(siltstone, name).__name__ != name] == []
    assert set(homes("siltstone")[1]) == set(siltstone.__all__)
    assert (SOURCE / "py.typed").exists()


def test_every_upper_bound_of_a_dependency_has_its_reason():
    dependencies = PROJECT.split("\ndependencies = [")[1].split("\n]")[0].splitlines()[1:]
    bounded = [line for line in dependencies if "<" in line or "==" in line]
    assert [line for line in bounded if not re.search(r'", +# \w+ ', line)] == []
    assert {"sqlglot", "duckdb"} <= {line.split('"')[1].split(" ")[0] for line in bounded}


def test_every_document_that_the_wheel_names_is_in_the_wheel():
    wheel = tomllib.loads(PROJECT)["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["only-include"] == ["src/siltstone", "docs", "bench/RESULTS.md"]
    assert {"docs": "siltstone/docs", "bench": "siltstone/bench"}.items() <= wheel["sources"].items()
    shipped = {*(ROOT / "docs").rglob("*.md"), ROOT / "bench" / "RESULTS.md"}
    named = {ROOT / name for path in SOURCE.rglob("*.py") for name in re.findall(r"[\w./-]+\.md\b", path.read_text())}
    linked = {
        (page.parent / link).resolve() for page in shipped for link in re.findall(r"\]\(([^)#:]+)", page.read_text())
    }
    described = set(re.findall(r"[\w./-]+\.md\b", tomllib.loads(PROJECT)["project"]["readme"]["text"]))
    assert named | linked | {ROOT / name for name in described} <= shipped
    assert named, "the rule finds nothing, so it can protect nothing"
