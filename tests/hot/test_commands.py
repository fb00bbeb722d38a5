"""silt cache, and the effect of its directives in a long-running process."""

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from siltstone import Dataset, InvalidRequest, Lake, Settings
from siltstone.config import Role
from siltstone.coordination.host_identity import machine, process_space
from siltstone.delta.layout import Layout
from siltstone.query.hot import NotResident
from siltstone.query.hot.directives import CacheDirective, DirectiveStore
from tests.e2e.silt import silt
from tests.support.hot import ask
from tests.support.internals import clock_of
from tests.support.people import NAME, create, people

SETTINGS = Settings(durable=False)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with Lake.open(tmp_path / "lake", settings=SETTINGS) as opened:
        yield opened


@pytest.fixture
def dataset(lake: Lake) -> Dataset:
    made = create(lake)
    made.upsert(people(100))
    return made


def until(true: Callable[[], bool]) -> None:
    for _ in range(3000):
        if true():
            return
        threading.Event().wait(0.02)
    raise AssertionError("not true in time")


def is_answered_hot(lake: Lake) -> bool:
    """Run a query, which also makes a process read its directives; return whether the hot engine answered."""
    try:
        return bool(ask(lake, NAME, "SELECT count(*) FROM {t}") == 100)
    except NotResident:
        return False


@pytest.mark.usefixtures("dataset")
def test_a_pin_is_honoured_by_processes_that_run_and_by_those_that_start_later(lake: Lake) -> None:
    assert not is_answered_hot(lake)
    [entry] = silt("--lake", str(lake.path), "--json", "cache", "pin", NAME).data
    assert (entry["dataset"], entry["pinned"], entry["fits"]) == (NAME, True, True)
    until(lambda: is_answered_hot(lake))
    assert lake.hot.stats().entries[0].pinned
    with Lake.open(lake.path, settings=SETTINGS) as later:
        until(lambda: is_answered_hot(later))
        silt("--lake", str(lake.path), "cache", "evict", NAME)
        until(lambda: not is_answered_hot(later))
        assert not later.hot.stats().entries[0].pinned
    until(lambda: not is_answered_hot(lake))


@pytest.mark.usefixtures("dataset")
def test_a_warming_is_measured_and_done_by_processes_that_run_only(lake: Lake) -> None:
    assert not is_answered_hot(lake)
    [entry] = silt("--lake", str(lake.path), "--json", "cache", "warm", NAME).data
    assert entry["rows"] == 100
    assert entry["bytes"] > 0
    until(lambda: is_answered_hot(lake))
    with Lake.open(lake.path, settings=SETTINGS) as later:
        for _ in range(3):
            assert not is_answered_hot(later)


