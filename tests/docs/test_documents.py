"""The documents are true: README examples run, every setting is explained, every test that parity names exists."""

import ast
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from siltstone.config import Settings, scope_of
from siltstone.errors import SiltstoneError
from siltstone.model.tiers import DEFAULT_TIERS, Tier

ROOT = Path(__file__).parents[2]


def test_the_first_readme_example_prints_what_it_says(tmp_path: Path) -> None:
    example = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    done = subprocess.run([sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    promised = re.findall(r"print\(.*\)\s+# (.*)", example)
    assert promised
    assert done.stdout.splitlines() == promised


def test_the_readme_shows_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text


@pytest.mark.parametrize("name", [field.name for field in fields(Settings)])
def test_every_setting_is_explained_with_its_default_and_scope(name: str) -> None:
    rows = [
        line for line in (ROOT / "docs" / "settings.md").read_text().splitlines() if line.startswith(f"| `{name}` |")
    ]
    assert len(rows) == 1
    default = getattr(Settings(), name)
    shown = rows[0].split("|")[2].strip().strip("`")
    expected = str(default).lower() if isinstance(default, bool) else "" if default in ("", {}) else f"{default}"
    assert shown == (expected.removesuffix(".0") if isinstance(default, float) else expected)
    assert rows[0].split("|")[3].strip() == scope_of(name)


def test_every_error_and_its_exit_code_is_in_the_guarantees() -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text()
    for error in SiltstoneError.__subclasses__():
        assert re.search(rf"\| `{error.__name__}` \| .* \| {error.exit_code} \|", text), error


def test_parity_names_only_tests_that_exist() -> None:
    text = (ROOT / "docs" / "parity.md").read_text()
    source = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for path in set(re.findall(r"`(tests/[a-z0-9_/]+(?:\.py)?)", text)):
        assert (ROOT / path).exists(), path
    names = set(re.findall(r"\b(test_[a-z_]+)\b(?!\.py)", text))
    assert names
    for name in names:
        assert f"def {name}(" in source, name


SOURCE = ROOT / "src" / "siltstone"
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()


def test_the_architecture_names_each_package_once() -> None:
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    named = re.findall(r"^\| `([a-z_]+)/` \|", ARCHITECTURE, re.MULTILINE)
    assert sorted(named) == sorted(packages)


def test_every_file_that_the_architecture_names_exists() -> None:
    named = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)+/?(?:\.py)?)`", ARCHITECTURE))
    named |= set(re.findall(r"\]\(([^)]+\.md)\)", ARCHITECTURE))
    assert len(named) > 40
    assert [path for path in sorted(named) if not ((SOURCE / path).exists() or (ROOT / path).exists())] == []


def test_a_bare_file_name_of_the_architecture_is_in_the_folder_named_before_it() -> None:
    misplaced, folder = [], ""
    for name in re.findall(r"`([a-z_/]+/|[a-z_/]+\.(?:py|md))`", ARCHITECTURE):
        if "/" in name:
            folder = name.rpartition("/")[0]
        elif not any((root / part / name).exists() for root in (SOURCE, ROOT) for part in ("", folder)):
            misplaced.append(f"{folder}/{name}")
    assert misplaced == []


@pytest.mark.parametrize("init", sorted(SOURCE.rglob("*/__init__.py")), ids=lambda path: path.parent.name)
def test_the_docstring_of_a_package_lists_its_modules(init: Path) -> None:
    listed = ast.get_docstring(ast.parse(init.read_text())) or ""
    modules = {path.stem for path in init.parent.glob("*.py")} - {"__init__", "__main__"}
    modules |= {path.parent.name for path in init.parent.glob("*/__init__.py")}
    assert sorted(name for name in modules if f"`{name}`" not in listed) == []


def test_the_lines_of_the_architecture_are_short() -> None:
    assert [line for line in ARCHITECTURE.splitlines() if len(line) > 120] == []


@pytest.mark.parametrize("tier", DEFAULT_TIERS, ids=lambda tier: tier.name)
def test_every_tier_and_each_of_its_fields_is_explained(tier: Tier) -> None:
    text = (ROOT / "docs" / "compaction.md").read_text()
    (row,) = [line for line in text.splitlines() if line.startswith(f"| `{tier.name}`")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert ("(off)" in cells[0]) is not tier.enabled
    assert cells[1:3] == [tier.source, tier.target]
    shown = (
        f"{tier.min_age_seconds // 3600} h" if tier.min_age_seconds <= 86_400 else f"{tier.min_age_seconds // 86_400} d"
    )
    assert cells[3].split(",")[0] == shown
    assert cells[4:] == [str(tier.min_files), f"{tier.target_bytes // 2**20:,} MB", f"`{tier.cron}`"]
    for name in {field.name for field in fields(Tier)} - {"name"}:
        assert f"`{name}`" in text, name
