import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from siltstone.config import CONFIG_FILE, LAKE_SETTINGS, JobPlace, Role, Settings, SettingScope, scope_of
from siltstone.errors import InvalidRequest, Unavailable
from tests.support.refusals import refused


def load(lake: Path | None = None, environment: dict[str, str] | None = None, **given: object) -> Settings:
    return Settings.load(lake=lake, environment=environment or {}, **given)


def user(folder: Path, text: str) -> dict[str, str]:
    """Write a user's own file, and return the environment that leads to it."""
    path = folder / "config" / "siltstone" / CONFIG_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o600)
    return {"XDG_CONFIG_HOME": str(folder / "config")}


def test_nothing_given_means_the_defaults():
    assert load() == Settings()


def test_an_argument_wins_over_the_environment_and_that_over_the_file(tmp_path: Path):
    (tmp_path / CONFIG_FILE).write_text("fold_batches = 1\nsquash_files = 1\ntarget_file_bytes = 1\n")
    settings = load(tmp_path, {"SILT_FOLD_BATCHES": "2", "SILT_SQUASH_FILES": "2"}, fold_batches=3)
    assert (settings.fold_batches, settings.squash_files, settings.target_file_bytes) == (3, 2, 1)


def test_the_file_of_a_lake_wins_over_that_of_the_user_and_that_over_the_default(tmp_path: Path):
    (tmp_path / CONFIG_FILE).write_text("fold_batches = 1\n")
    settings = load(tmp_path, user(tmp_path, "fold_batches = 2\nsquash_files = 2\nspark_memory_mb = 2\n"))
    assert (settings.fold_batches, settings.squash_files, settings.spark_memory_mb) == (1, 2, 2)


def test_the_file_of_the_user_is_found_below_the_home_folder(tmp_path: Path):
    user(tmp_path, "max_rows = 7\n")
    (tmp_path / "config").rename(tmp_path / ".config")
    assert load(environment={"HOME": str(tmp_path)}).max_rows == 7
    assert load(environment={"HOME": str(tmp_path), "XDG_CONFIG_HOME": "relative"}).max_rows == 7


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_of_the_user_that_others_can_write_is_refused(tmp_path: Path, mode: int):
    environment = user(tmp_path, "max_rows = 7\n")
    (tmp_path / "config" / "siltstone" / CONFIG_FILE).chmod(mode)
    with refused(Unavailable, None, "chmod 600"):
        load(environment=environment)


@pytest.mark.parametrize("name", sorted({field.name for field in fields(Settings)} - LAKE_SETTINGS))
def test_the_file_of_a_lake_must_not_hold_a_setting_of_the_user(tmp_path: Path, name: str):
    (tmp_path / CONFIG_FILE).write_text(f'{name} = "anything"\ndurable = false\n')
    with refused(InvalidRequest, None, "silt.toml", f" {name}."):
        load(tmp_path)


def test_a_lake_cannot_choose_what_java_runs_whatever_the_table_looks_like(tmp_path: Path):
    for text in ('[spark]\n"spark.driver.extraJavaOptions" = "-javaagent:x.jar"\n', "spark.spark.plugins = 'x'\n"):
        (tmp_path / CONFIG_FILE).write_text(text)
        with pytest.raises(InvalidRequest, match="spark"):
            load(tmp_path)


def test_every_setting_of_a_lake_is_a_setting():
    assert {field.name for field in fields(Settings)} >= LAKE_SETTINGS
    assert scope_of("a setting that does not exist yet") is SettingScope.USER


def test_a_lake_without_a_file_has_the_defaults(tmp_path: Path):
    assert load(tmp_path) == Settings()


def test_text_is_converted_to_the_type_of_the_setting():
    settings = load(environment={"SILT_DURABLE": "no", "SILT_VACUUM_FLOOR_HOURS": "2.5", "SILT_MAX_ROWS": "7"})
    assert (settings.durable, settings.vacuum_floor_hours, settings.max_rows) == (False, 2.5, 7)


