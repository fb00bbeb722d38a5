"""Appenders, tombstones, squashes and folds of a log at the same moment: nothing is lost, nothing is there twice."""

from pathlib import Path

import pytest

from siltstone.storage.connect import ConnectServer
from tests.support.children import Child, Worker
from tests.support.log_actors import COUNTED, FORGOTTEN, count_of, make, names_of

ACTORS = "tests.support.log_actors"
WRITERS = 3
SECONDS = 5.0


@pytest.mark.spark
def test_appenders_beside_folds_lose_and_double_nothing(lake_path: Path, worker: Worker, connect_server: ConnectServer):
    make(str(lake_path))
    writers = [
        Child(f"{ACTORS}:append_for", {"path": str(lake_path), "writer": writer, "seconds": SECONDS})
        for writer in range(WRITERS)
    ]
    folder = Child(f"{ACTORS}:fold_for", {"path": str(lake_path), "seconds": SECONDS}, remote=connect_server.address)
    appended = [writer.value() for writer in writers]
    folds = folder.value()

    assert folds >= 1
    assert all(found[COUNTED] > 0 for found in appended)
    assert count_of(str(lake_path)) == sum(found[COUNTED] for found in appended)
    worker.call(f"{ACTORS}:fold_once", path=str(lake_path))
    assert count_of(str(lake_path)) == sum(found[COUNTED] for found in appended)
    shown = names_of(str(lake_path))
    assert len(shown) == len(set(shown))
    assert not {name for found in appended for name in found[FORGOTTEN]} & set(shown)
