from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siltstone.dataset.load.file_formats import BadContent, check_files, csv_header
from siltstone.dataset.load.schema_inference import columns_of
from siltstone.dataset.load.source_files import Format, find_source, partition_of, partition_value
from siltstone.dataset.schema_compat import check_names, check_type, fits
from siltstone.errors import InvalidRequest, NotFound
from tests.support.refusals import refused

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


@pytest.mark.parametrize("name", ["nothing", "nothing.parquet", "*.parquet", "empty"])
def test_a_path_without_files_is_not_found_by_name(tmp_path: Path, name: str):
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound):
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
        ("a.csv.gz", Format.CSV),
        ("a.CSV.BZ2", Format.CSV),
        ("a.json", Format.JSON),
        ("a.json.bz2", Format.JSON),
        ("a.ndjson", Format.NDJSON),
        ("a.jsonl.gz", Format.NDJSON),
    ],
)
def test_the_file_name_shows_the_format(tmp_path: Path, name: str, expected: Format):
    make(tmp_path, name)
    assert find_source(tmp_path / name).format is expected


@pytest.mark.parametrize("name", ["a.txt", "a", "a.xlsx", "a.gz"])
def test_a_file_name_without_a_known_suffix_needs_the_format(tmp_path: Path, name: str):
    make(tmp_path, name)
    with pytest.raises(InvalidRequest, match=name):
        find_source(tmp_path / name)
    assert find_source(tmp_path / name, format_name="csv").format is Format.CSV


def test_an_unknown_format_is_refused_with_those_there_are(tmp_path: Path):
    make(tmp_path, "a.csv")
    with pytest.raises(InvalidRequest, match="parquet, csv, json, ndjson"):
        find_source(tmp_path / "a.csv", format_name="excel")


def test_formats_are_not_mixed(tmp_path: Path):
    make(tmp_path, "a.csv", "b.parquet")
    with pytest.raises(InvalidRequest):
        find_source(tmp_path)


def test_a_load_has_a_bounded_number_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("siltstone.dataset.load.source_files.MAX_FILES", 2)
    make(tmp_path, "a.csv", "b.csv", "c.csv")
    with pytest.raises(InvalidRequest):
        find_source(tmp_path)


@pytest.mark.parametrize("name", ["a.csv.zst", "a.json.xz", "a.csv.zip", "a.ndjson.lz4", "a.parquet.gz"])
def test_a_compression_that_cannot_be_read_is_refused_by_name(tmp_path: Path, name: str):
    make(tmp_path, name)
    with pytest.raises(InvalidRequest, match=name):
        find_source(tmp_path / name)


# ---- partitions --------------------------------------------------------------------------------------------------------


def test_folders_directly_above_a_file_are_columns_however_it_was_named(tmp_path: Path):
    make(tmp_path, "in/region=eu/day=2026-11-16/a.csv", "x=1/in/region=eu/b.csv")
    for named in (tmp_path / "in", tmp_path / "in/region=eu", f"{tmp_path}/in/*/*/a.csv"):
        [file] = find_source(named).files
        assert partition_of(file).values == (("region", "eu"), ("day", "2026-11-16"))
        assert partition_of(file).root == tmp_path / "in"
    [file] = find_source(tmp_path / "x=1").files
    assert partition_of(file).names == ("region",)


def test_a_partition_folder_means_null_or_an_escaped_value():
    assert partition_value("__HIVE_DEFAULT_PARTITION__") is None
    assert partition_value("a%2Fb%3D%C3%A9 c") == "a/b=\u00e9 c"


@pytest.mark.parametrize(
    ("path", "facts"),
    [
        ("zip=1/a.csv", ("'zip'", "a.b.c")),
        ("id=x/a.csv", ("'id'",)),
        ("n=x/a.csv", ("n=x",)),
        ("n=/a.csv", ("'n'",)),
        ("n=1/n=2/a.csv", ("a.csv",)),
    ],
)
def test_a_folder_that_does_not_fit_is_refused_by_name(tmp_path: Path, path: str, facts: tuple[str, ...]):
    make(tmp_path, path)
    (tmp_path / path).write_text("id\nx\n")
    with refused(InvalidRequest, None, *facts):
        check_files(find_source(tmp_path), SCHEMA, dataset="a.b.c").refuse_bad()


