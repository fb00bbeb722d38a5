from pathlib import Path
from typing import Any

import pytest

from siltstone.config import CONFIG_FILE, Settings
from siltstone.errors import InvalidRequest


def load(lake: Path | None = None, environment: dict[str, str] | None = None, **given: object) -> Settings:
    return Settings.load(lake=lake, environment=environment or {}, **given)


def test_nothing_given_means_the_defaults():
    assert load() == Settings()


def test_an_argument_wins_over_the_environment_and_that_over_the_file(tmp_path: Path):
    (tmp_path / CONFIG_FILE).write_text("max_rows = 1\nupsert_rows = 1\ntarget_file_bytes = 1\n")
    settings = load(tmp_path, {"SILT_MAX_ROWS": "2", "SILT_UPSERT_ROWS": "2"}, max_rows=3)
    assert (settings.max_rows, settings.upsert_rows, settings.target_file_bytes) == (3, 2, 1)


def test_a_lake_without_a_file_has_the_defaults(tmp_path: Path):
    assert load(tmp_path) == Settings()


def test_text_is_brought_into_the_type_of_the_setting():
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
def test_a_cron_that_is_none_is_refused_by_the_name_of_its_setting(text: str):
    with pytest.raises(InvalidRequest, match=r"Setting 'fold_cron': '.*' is no cron expression"):
        load(environment={"SILT_FOLD_CRON": text})


def test_an_empty_cron_means_only_when_asked():
    assert load(environment={"SILT_FOLD_CRON": " "}).fold_cron == " "


def test_an_unknown_setting_is_refused_with_the_known_ones():
    with pytest.raises(InvalidRequest, match=r"Unknown setting 'max_row'.*max_rows"):
        load(max_row=1)


def test_an_unknown_setting_in_the_file_is_refused(tmp_path: Path):
    (tmp_path / CONFIG_FILE).write_text("colour = 1\n")
    with pytest.raises(InvalidRequest, match="colour"):
        load(tmp_path)


def test_a_broken_file_is_named(tmp_path: Path):
    (tmp_path / CONFIG_FILE).write_text("max_rows = \n")
    with pytest.raises(InvalidRequest, match=r"silt\.toml is not valid TOML"):
        load(tmp_path)


def test_spark_settings_are_flattened_from_nested_tables(tmp_path: Path):
    (tmp_path / CONFIG_FILE).write_text(
        '[spark]\nspark.sql.ansi.enabled = false\n"spark.driver.memory" = "2g"\n[spark.spark.ui]\nport = 4040\n'
    )
    assert load(tmp_path).spark == {
        "spark.sql.ansi.enabled": "false",
        "spark.driver.memory": "2g",
        "spark.ui.port": "4040",
    }


def test_spark_settings_must_be_a_table():
    with pytest.raises(InvalidRequest, match="takes a table"):
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
    ],
)
def test_numbers_that_make_no_sense_are_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=name):
        Settings.load(environment={}, **{name: value})  # type: ignore[arg-type]