@pytest.mark.parametrize("text", ["1", "true", "Yes", " ON "])
def test_yes_has_several_spellings(text: str):
    assert load(environment={"SILT_SPARK_SHORT_RUN": text}).spark_short_run is True


@pytest.mark.parametrize(
    ("name", "value"), [("durable", "perhaps"), ("max_rows", "many"), ("max_rows", -1), ("vacuum_floor_hours", None)]
)
def test_a_value_that_does_not_fit_is_refused_by_name(name: str, value: Any):  # noqa: ANN401
    with pytest.raises(InvalidRequest, match=name):
        load(**{name: value})


@pytest.mark.parametrize("text", ["61 * * * *", "* * *", "often"])
def test_an_invalid_cron_is_refused_by_the_name_of_its_setting(text: str):
    with pytest.raises(InvalidRequest, match="'fold_cron'"):
        load(environment={"SILT_FOLD_CRON": text})


def test_an_empty_cron_means_only_on_request():
    assert load(environment={"SILT_FOLD_CRON": " "}).fold_cron == " "


def test_an_unknown_setting_is_refused_with_the_known_ones():
    with pytest.raises(InvalidRequest, match=r"'max_row'.*max_rows"):
        load(max_row=1)


def test_an_unknown_setting_in_the_file_is_refused(tmp_path: Path):
    (tmp_path / CONFIG_FILE).write_text("colour = 1\n")
    with refused(InvalidRequest, None, str(tmp_path / CONFIG_FILE), "colour"):
        load(tmp_path)


def test_a_wrong_value_is_refused_with_its_file_or_variable(tmp_path: Path):
    (tmp_path / CONFIG_FILE).write_text('fold_batches = "many"\n')
    with refused(InvalidRequest, None, str(tmp_path / CONFIG_FILE), "fold_batches", "many"):
        load(tmp_path)
    assert load(tmp_path, fold_batches=3).fold_batches == 3
    with refused(InvalidRequest, None, "SILT_FOLD_BATCHES", "few"):
        load(environment={"SILT_FOLD_BATCHES": "few"})


@pytest.mark.parametrize("text", ["max_rows = \n", "max_rows = " + "[" * 100_000])
def test_a_broken_file_is_named(tmp_path: Path, text: str):
    (tmp_path / CONFIG_FILE).write_text(text)
    with refused(InvalidRequest, None, "silt.toml", "TOML"):
        load(tmp_path)


def test_spark_settings_are_flattened_from_nested_tables(tmp_path: Path):
    environment = user(
        tmp_path,
        '[spark]\nspark.sql.ansi.enabled = false\n"spark.driver.memory" = "2g"\n[spark.spark.ui]\nport = 4040\n',
    )
    assert load(environment=environment).spark == {
        "spark.sql.ansi.enabled": "false",
        "spark.driver.memory": "2g",
        "spark.ui.port": "4040",
    }


def test_spark_settings_must_be_a_table():
    with pytest.raises(InvalidRequest):
        load(spark="fast")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("checkpoint_interval_commits", "0"),
        ("writer_queue_batches", 0),
        ("base_retention_hours", "inf"),
        ("base_retention_hours", "1e300"),
        ("changes_retention_hours", "nan"),
        ("checkpoint_interval_commits", 2.7),
        ("checkpoint_interval_commits", float("inf")),
        ("checkpoint_interval_commits", float("nan")),
    ],
)
def test_numbers_that_make_no_sense_are_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=name):
        Settings.load(environment={}, **{name: value})  # type: ignore[arg-type]


def test_settings_reach_another_process_as_they_are():
    given = Settings(job_minutes=math.inf, lease_seconds=0.5, role=Role.READER, jobs=JobPlace.INLINE, spark={"a": "1"})
    received = Settings.from_plain(json.loads(json.dumps(given.plain())))
    assert received == given
    assert (type(received.role), type(received.jobs)) == (Role, JobPlace)
