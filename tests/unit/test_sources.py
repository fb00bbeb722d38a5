from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siltstone.dataset.sources import Format, _check_names, _check_type, _csv_header, _fits, find_source
from siltstone.errors import InvalidRequest, NotFound

SCHEMA = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("n", pa.int64())])


def make(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")


def found(*paths: str | Path, format_name: str | None = None) -> list[str]:
    return [file.name for file in find_source(list(paths), format_name=format_name).files]


# ---- finding ---------------------------------------------------------------------------------------------------------


def test_a_file_a_folder_and_a_glob_are_sources(tmp_path: Path):
    make(tmp_path, "a.parquet", "b.parquet", "sub/c.parquet")
    assert found(tmp_path / "a.parquet") == ["a.parquet"]
    assert found(str(tmp_path / "a.parquet")) == ["a.parquet"]
    assert found(tmp_path) == ["a.parquet", "b.parquet", "c.parquet"]
    assert found(f"{tmp_path}/*.parquet") == ["a.parquet", "b.parquet"]
    assert found(f"{tmp_path}/**/*.parquet") == ["a.parquet", "b.parquet", "c.parquet"]
    assert found(f"{tmp_path}/s*") == ["c.parquet"]


def test_a_file_that_is_named_twice_is_loaded_once(tmp_path: Path):
    make(tmp_path, "a.csv", "b.csv")
    assert found(tmp_path / "a.csv", tmp_path, f"{tmp_path}/*.csv") == ["a.csv", "b.csv"]


def test_side_files_in_a_folder_are_left_out(tmp_path: Path):
    make(tmp_path, "a.parquet", "_SUCCESS", ".a.parquet.crc", "_temporary/0/b.parquet", ".hidden/c.parquet")
    assert found(tmp_path) == ["a.parquet"]


def test_a_folder_below_a_hidden_one_is_still_a_source(tmp_path: Path):
    make(tmp_path / "_system" / "in", "a.csv")
    assert found(tmp_path / "_system" / "in") == ["a.csv"]


def test_sizes_are_added_up(tmp_path: Path):
    make(tmp_path, "a.csv", "b.csv")
    assert find_source(tmp_path).size_bytes == 2


@pytest.mark.parametrize("name", ["nothing", "nothing.parquet", "*.parquet", "empty"])
def test_a_path_without_files_is_not_found_by_name(tmp_path: Path, name: str):
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound, match="No files to load"):
        find_source(tmp_path / name)


def test_one_path_without_files_fails_the_whole_load(tmp_path: Path):
    make(tmp_path, "a.csv")
    with pytest.raises(NotFound, match="nothing"):
        find_source([tmp_path / "a.csv", tmp_path / "nothing"])


def test_a_name_with_brackets_is_a_name_if_there_is_such_a_file(tmp_path: Path):
    make(tmp_path, "a[1].csv")
    assert found(tmp_path / "a[1].csv") == ["a[1].csv"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.parquet", Format.PARQUET),
        ("a.PARQUET", Format.PARQUET),
        ("a.pq", Format.PARQUET),
        ("a.csv", Format.CSV),
        ("a.CSV", Format.CSV),
    ],
)
def test_the_name_tells_the_format(tmp_path: Path, name: str, expected: Format):
    make(tmp_path, name)
    assert find_source(tmp_path / name).format is expected


@pytest.mark.parametrize("name", ["a.txt", "a", "a.xlsx", "a.csv.gz"])
def test_a_name_that_does_not_tell_needs_the_format(tmp_path: Path, name: str):
    make(tmp_path, name)
    with pytest.raises(InvalidRequest, match=r"say it \(--format or format=\)"):
        find_source(tmp_path / name)
    assert find_source(tmp_path / name, format_name="csv").format is Format.CSV


def test_an_unknown_format_is_refused_with_those_there_are(tmp_path: Path):
    make(tmp_path, "a.csv")
    with pytest.raises(InvalidRequest, match="parquet, csv"):
        find_source(tmp_path / "a.csv", format_name="excel")


def test_formats_are_not_mixed(tmp_path: Path):
    make(tmp_path, "a.csv", "b.parquet")
    with pytest.raises(InvalidRequest, match="several formats"):
        find_source(tmp_path)


def test_a_load_has_a_bounded_number_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("siltstone.dataset.sources.MAX_FILES", 2)
    make(tmp_path, "a.csv", "b.csv", "c.csv")
    with pytest.raises(InvalidRequest, match="too many"):
        find_source(tmp_path)


