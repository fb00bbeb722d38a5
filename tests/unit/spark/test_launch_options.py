import os
import subprocess
import sys
from collections import deque
from pathlib import Path

import pytest

from siltstone.clock import SystemClock
from siltstone.config import Settings
from siltstone.errors import Unavailable
from siltstone.host.user_cache import cache_folder
from siltstone.spark import jvm
from siltstone.spark.jars import coordinate, delta_jars
from siltstone.spark.launch_options import local_cores, options
from tests.support.internals import delete_old_archives
from tests.support.refusals import refused


def chosen(settings: Settings, *java_options: str) -> dict[str, str]:
    return options(
        settings,
        jars=[Path("/j/a.jar"), Path("/j/b.jar")],
        java_options=java_options,
        machine_mb=12_000,
        scratch=Path("/s"),
    )


def installation(folder: Path, name: str, version: str) -> Path:
    home = folder / name
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").touch(mode=0o755)
    (home / "release").write_text(f'JAVA_VERSION="{version}"\n')
    return home


def archive(folder: Path, name: str, *, complete: bool = True) -> Path:
    path = folder / name
    path.write_bytes((jvm.ARCHIVE_MAGIC if complete else bytes(4)) + b"classes")
    return path


@pytest.mark.parametrize(("machine_mb", "expected"), [(512, 1024), (3000, 1024), (12_000, 4000), (64_000, 8192)])
def test_driver_memory_is_a_third_of_the_machine_within_bounds(machine_mb: int, expected: int):
    assert jvm.fitted_memory_mb(machine_mb) == expected


def test_memory_that_is_set_wins_over_the_fitted():
    assert chosen(Settings())["spark.driver.memory"] == "4000m"
    assert chosen(Settings(spark_memory_mb=2048))["spark.driver.memory"] == "2048m"


@pytest.mark.parametrize(
    ("master", "cores"), [("local", 1), ("local[3]", 3), ("local[4,2]", 4), ("spark://host:7077", 0), ("yarn", 0)]
)
def test_cores_are_read_from_a_local_master(master: str, cores: int):
    assert local_cores(master) == cores


def test_a_local_master_gets_few_partitions_and_the_jars_in_its_class_path():
    local = chosen(Settings(spark_master="local[3]"))
    assert local["spark.sql.shuffle.partitions"] == "3"
    assert local["spark.driver.host"] == "127.0.0.1"
    assert local["spark.driver.extraClassPath"] == "/j/a.jar:/j/b.jar"
    assert "spark.jars" not in local


def test_a_cluster_gets_the_jars_shipped_and_keeps_its_own_partitions():
    cluster = chosen(Settings(spark_master="spark://host:7077"))
    assert cluster["spark.jars"] == "/j/a.jar,/j/b.jar"
    assert not {"spark.sql.shuffle.partitions", "spark.driver.host", "spark.driver.extraClassPath"} & set(cluster)


def test_settings_of_the_user_win():
    given = {"spark.sql.session.timeZone": "Asia/Tokyo", "spark.my.own": "1"}
    assert given.items() <= chosen(Settings(spark=given)).items()


def test_java_options_of_the_user_come_after_ours():
    given = {"spark.driver.extraJavaOptions": "-Dtheirs=1", "spark.driver.extraClassPath": "/theirs.jar"}
    both = chosen(Settings(spark=given, spark_master="local[1]"), "-Dours=1", "-Dspace=a b")
    assert both["spark.driver.extraJavaOptions"] == '-Djava.io.tmpdir=/s -Dours=1 "-Dspace=a b" -Dtheirs=1'
    assert both["spark.driver.extraClassPath"] == "/j/a.jar:/j/b.jar:/theirs.jar"


def test_files_that_are_missing_or_corrupt_are_never_skipped():
    assert chosen(Settings())["spark.sql.files.ignoreMissingFiles"] == "false"
    assert chosen(Settings())["spark.sql.files.ignoreCorruptFiles"] == "false"


def test_importing_the_session_module_does_not_import_pyspark():
    code = "import sys, siltstone.spark.session; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("jars", [[], ["delta-spark_4.2_2.13-4.4.0.jar"]])
def test_a_jars_folder_without_the_delta_jars_names_what_is_missing(tmp_path: Path, jars: list[str]):
    for jar in jars:
        (tmp_path / jar).touch()
    with refused(Unavailable, None, "delta-storage", "spark_jars"):
        delta_jars(Settings(spark_jars=str(tmp_path)))


def test_a_jars_folder_that_does_not_exist_is_unavailable(tmp_path: Path):
    with refused(Unavailable, None, "delta-spark", "delta-storage"):
        delta_jars(Settings(spark_jars=str(tmp_path / "nowhere")))


def test_a_jars_folder_is_taken_as_it_is(tmp_path: Path):
    names = ["delta-spark_4.2_2.13-4.4.0.jar", "delta-storage-4.4.0.jar", "other.jar"]
    for name in names:
        (tmp_path / name).touch()
    assert [jar.name for jar in delta_jars(Settings(spark_jars=str(tmp_path)))] == names


def test_the_delta_artifact_follows_the_minor_version_of_spark():
    assert coordinate("4.2.0") == "io.delta:delta-spark_4.2_2.13:4.4.0"


def test_the_cache_follows_xdg_cache_home():
    assert cache_folder({"XDG_CACHE_HOME": "/x"}) == Path("/x/siltstone")
    assert cache_folder({}) == Path.home() / ".cache" / "siltstone"


