"""Spark runs out of memory in a query: the error has that reason, the process survives, the next query has a Spark."""

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
            print(error.reason, "spark_memory_mb" in str(error))
"""


@pytest.mark.deep
@pytest.mark.parametrize("shared", ["yes", "no"])
def test_a_query_that_takes_all_memory_fails_with_the_reason_memory(tmp_path: Path, shared: str) -> None:
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
    assert huge == "memory True"
    alive = [line.isdigit() for line in after]
    ended = [line == "memory True" for line in after]
    # A process without the shared server has a single JVM, which may have ended.
    assert all(alive) or (shared == "no" and all(ended)), after
    assert len(after) == 2
