"""Each kind of file in a lake cut, emptied, garbled or unreadable: commands end with one line and the right code."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.e2e.silt import TIMEOUT_SECONDS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "damages", ["denied", pytest.param("cut,empty,garbled,zeros,folder,gone", marks=pytest.mark.deep)]
)
def test_no_damage_to_a_file_ends_a_command_with_anything_but_one_line(damages: str):
    with tempfile.TemporaryDirectory() as folder:  # only root can read pytest's own folders
        Path(folder).chmod(0o777)
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.fuzzed_lake", folder, damages],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["wrong"] == []
    assert report["runs"] > 60
    assert report["refused"] > 10
