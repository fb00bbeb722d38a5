"""Event logs in an object store: the same answers, many writers, crashes, and network errors."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from siltstone import failpoints
from siltstone.clock import SystemClock
from siltstone.config import Settings
from siltstone.delta import object_store_table
from siltstone.delta.object_store_table import ObjectTable
from siltstone.errors import CommitUnknown, Conflict, InvalidRequest, NotFound, Unavailable
from siltstone.eventlog.address import parse_address
from siltstone.eventlog.delta_backend import open_event_table
from siltstone.eventlog.events import event_json
from siltstone.eventlog.log import EventLog
from tests.support.appends import append_all
from tests.support.children import Child
from tests.support.histories import history, received
from tests.support.internals import checkpoint_objects, objects_of, table_objects
from tests.support.objects import CREDENTIALS, ObjectStore, object_store
from tests.support.refusals import refused as refuses

APPEND = "tests.support.appends:append_all"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("objects")) as running:
        yield running


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def uri(store: ObjectStore, tmp_path: Path) -> str:
    return store.log(f"logs/{tmp_path.name}")


def table(uri: str) -> ObjectTable:
    table = open_event_table(parse_address(uri), create=False, settings=Settings(), clock=SystemClock())
    assert isinstance(table, ObjectTable)
    return table


def texts(uri: str) -> list[str]:
    with EventLog.open(uri, create=False) as log:
        return [event_json(one.event) for one in log.events()]


def test_a_log_in_an_object_store_answers_like_any_other(uri: str, tmp_path: Path) -> None:
    with EventLog.open(uri) as there, EventLog.open("memory:") as here:
        for start in range(0, 200, 40):
            some = list(history(200, seed=3))[start : start + 40]
            assert there.append(*some) == here.append(*some)
        assert list(there.events()) == list(here.events())
        assert there.summary() == here.summary()
        assert there.builds() == here.builds()
        assert there.partitions() == here.partitions()
        with pytest.raises(Conflict):
            there.append(received(next(iter(here.builds())).build_request_id))
    assert (tmp_path / "cache").is_dir()  # the projection is local


def test_another_reader_without_a_projection_sees_the_same(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_all(uri, first=0, last=30, at_once=7)
    first = texts(uri)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    assert texts(uri) == first == [event_json(one) for one in history(30, seed=9)]


def test_four_writers_lose_no_event(uri: str) -> None:
    EventLog.open(uri).close()
    children = [
        Child("tests.support.appends:append_builds", {"uri": uri, "name": f"p{number}", "count": 10})
        for number in range(4)
    ]
    acknowledged = [index for child in children for index in child.wait(300).value]
    assert sorted(acknowledged) == list(range(1, 41))
    with EventLog.open(uri) as log:
        names = [one.event.build_request_id for one in log.events()]
    assert sorted(names) == sorted(f"p{number}-{at}" for number in range(4) for at in range(10))


def test_of_writers_that_append_the_same_transition_one_wins(uri: str) -> None:
    with EventLog.open(uri) as log:
        log.append(received())
    children = [Child("tests.support.appends:contest", {"uri": uri, "name": f"p{number}"}) for number in range(4)]
    assert sum(child.wait().value for child in children) == 1


@pytest.mark.parametrize(
    ("place", "there"), [("eventlog.after_stage", 0), ("commit.before_entry", 0), ("commit.after_entry", 20)]
)
def test_a_killed_append_is_complete_or_absent(uri: str, place: str, there: int) -> None:
    append_all(uri, first=0, last=10, at_once=10)
    arguments = {"uri": uri, "first": 10, "last": 30, "at_once": 20}
    outcome = Child(APPEND, arguments, failpoint=f"{place}:kill").wait()
    assert outcome.killed, outcome.stderr
    assert texts(uri) == [event_json(one) for one in history(10 + there, seed=9)]
    assert append_all(uri, first=10, last=30, at_once=20) == 20 - there


def test_after_its_entries_were_cleaned_a_log_is_read_from_its_files(
    uri: str, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_all(uri, first=0, last=30, at_once=5)
    there = table(uri)
    assert checkpoint_objects(there) is None
    there.close()
    folder = f"logs/{tmp_path.name}/_delta_log/"
    for name in store.names(folder):
        if name.endswith(".json") and not name.endswith("6.json"):
            store.delete(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    assert texts(uri) == [event_json(one) for one in history(30, seed=9)]
    assert append_all(uri, first=30, last=40, at_once=10) == 10


def test_a_checkpoint_is_written_after_some_commits(
    uri: str, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store_table, "CHECKPOINT_COMMITS", 3)
    append_all(uri, first=0, last=12, at_once=3)
    assert any("checkpoint" in name for name in store.names(f"logs/{tmp_path.name}/_delta_log/"))


def test_files_of_crashed_writers_are_swept_by_age(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import datetime

    append_all(uri, first=0, last=10, at_once=5)
    there = table(uri)
    table_objects(there).put("data/left-over.parquet", b"x")
    assert there.sweep() == 0
    monkeypatch.setattr(object_store_table, "SWEPT_AFTER", datetime.timedelta(seconds=-10))
    assert there.sweep() == 1
    there.close()
    assert len(texts(uri)) == 10


def test_a_lost_answer_is_commit_unknown_and_a_repeated_append_adds_no_event(uri: str) -> None:
    event = received("lost")
    with EventLog.open(uri) as log:
        log.append(received("first"))
        objects = objects_of(log)
        put = objects.put

        def lost(path: str, content: bytes, *, create_only: bool = False) -> None:
            put(path, content, create_only=create_only)
            if create_only:
                objects.get = fails
                raise OSError("the answer was lost")

        def fails(_path: str) -> bytes:
            raise OSError("no answer")

        objects.put = lost
        with pytest.raises(CommitUnknown):
            log.append(event)
    with EventLog.open(uri) as log:
        assert [one.is_new for one in log.append(event)] == [False]
        assert log.summary().events == 2


def test_a_retried_put_that_finds_its_own_entry_is_committed(uri: str) -> None:
    with EventLog.open(uri) as log:
        objects = objects_of(log)
        put = objects.put

        def twice(path: str, content: bytes, *, create_only: bool = False) -> None:
            put(path, content, create_only=create_only)
            if create_only:
                put(path, content, create_only=create_only)

        objects.put = twice
        assert [one.index for one in log.append(received("a"))] == [1]
        assert log.summary().events == 1


def test_a_retried_put_that_cannot_read_the_entry_leaves_its_files(uri: str) -> None:
    event = received("a")
    with EventLog.open(uri) as log:
        objects = objects_of(log)
        put = objects.put

        def twice(path: str, content: bytes, *, create_only: bool = False) -> None:
            put(path, content, create_only=create_only)
            if create_only:
                objects.get = refused
                put(path, content, create_only=create_only)

        def refused(_path: str) -> bytes:
            raise OSError("403 Forbidden")

        objects.put = twice
        with pytest.raises(CommitUnknown):
            log.append(event)
    assert texts(uri) == [event_json(event)]


def test_a_disk_that_fails_before_the_entry_changes_nothing(uri: str) -> None:
    with (
        EventLog.open(uri) as log,
        failpoints.arm("commit.before_entry", "raise"),
        pytest.raises(OSError, match="entry"),
    ):
        log.append(received("a"))
    assert texts(uri) == []


def test_a_store_out_of_reach_and_a_missing_log_are_errors(
    store: ObjectStore, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotFound):
        EventLog.open(uri, create=False)
    with pytest.raises(Unavailable):
        EventLog.open(uri.replace("//builds/", "//no-such-bucket/"))
    monkeypatch.setattr(object_store_table, "RETRIES", 0)
    monkeypatch.setattr(object_store_table, "TIMEOUT_SECONDS", 2)
    with pytest.raises(Unavailable):
        EventLog.open(uri.replace(f":{store.port}", ":1"))


def test_spark_refuses_logs_in_object_stores(uri: str) -> None:
    with EventLog.open(uri) as log, pytest.raises(InvalidRequest):
        log.read(None)  # type: ignore[arg-type]


def test_addresses_of_object_stores_are_validated() -> None:
    found = parse_address("delta+s3://bucket/a/b?region=eu-central-1&endpoint=http://127.0.0.1:9&allow_http=true")
    assert (found.bucket, found.path) == ("bucket", "a/b")
    assert found.options == {"aws_region": "eu-central-1", "aws_endpoint": "http://127.0.0.1:9", "allow_http": "true"}
    azure = parse_address("delta+azure://box/logs?account=ada")
    assert (azure.bucket, azure.path, azure.options) == ("box", "logs", {"azure_storage_account_name": "ada"})
    with refuses(InvalidRequest, None, "'aws_secret_access_key'", "delta"):
        parse_address("delta+s3://bucket/a?aws_secret_access_key=x")
    with pytest.raises(InvalidRequest, match="bucket"):
        parse_address("delta+s3://bucket")