def test_files_in_folders_of_other_columns_are_not_loaded_together(tmp_path: Path):
    make(tmp_path, "in/n=1/a.csv", "in/b.csv")
    for file in tmp_path.rglob("*.csv"):
        file.write_text("id\nx\n")
    with pytest.raises(InvalidRequest):
        check_files(find_source(tmp_path), SCHEMA, dataset="a.b.c").refuse_bad()


# ---- all bad files at once ---------------------------------------------------------------------------------------------


def test_every_bad_file_is_named_up_to_a_limit_and_the_good_ones_are_kept(tmp_path: Path):
    for number in range(25):
        make(tmp_path, f"bad{number:02d}.csv")
    (tmp_path / "good.csv").write_text("id\nx\n")
    checked = check_files(find_source(tmp_path), SCHEMA, dataset="a.b.c")
    assert checked.files == (tmp_path / "good.csv",)
    with refused(InvalidRequest, None, "25", "26", "bad00", "bad19", "5") as caught:
        checked.refuse_bad()
    assert "bad20" not in str(caught.value)


@pytest.mark.parametrize("name", ["a.csv.gz", "a.ndjson.gz", "a.json.bz2"])
def test_a_broken_compression_is_found_by_name(tmp_path: Path, name: str):
    make(tmp_path, name)
    with pytest.raises(InvalidRequest, match=name):
        check_files(find_source(tmp_path), SCHEMA, dataset="a.b.c").refuse_bad()


# ---- columns ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "facts"),
    [
        (["id", "zip"], ("'zip'",)),
        (["id", "n", "n"], ()),
        (["n"], ("'id'",)),
        ([], ("'id'",)),
        (["ID"], ("'ID'",)),
    ],
)
def test_a_file_with_other_columns_is_refused_by_its_name(tmp_path: Path, names: list[str], facts: tuple[str, ...]):
    file = tmp_path / "a.csv"
    file.write_text(",".join(names) + "\n")
    with refused(InvalidRequest, None, *facts) as caught:
        check_files(find_source(file), SCHEMA, dataset="a.b.c").refuse_bad()
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("names", [["id", "n"], ["n", "id"], ["id"]])
def test_order_does_not_matter_and_nullable_columns_may_be_missing(names: list[str]):
    assert check_names(names, SCHEMA, dataset="a.b.c") is None


def test_a_csv_header_may_start_with_a_byte_order_mark_and_hold_quotes(tmp_path: Path):
    (tmp_path / "a.csv").write_bytes(b'\xef\xbb\xbfid,"a, b",n\r\n1,2,3\r\n')
    assert csv_header(tmp_path / "a.csv") == ["id", "a, b", "n"]


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00i\x00d"])
def test_a_file_that_is_not_csv_is_rejected_by_name(tmp_path: Path, content: bytes):
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(BadContent):
        csv_header(tmp_path / "a.csv")
    with refused(InvalidRequest, None, "a.csv"):
        check_files(find_source(tmp_path / "a.csv"), SCHEMA, dataset="a.b.c").refuse_bad()


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
    assert fits(given, wanted)


@pytest.mark.parametrize(("given", "wanted"), MISFITS, ids=str)
def test_a_type_that_would_have_to_be_cast_with_loss_is_refused_by_column(given: pa.DataType, wanted: pa.DataType):
    reason = check_type(pa.field("c", given), pa.field("c", wanted), dataset="a.b.c")
    assert reason is not None
    assert "'c'" in reason


def test_nanosecond_times_as_pandas_writes_them_are_rejected(tmp_path: Path):
    """Such times count nanoseconds; the error names this before Spark starts."""
    rows = pa.table({"at": pa.array([0], pa.timestamp("ns"))})
    pq.write_table(rows, tmp_path / "a.parquet", version="2.6")
    schema = pa.schema([pa.field("at", pa.timestamp("us"))])
    with refused(InvalidRequest, None, "a.parquet", "'at'"):
        check_files(find_source(tmp_path / "a.parquet"), schema, dataset="a.b.c").refuse_bad()


@pytest.mark.parametrize("name", ["a.csv.gz", "a.ndjson.gz", "a.json.gz"])
def test_damage_inside_a_compressed_file_is_a_bad_file(tmp_path: Path, name: str):
    header = bytes.fromhex("1f8b0800000000000003")  # a valid header, then an invalid deflate stream
    (tmp_path / name).write_bytes(header + b"\xff" * 64)
    assert [bad.path.name for bad in check_files(find_source(tmp_path), SCHEMA, dataset="a.b.c").bad] == [name]
    with refused(InvalidRequest, None, name):
        columns_of(tmp_path / name)