# ---- columns ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "match"),
    [
        (["id", "zip"], "'zip'"),
        (["id", "n", "n"], "twice"),
        (["n"], "lacks column 'id'"),
        ([], "lacks column 'id'"),
        (["ID"], "'ID'"),
    ],
)
def test_a_file_with_other_columns_is_refused_by_its_name(tmp_path: Path, names: list[str], match: str):
    file = tmp_path / "a.csv"
    with pytest.raises(InvalidRequest, match=match) as caught:
        _check_names(file, names, SCHEMA, "a.b.c")
    assert str(file) in str(caught.value)
    assert "Nothing was loaded" in str(caught.value)


@pytest.mark.parametrize("names", [["id", "n"], ["n", "id"], ["id"]])
def test_order_does_not_matter_and_nullable_columns_may_be_missing(tmp_path: Path, names: list[str]):
    _check_names(tmp_path / "a.csv", names, SCHEMA, "a.b.c")


def test_a_csv_header_may_start_with_a_byte_order_mark_and_hold_quotes(tmp_path: Path):
    (tmp_path / "a.csv").write_bytes(b'\xef\xbb\xbfid,"a, b",n\r\n1,2,3\r\n')
    assert _csv_header(tmp_path / "a.csv") == ["id", "a, b", "n"]


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00i\x00d"])
def test_a_csv_file_that_is_none_is_refused_by_name(tmp_path: Path, content: bytes):
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(InvalidRequest, match=r"a\.csv"):
        _csv_header(tmp_path / "a.csv")


# ---- types -----------------------------------------------------------------------------------------------------------

UTC = pa.timestamp("us", tz="UTC")
FITS = [
    (pa.string(), pa.string()),
    (pa.large_string(), pa.string()),
    (pa.large_binary(), pa.binary()),
    (pa.dictionary(pa.int32(), pa.string()), pa.string()),
    (pa.int8(), pa.int64()),
    (pa.int32(), pa.int64()),
    (pa.float32(), pa.float64()),
    (pa.timestamp("ms", tz="UTC"), UTC),
    (pa.timestamp("us", tz="Europe/Berlin"), UTC),
    (pa.timestamp("ms"), pa.timestamp("us")),
    (pa.list_(pa.int32()), pa.list_(pa.int64())),
    (pa.struct([pa.field("x", pa.int8())]), pa.struct([pa.field("x", pa.int16())])),
    (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64())),
]
MISFITS = [
    (pa.int64(), pa.int32()),
    (pa.int64(), pa.string()),
    (pa.string(), pa.int64()),
    (pa.int64(), pa.float64()),
    (pa.float64(), pa.float32()),
    (pa.float64(), pa.int64()),
    (pa.bool_(), pa.int8()),
    (pa.binary(), pa.string()),
    (pa.large_binary(), pa.string()),
    (pa.timestamp("ns"), pa.timestamp("us")),
    (pa.timestamp("ns", tz="UTC"), UTC),
    (pa.timestamp("us"), UTC),
    (UTC, pa.timestamp("us")),
    (pa.date32(), UTC),
    (pa.decimal128(10, 2), pa.decimal128(10, 3)),
    (pa.list_(pa.int64()), pa.list_(pa.int32())),
    (pa.list_(pa.int64()), pa.int64()),
    (pa.struct([pa.field("x", pa.int64())]), pa.struct([pa.field("y", pa.int64())])),
]


@pytest.mark.parametrize(("given", "wanted"), FITS, ids=str)
def test_a_type_that_only_widens_fits(given: pa.DataType, wanted: pa.DataType):
    assert _fits(given, wanted)


@pytest.mark.parametrize(("given", "wanted"), MISFITS, ids=str)
def test_a_type_that_would_have_to_be_cast_with_loss_is_refused_by_file_and_column(
    tmp_path: Path, given: pa.DataType, wanted: pa.DataType
):
    with pytest.raises(InvalidRequest, match="column 'c'") as caught:
        _check_type(tmp_path / "a.parquet", pa.field("c", given), pa.field("c", wanted), "a.b.c")
    assert "a.parquet" in str(caught.value)


def test_what_pandas_writes_by_default_is_told_apart_from_what_fits(tmp_path: Path):
    """Its times count nanoseconds; the error says so before Spark starts."""
    rows = pa.table({"at": pa.array([0], pa.timestamp("ns"))})
    pq.write_table(rows, tmp_path / "a.parquet", version="2.6")
    field = pq.read_schema(tmp_path / "a.parquet").field("at")
    with pytest.raises(InvalidRequest, match="Cast it before loading"):
        _check_type(tmp_path / "a.parquet", field, pa.field("at", pa.timestamp("us")), "a.b.c")
