"""Queries do not depend on whether the compiled form of sqlglot is installed."""

import os
import re
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
import sqlglot.parser

from siltstone.errors import Unavailable
from siltstone.query.gate.admit import admit

SOURCE = Path(__file__).parents[3] / "src" / "siltstone"
SUFFIX = EXTENSION_SUFFIXES[0]
COMPILED = ("parser", "tokenizer_core", "expressions/core", "parsers/spark", "generator")
READS_SQL = """
from siltstone.query.gate.admit import admit
import sqlglot.parser
print(admit("SELECT 1 AS a").normalised, sqlglot.parser.__file__)
"""


def overlay(folder: Path) -> Path:
    """Write sqlglot's source to a folder, with compiled modules that cannot be loaded."""
    [installed] = sqlglot.__path__
    for path in Path(installed).rglob("*.py"):
        copy = folder / "sqlglot" / path.relative_to(installed)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.symlink_to(path)
    for module in COMPILED:
        (folder / "sqlglot" / f"{module}{SUFFIX}").write_bytes(b"no machine code")
    return folder


def test_a_query_is_read_by_the_source_of_sqlglot_beside_compiled_modules(tmp_path: Path):
    paths = [str(overlay(tmp_path)), *filter(None, sys.path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    call = [sys.executable, "-c", READS_SQL]
    done = subprocess.run(call, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split(" ") == ["SELECT", "1", "AS", "`a`", f"{tmp_path}/sqlglot/parser.py\n"], done.stderr


def test_a_compiled_sqlglot_that_was_imported_before_is_not_the_fault_of_the_query(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sqlglot.parser, "__file__", f"/environment/sqlglot/parser{SUFFIX}")
    with pytest.raises(Unavailable, match="uninstall sqlglotc"):
        admit("SELECT 'read by no other test' AS text")


def test_sqlglot_is_imported_below_the_package_that_prefers_its_source():
    imports = re.compile(r"^\s*(?:from|import) sqlglot\b", re.MULTILINE)
    found = {path.relative_to(SOURCE).parts[0] for path in SOURCE.rglob("*.py") if imports.search(path.read_text())}
    assert found == {"query"}
