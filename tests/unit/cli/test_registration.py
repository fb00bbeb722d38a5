"""Groups of commands: which modules a call of `silt` imports."""

import subprocess
import sys

import pytest

LOADED = """
import sys
from siltstone.cli.app import main
assert main(sys.argv[1:]) == 0
groups = [f"siltstone.cli.commands.{name}" for name in ("cache", "compactor", "events", "spark")]
sys.stderr.write(" ".join(name.rpartition(".")[2] for name in groups if name in sys.modules))
"""


@pytest.mark.parametrize(
    ("call", "groups"), [(["--help"], []), (["list", "--help"], []), (["spark", "--help"], ["spark"])]
)
def test_a_group_is_imported_only_for_its_own_commands(call: list[str], groups: list[str]):
    process = subprocess.run(
        [sys.executable, "-c", LOADED, *call], capture_output=True, text=True, timeout=60, check=True
    )
    assert process.stderr.split() == groups
