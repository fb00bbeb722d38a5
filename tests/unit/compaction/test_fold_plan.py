import pytest

from siltstone.compaction.operations.fold_plan import (
    MANY_SMALL_FILES,
    SMALL_FILE_SHARE,
    FoldPlan,
    Matched,
    touched_files,
)
from siltstone.model.commit import CommitKind
from siltstone.model.files import DataFile, KeyRange, may_contain

TARGET = 800
LARGE, SMALL = TARGET // SMALL_FILE_SHARE, TARGET // SMALL_FILE_SHARE - 1


def files(count: int, size: int, *, prefix: str = "f") -> list[DataFile]:
    return [DataFile(path=f"{prefix}{number:02d}", size_bytes=size, rows=10) for number in range(count)]


def touched(given: list[DataFile], *matched: str, new_rows: int = 0) -> list[str]:
    found = touched_files(
        given, {path: Matched(replaced=1) for path in matched}, new_rows=new_rows, target_bytes=TARGET
    )
    return [file.path for file in found]


def test_only_files_with_matched_rows_are_rewritten():
    assert touched(files(3, LARGE), "f01") == ["f01"]
    assert touched(files(3, LARGE)) == []


def test_new_rows_alone_touch_no_large_file():
    assert touched(files(20, LARGE), new_rows=5) == []


def test_small_files_are_rewritten_too_once_there_are_many_and_rows_are_added():
    assert touched(files(MANY_SMALL_FILES - 1, SMALL), new_rows=1) == []
    assert touched(files(MANY_SMALL_FILES, SMALL), new_rows=1) == [file.path for file in files(MANY_SMALL_FILES, SMALL)]
    assert touched(files(MANY_SMALL_FILES, SMALL), new_rows=0) == []


def test_large_files_are_left_out_when_small_ones_are_rewritten_too():
    mixed = files(MANY_SMALL_FILES, SMALL) + files(3, LARGE, prefix="large")
    assert touched(mixed, "large01", new_rows=1) == [*[file.path for file in files(MANY_SMALL_FILES, SMALL)], "large01"]


def test_the_order_does_not_depend_on_the_listing():
    given = files(5, LARGE)
    assert touched(given[::-1], "f03", "f01") == touched(given, "f01", "f03") == ["f01", "f03"]


@pytest.mark.parametrize(
    ("low", "high", "keys", "expected"),
    [
        (3, 5, [], False),
        (3, 5, [1, 2], False),
        (3, 5, [6], False),
        (3, 5, [3], True),
        (3, 5, [5], True),
        (3, 5, [1, 4, 9], True),
        (3, 3, [3], True),
        (None, None, [1], True),
        (None, 5, [9], True),
        (3, None, [1], True),
        (None, None, [], False),
        ("b", "d", ["a", "e"], False),
        ("b", "d", ["a", "c"], True),
    ],
)
def test_a_file_may_contain_a_key_in_its_range_and_an_unknown_range_may_contain_any(
    low: object, high: object, keys: list[object], *, expected: bool
):
    assert may_contain(KeyRange(low, high), keys) is expected


def plan(*, upserts: int, replaced: int, dropped: int) -> FoldPlan:
    return FoldPlan(
        base_version=1,
        watermark=0,
        target=3,
        epoch=0,
        touched=tuple(files(2, LARGE)),
        batches=1,
        change_rows=9,
        upserts=upserts,
        tombstones=2,
        replaced=replaced,
        dropped=dropped,
        base_rows=100,
        base_bytes=1,
    )


def test_a_plan_has_the_exact_number_of_resulting_rows():
    found = plan(upserts=5, replaced=3, dropped=2)
    assert (found.new_rows, found.expected_rows, found.final_rows) == (2, 20 - 2 + 2, 100 - 2 + 2)


def test_a_plan_that_drops_everything_it_touches_writes_nothing():
    assert plan(upserts=0, replaced=0, dropped=20).expected_rows == 0


def test_kinds_of_commits_say_what_they_are():
    movers = {kind for kind in CommitKind if kind.moves_rows_only}
    assert movers == {CommitKind.PRUNE, CommitKind.SQUASH, CommitKind.ROLL_UP, CommitKind.CLUSTER}
    blind = {kind for kind in CommitKind if not kind.is_compaction}
    assert blind >= {CommitKind.APPEND, CommitKind.REGISTER}
    assert not blind & {CommitKind.FOLD, CommitKind.FIRST_LOAD, *movers}
