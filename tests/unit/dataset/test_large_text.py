"""More text in unfolded changes than one array of Arrow can hold (2 GiB), and less memory than a command needs."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from siltstone import Dataset, Lake, Settings
from siltstone.dataset.read import arrow_view
from siltstone.dataset.read.arrow_view import sorted_rows
from siltstone.host.system_errors import is_memory_failure
from tests.support.internals import narrowed

MEGABYTE = 1_000_000
LIMITED = """
import resource, sys
from pathlib import Path
from siltstone.cli.app import main
assert main([*sys.argv[1:3], "head", "a.b.small"]) == 0  # libraries and threads are there before the limit is
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), resource.RLIM_INFINITY))
sys.exit(main(sys.argv[1:]))
"""


def test_rows_are_sorted_in_arrays_that_fit_their_offsets(monkeypatch: pytest.MonkeyPatch):
    rows = pa.table({"k": list(range(1000))[::-1], "t": [f"text {n}" for n in range(1000)][::-1]})
    assert sorted_rows(rows, ["k"]).equals(rows.sort_by("k"))
    monkeypatch.setattr(arrow_view, "ARRAY_BYTES", 4096)
    large = rows.set_column(1, "t", rows.column("t").cast(pa.large_string())).sort_by("k")
    found = pa.concat_tables(narrowed(large, rows.schema))
    assert found.equals(rows.sort_by("k"))
    assert found.column("t").num_chunks > 2


@pytest.mark.deep
def test_more_than_two_gibibytes_of_unfolded_text_are_read_and_squashed(lake_path: Path):
    dataset = filled(lake_path, batches=5, rows=460)
    dataset.upsert([{"id": "000000", "t": "new"}])
    assert dataset.to_arrow().num_rows == 2300
    dataset.squash()
    lengths = [len(chunk) for chunk in dataset.to_arrow().column("t").chunks]
    assert sum(lengths) == 2300
    assert dataset.get(["000000"]).column("t").to_pylist() == ["new"]


def filled(path: Path, *, batches: int, rows: int, name: str = "a.b.c") -> Dataset:
    lake = Lake.open(path, settings=Settings(durable=False, squash_files=0))
    dataset = lake.create(name, "id STRING NOT NULL, t STRING", key="id")
    for batch in range(batches):
        ids = [f"{number:06d}" for number in np.arange(rows) + batch * rows]
        dataset.upsert(pa.table({"id": ids, "t": pa.array(["x" * MEGABYTE] * rows)}))
    return dataset


def test_a_command_without_enough_memory_ends_with_one_line(lake_path: Path):
    filled(lake_path, batches=1, rows=600)
    filled(lake_path, batches=1, rows=1, name="a.b.small")
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, "--lake", str(lake_path), "head", "a.b.c", "--rows", "600"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 5, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "memory" in done.stderr


def test_a_library_that_does_not_fit_into_memory_is_a_memory_failure():
    assert is_memory_failure(ImportError("_acero.so: failed to map segment from shared object"))
    assert not is_memory_failure(ImportError("No module named 'pandas'"))
