"""`make setup` records class archives, and later JVMs use them."""

from pathlib import Path

import pytest

from siltstone.cli.class_archives import main, missing_kinds
from siltstone.config import Settings
from siltstone.host.user_cache import cache_folder
from siltstone.spark.jvm import find_java

pytestmark = pytest.mark.spark


@pytest.mark.deep
def test_both_kinds_of_class_archives_are_recorded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    jars = cache_folder() / "jars"
    (tmp_path / "siltstone").mkdir()
    (tmp_path / "siltstone" / "jars").symlink_to(jars)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert missing_kinds(Settings(), find_java()) == ["connect", "classic"]
    main()
    assert capfd.readouterr().out, "the reason of the wait is shown"
    assert missing_kinds(Settings(), find_java()) == []
    assert len(list((tmp_path / "siltstone" / "appcds").glob("*.jsa"))) == 2
