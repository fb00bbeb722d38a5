"""The checks of `silt doctor` that need no lake."""

import shutil
from pathlib import Path

import pytest

from siltstone.cli.doctor import run_checks
from siltstone.lake import Lake

GB = 1024**3


def no_lake() -> Lake:
    """Fail: the checks of this module need no lake."""
    raise OSError


@pytest.mark.parametrize(("free", "shown"), [(2 * GB, "2 GB"), (GB // 2, "512 MB")])
def test_the_disk_is_measured_in_the_units_of_all_other_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, shown: str
):
    usage = shutil.disk_usage(tmp_path)._replace(total=5 * GB, free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    (disk,) = [check for check in run_checks(str(tmp_path), open_lake=no_lake) if check.name == "disk"]
    assert disk.finding == f"{shown} of 5 GB free"
