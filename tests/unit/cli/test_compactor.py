"""`silt compactor run --once`: early ends of the one cycle."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from siltstone.cli.signals import INTERRUPTED
from tests.support.internals import run_once
from tests.support.maintenance import WAIT_SECONDS, filled, lake_of, slow_lake, until


def test_a_stop_request_of_another_process_ends_the_one_cycle(tmp_path: Path):
    lake, slow = slow_lake(tmp_path / "lake")
    filled(lake)
    service = lake.compactor(continuous=False)
    with ThreadPoolExecutor(2) as pool:
        with service:
            code = pool.submit(run_once, service)
            until(slow.began.is_set)
            stopped = pool.submit(lake_of(tmp_path / "lake").stop_compactor, seconds=WAIT_SECONDS)
            try:
                assert code.result(WAIT_SECONDS) == INTERRUPTED
            finally:
                slow.go_on.set()
        assert stopped.result(WAIT_SECONDS) is None
