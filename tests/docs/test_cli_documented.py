"""Every command, option, exit code and reason of `silt` is in docs/cli.md."""

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from siltstone import errors
from siltstone.cli.app import app
from siltstone.cli.signals import INTERRUPTED, KIND
from tests.e2e.silt import silt

TEXT = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
ROOT: Any = typer.main.get_command(app)
GROUPS: dict[str, Any] = {name: command for name, command in ROOT.commands.items() if hasattr(command, "commands")}
COMMANDS: dict[str, Any] = {name: command for name, command in ROOT.commands.items() if name not in GROUPS} | {
    f"{group} {name}": command for group in GROUPS for name, command in GROUPS[group].commands.items()
}
ERRORS = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, errors.SiltstoneError)]


def section(command: str) -> str:
    """Return the page's section about one command."""
    found = re.search(rf"^### `silt {command}\b.*?(?=^##|\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert found, f"docs/cli.md has no section for silt {command}"
    return found[0]


def options(command: Any) -> list[str]:  # noqa: ANN401
    return [name for parameter in command.params for name in parameter.opts if name.startswith("-")]


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_and_option_is_documented(command: str):
    text = section(command)
    missing = [name for name in options(COMMANDS[command]) if name not in text]
    assert not missing


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_argument_is_named_in_the_heading(command: str):
    heading = section(command).splitlines()[0]
    names = [p.metavar.strip("[].") for p in COMMANDS[command].params if p.param_type_name == "argument"]
    assert [name for name in names if name not in heading] == []


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_no_argument_is_in_brackets_twice(command: str):
    shown = silt(*command.split(), "--help").out
    assert f"Usage: silt {command}" in shown
    assert not re.search(r"\[\[|\]\]|\{\[|\.\.\.[\]}]?\.\.\.", shown)


def test_every_documented_command_exists():
    groups = "|".join(GROUPS)
    assert set(re.findall(rf"^### `silt ((?:(?:{groups}) )?\w+)", TEXT, re.MULTILINE)) == set(COMMANDS)


def test_every_documented_option_exists():
    for name, command in COMMANDS.items():
        heading = section(name).splitlines()[0]
        assert set(re.findall(r"--[a-z-]+", heading)) <= {*options(command), *options(ROOT)}, name


def test_every_global_option_is_documented():
    shared = TEXT.split("## Global options")[1].split("\n## ")[0]
    assert [name for name in options(ROOT) if f"`{name}" not in shared] == []


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_every_exit_code_is_documented_with_its_kind(error: type[errors.SiltstoneError]):
    assert re.search(rf"^\| {error.exit_code} \| `{error.kind}` \| \S", TEXT, re.MULTILINE)


def test_every_reason_is_documented_and_no_other():
    assert re.findall(r"^\| `([a-z_]+)` \|", TEXT.split("| reason |")[1].split("\n## ")[0], re.MULTILINE) == list(
        errors.Reason
    )


def test_an_interrupt_has_its_exit_code_in_the_table():
    assert re.search(rf"^\| {INTERRUPTED} \| `{KIND}` \|", TEXT, re.MULTILINE)


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_helps_with_an_example(command: str):
    assert f"silt {command}" in (COMMANDS[command].help or "")


@pytest.mark.parametrize("group", ["", *GROUPS])
def test_every_command_has_one_whole_line_in_a_terminal_of_80_columns(group: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    sections = silt(*group.split(), "--help").out.partition("Options:")[2].split("\n\n")[1:]
    lines = [line for section in sections for line in section.splitlines() if line.startswith("  ")]
    names = GROUPS[group].commands if group else ROOT.commands
    listed = {line.split()[0]: line for line in lines if line.split()[0] in names}
    assert set(listed) == set(names)
    assert [line for line in listed.values() if not line.endswith(".") or line.endswith("..")] == []


def test_the_commands_of_the_lake_are_listed_in_sections():
    shown = silt("--help").out
    assert re.findall(r"^(\w+):$", shown, re.MULTILINE) == [
        "Options",
        "Datasets",
        "Write",
        "Read",
        "Maintenance",
        "System",
    ]