def test_java_home_is_taken_if_it_is_new_enough(tmp_path: Path):
    new = installation(tmp_path, "jdk-25", "25.0.1")
    installation(tmp_path, "jdk-17", "17.0.15")
    found = jvm.find_java({"JAVA_HOME": str(new), "PATH": ""}, [tmp_path])
    assert (found.home, found.major) == (new, 25)


def test_an_old_java_home_gives_way_to_a_17(tmp_path: Path):
    old = installation(tmp_path, "jdk-8", "1.8.0_402")
    installation(tmp_path, "jdk-25", "25.0.1")
    wanted = installation(tmp_path, "jdk-17", "17.0.15")
    installation(tmp_path, "jdk-21", "21.0.2")
    assert jvm.find_java({"JAVA_HOME": str(old), "PATH": ""}, [tmp_path]).home == wanted


def test_no_java_at_all_names_the_package_to_install(tmp_path: Path):
    installation(tmp_path, "jdk-11", "11.0.2")
    with pytest.raises(Unavailable, match="openjdk-17-jre-headless"):
        jvm.find_java({"PATH": ""}, [tmp_path])


def test_the_first_start_records_an_archive_under_a_name_of_its_own(tmp_path: Path):
    first, second = jvm.archive_options(tmp_path, "key"), jvm.archive_options(tmp_path, "key")
    assert first[0].startswith(f"-XX:ArchiveClassesAtExit={tmp_path}/key.")
    assert first != second


def test_a_complete_recording_is_promoted_and_used(tmp_path: Path):
    archive(tmp_path, "key.1.part")
    archive(tmp_path, "key.2.part")
    assert f"-XX:SharedArchiveFile={tmp_path}/key.jsa" in jvm.archive_options(tmp_path, "key")
    jvm.archive_options(tmp_path, "key")
    assert [path.name for path in tmp_path.iterdir()] == ["key.jsa"]


def test_a_recording_cut_short_is_never_used_and_goes_after_an_hour(tmp_path: Path):
    part = archive(tmp_path, "key.1.part", complete=False)
    assert jvm.archive_options(tmp_path, "key")[0].startswith("-XX:ArchiveClassesAtExit")
    assert part.exists()
    delete_old_archives(tmp_path, now_seconds=SystemClock().now().timestamp() + 2 * jvm.PARTIAL_KEPT_SECONDS)
    assert not part.exists()


def test_only_the_archives_used_last_are_kept(tmp_path: Path):
    for number in range(jvm.ARCHIVES_KEPT + 2):
        archive(tmp_path, f"{number}.jsa")
    jvm.archive_options(tmp_path, "0")
    assert len(list(tmp_path.glob("*.jsa"))) == jvm.ARCHIVES_KEPT


def test_no_archive_where_the_class_path_has_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HADOOP_CONF_DIR", "/somewhere")
    assert jvm.archive_options(tmp_path, "key") == []


def test_no_archive_where_the_cache_cannot_be_written(tmp_path: Path):
    (tmp_path / "file").touch()
    assert jvm.archive_options(tmp_path / "file" / "appcds", "key") == []


def test_standard_error_passes_everything_on_but_the_noise(capfd: pytest.CaptureFixture[str]):
    lines = "WARNING: Using incubator modules: jdk.incubator.vector\\nsomething real\\n"
    with jvm.filtered_stderr() as tail:
        child = subprocess.Popen([sys.executable, "-c", f"import sys; sys.stderr.write('{lines}')"])
    child.wait()
    wait_for_lines(tail, 1)
    assert list(tail) == ["something real"]
    assert capfd.readouterr().err == "something real\n"


WRITES_WHEN_ENDED = """
import signal, sys, time
def end(number, frame):
    sys.stderr.write("Exception in thread\\n")
    sys.exit(143)
signal.signal(signal.SIGTERM, end)
sys.stderr.write("ready\\n")
sys.stderr.flush()
time.sleep(60)
"""


def test_standard_error_of_an_ended_child_is_dropped(capfd: pytest.CaptureFixture[str]):
    earlier = jvm.children()
    with jvm.filtered_stderr() as tail:
        child = subprocess.Popen([sys.executable, "-c", WRITES_WHEN_ENDED])
    wait_for_lines(tail, 1)
    jvm.end_children(spared=earlier)
    child.wait()
    wait_for_lines(tail, 2)
    assert list(tail) == ["ready", "Exception in thread"]
    assert capfd.readouterr().err == "ready\n"


def test_a_process_that_ends_its_children_while_a_jvm_starts_still_writes(capfd: pytest.CaptureFixture[str]):
    """An interrupt reaches the main thread while another thread starts the JVM; the command reports it."""
    earlier = jvm.children()
    with jvm.filtered_stderr():
        jvm.end_children(spared=earlier)
        os.write(2, b"silt: Interrupted\n")
    os.write(2, b"and afterwards\n")
    assert capfd.readouterr().err == "silt: Interrupted\nand afterwards\n"


def test_a_command_still_reports_an_interrupt_if_a_jvm_starts_after_it(capfd: pytest.CaptureFixture[str]):
    jvm.end_children(spared=jvm.children())
    with jvm.filtered_stderr():
        jvm.restore_stderr()
        os.write(2, b"silt: Interrupted\n")
    assert capfd.readouterr().err == "silt: Interrupted\n"


def wait_for_lines(tail: "deque[str]", number: int) -> None:
    for _ in range(500):
        if len(tail) >= number:
            return
        SystemClock().sleep(0.02)
