"""Identity of the host: which processes share which ids."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from siltstone.coordination import host_identity
from tests.support.children import Child


@pytest.fixture
def ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that replaces the system's machine id."""
    monkeypatch.setattr(host_identity, "MACHINE_IDS", (tmp_path / "none", tmp_path / "id"))
    host_identity.installation.cache_clear()
    yield tmp_path / "id"
    host_identity.installation.cache_clear()


def test_an_installation_is_identified_by_the_systems_id_without_showing_it(ids: Path) -> None:
    ids.write_text("3d1219c7c4c5404aaa1f6d2a48adfda4\n")
    first = host_identity.installation()
    assert len(first) == 32
    assert "3d1219c7" not in first
    host_identity.installation.cache_clear()
    ids.write_text("another\n")
    assert host_identity.installation() != first


def test_without_a_system_id_an_installation_has_no_id(ids: Path) -> None:
    ids.write_text("")
    assert host_identity.installation() == ""


def name_of_process() -> list[str]:
    return [host_identity.machine(), host_identity.process_space(), host_identity.process_name()]


def test_processes_of_one_machine_share_its_name_and_none_has_the_name_of_another() -> None:
    other = Child("tests.unit.coordination.test_host_identity:name_of_process", {}).wait().value
    mine = name_of_process()
    assert other[:2] == mine[:2]
    assert other[2] != mine[2]
    assert mine[2].endswith(f"-{os.getpid()}")