@pytest.mark.usefixtures("dataset")
def test_an_eviction_beside_the_first_look_at_directives_is_followed(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, looking, go_on = DirectiveStore.readable, threading.Event(), threading.Event()

    def slow(directives: DirectiveStore) -> list[CacheDirective]:
        read = real(directives)
        if not looking.is_set():
            looking.set()
            assert go_on.wait(60)
        return read

    lake.cache_directives.pin(NAME)
    monkeypatch.setattr(DirectiveStore, "readable", slow)
    first = threading.Thread(target=is_answered_hot, args=(lake,))
    first.start()
    assert looking.wait(60)
    lake.cache_directives.evict(NAME)
    second = threading.Thread(target=is_answered_hot, args=(lake,))
    second.start()
    second.join(0.5)
    go_on.set()
    first.join()
    second.join()
    until(lambda: not is_answered_hot(lake) and not lake.hot.stats().entries[0].pinned)


@pytest.mark.usefixtures("dataset")
def test_measuring_sends_no_directive_to_other_processes(lake: Lake) -> None:
    silt("--lake", str(lake.path), "cache", "warm", NAME, "--measure")
    assert lake.cache_directives.all() == []


@pytest.mark.usefixtures("dataset")
def test_stats_show_whether_datasets_fit_and_the_residents_of_each_process(lake: Lake) -> None:
    lake.hot.pin(NAME)
    assert is_answered_hot(lake)
    until(lambda: bool(lake.cache_directives.process_stats()))
    found = silt("--lake", str(lake.path), "--json", "cache", "stats").data
    [outlook] = found["datasets"]
    assert (outlook["dataset"], outlook["rows_at_most"], outlook["fits"], outlook["pinned"]) == (NAME, 100, True, False)
    [process] = found["processes"]
    assert process["pid"] == os.getpid()
    assert process["datasets"][0]["rows"] == 100
    shown = silt("--lake", str(lake.path), "cache", "stats").out
    assert NAME in shown
    assert f"Process {os.getpid()}" in shown


@pytest.mark.usefixtures("dataset")
def test_a_process_that_closes_its_lake_deletes_its_status_file(tmp_path: Path) -> None:
    with Lake.open(tmp_path / "lake", settings=SETTINGS) as short:
        short.hot.fill(NAME)
        assert is_answered_hot(short)
        until(lambda: bool(short.cache_directives.process_stats()))
    assert short.cache_directives.process_stats() == []


def test_status_files_of_dead_processes_are_deleted_and_those_of_other_machines_stay(
    lake: Lake, dataset: Dataset
) -> None:
    folder = dataset.path.parents[3] / "_system" / "hot" / "processes"
    folder.mkdir(parents=True)
    dead: dict[str, Any] = {"pid": 999999999, "host": socket.gethostname(), "machine": machine(), "datasets": []}
    (folder / "dead.json").write_text(json.dumps(dead | {"space": process_space()}))
    (folder / "elsewhere.json").write_text(json.dumps(dead | {"space": "a container", "pid": 1}))
    (folder / "same-name.json").write_text(json.dumps(dead | {"machine": "another boot", "installation": "another"}))
    assert len(lake.cache_directives.process_stats()) == 2, (
        "a host name and a process id say nothing of another machine"
    )
    assert {path.name for path in folder.iterdir()} == {"elsewhere.json", "same-name.json"}


def test_status_files_of_an_older_version_are_deleted_after_a_day_without_an_update(
    lake: Lake, dataset: Dataset
) -> None:
    folder = dataset.path.parents[3] / "_system" / "hot" / "processes"
    folder.mkdir(parents=True)
    now = clock_of(lake).now()
    for name, at in {"old": now - timedelta(hours=25), "new": now - timedelta(hours=23)}.items():
        note = {"pid": 999999999, "host": socket.gethostname(), "datasets": [], "at": at.isoformat()}
        (folder / f"{name}.json").write_text(json.dumps(note))
    assert len(lake.cache_directives.process_stats()) == 1
    assert [path.name for path in folder.iterdir()] == ["new.json"]


@pytest.mark.usefixtures("dataset")
def test_bad_calls_are_refused_and_leave_no_directive(lake: Lake) -> None:
    for command in ("pin", "evict", "warm"):
        result = silt("--lake", str(lake.path), "--json", "cache", command, NAME, "crm.sales.none")
        assert (result.code, result.error["kind"]) == (3, "not_found")
    assert lake.cache_directives.all() == []
    reader = DirectiveStore(Layout.at(lake.path), settings=Settings(role=Role.READER), clock=clock_of(lake))
    with pytest.raises(InvalidRequest, match="reader"):
        reader.pin(NAME)


@pytest.mark.usefixtures("dataset")
def test_a_dataset_that_does_not_fit_is_refused_by_warm_and_named_by_pin(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    from siltstone.query.hot import fill

    monkeypatch.setattr(fill, "BLOCK_BYTES", 2**50)
    result = silt("--lake", str(lake.path), "--json", "cache", "warm", NAME)
    assert (result.code, result.error["kind"]) == (5, "unavailable")
    assert NAME in result.error["message"]
    assert NAME in silt("--lake", str(lake.path), "cache", "pin", NAME).out


@pytest.mark.usefixtures("dataset")
def test_a_process_that_ends_at_once_fills_nothing_after_answers(tmp_path: Path) -> None:
    with Lake.open(tmp_path / "lake", settings=SETTINGS, long_running=False) as short:
        assert short.hot.want(NAME).admitted
        threading.Event().wait(0.3)
        assert not short.hot.decide(NAME).resident


def test_a_damaged_directive_does_not_affect_queries(lake: Lake, dataset: Dataset) -> None:
    folder = dataset.path.parents[3] / "_system" / "hot" / "directives"
    folder.mkdir(parents=True)
    (folder / f"{NAME}.json").write_text("{")
    lake.hot.fill(NAME)
    assert is_answered_hot(lake)
    assert is_answered_hot(lake)
