"""Class archives that are recorded in advance; `tests/e2e/test_archives.py` checks the recording."""

from pathlib import Path

import pytest

from siltstone.cli import class_archives
from siltstone.cli.class_archives import RECORDERS, main, missing_kinds
from siltstone.config import Settings
from siltstone.errors import Unavailable
from siltstone.spark import jvm, launch_options
from siltstone.spark.jvm import Java
from tests.support.internals import class_archive

JAVA = Java(home=Path("/java"), version="17.0.1")


@pytest.fixture(autouse=True)
def _no_jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(launch_options, "delta_jars", lambda _: ())
    monkeypatch.setattr(class_archives, "find_java", lambda: JAVA)
    for name in ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)


def record(settings: Settings, kind: str) -> None:
    """Create the archive that a JVM of this kind records at its exit."""
    (option,) = class_archive(JAVA, settings, role=kind)
    Path(option.partition("=")[2]).write_bytes(jvm.ARCHIVE_MAGIC)


def test_an_existing_archive_is_not_recorded_again(capsys: pytest.CaptureFixture[str]):
    assert missing_kinds(Settings(), JAVA) == ["connect", "classic"]
    record(Settings(), "classic")
    assert missing_kinds(Settings(), JAVA) == ["connect"]
    record(Settings(), "connect")
    assert missing_kinds(Settings(), JAVA) == []
    main()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "settings", [Settings(spark_remote="sc://elsewhere"), Settings(spark_master="spark://elsewhere")]
)
def test_no_archive_is_recorded_for_a_remote_spark(settings: Settings):
    assert missing_kinds(settings, JAVA) == []


def test_errors_are_reported_and_fail_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    def fail(_settings: Settings, _java: Java) -> None:
        raise Unavailable("It did not work.")

    for kind in RECORDERS:
        monkeypatch.setitem(RECORDERS, kind, fail)
    main()
    assert capsys.readouterr().out
