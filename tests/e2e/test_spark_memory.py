"""Spark runs out of memory in a query: the caller is told so and what to do, the process lives, the next query has a Spark."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from siltstone.host.user_cache import cache_folder

CLIENT = """
import sys
from siltstone import Lake, Unavailable

HUGE = "SELECT size(collect_list(repeat(cast(x AS STRING), 50000))) AS n FROM (SELECT explode(sequence(1, 50000)) x)"
with Lake.open(sys.argv[1]) as lake:
    print(lake.sql("SELECT 1 AS x").rows[0][0])
    for text in (HUGE, "SELECT 2 AS x", "SELECT 3 AS x"):
        try:
            print(lake.sql(text).rows[0][0])
        except Unavailable as error:
            print(error)
"""
TOLD = "The query needs more memory than Spark has"


@pytest.mark.deep
@pytest.mark.parametrize("shared", ["yes", "no"])
def test_a_query_that_takes_all_memory_is_told_what_to_do(tmp_path: Path, shared: str) -> None:
    cache = tmp_path / "cache" / "siltstone"
    cache.mkdir(parents=True)
    (cache / "jars").symlink_to(cache_folder() / "jars")
    settings = {
        "SPARK_SHARED": shared,
        "SPARK_MASTER": "local[2]",
        "SPARK_MEMORY_MB": "512",
        "SPARK_IDLE_MINUTES": "0.1",
    }
    environment = {
        **os.environ,
        **{f"SILT_{name}": value for name, value in settings.items()},
        "XDG_CACHE_HOME": str(cache.parent),
    }
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, str(tmp_path / "lake")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, huge, *after = done.stdout.splitlines()
    assert first == "1"
    assert huge.startswith(TOLD)
    assert "spark_memory_mb" in huge
    alive = [line.isdigit() for line in after]
    ended = [
        line.startswith("The JVM of this process's Spark session has ended because it ran out of memory")
        for line in after
    ]
    assert all(alive) or (shared == "no" and all(ended)), (
        after
    )  # of its own JVM a process may lose the only one it can have
    assert len(after) == 2
