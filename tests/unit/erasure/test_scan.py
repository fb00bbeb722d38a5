import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siltstone.erasure import scan as scan_module
from siltstone.erasure.scan import Finding, How, ScanReport, scan
from siltstone.errors import InvalidRequest

VALUE = "CAND-000001"


def write(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, compression="zstd", use_dictionary=True, write_statistics=False)


def seen(report: ScanReport) -> set[tuple[str, How, str | None]]:
    return {(found.file, found.how, found.column) for found in report.findings}


def test_a_folder_without_the_text_is_clean(tmp_path: Path):
    write(tmp_path / "a.parquet", pa.table({"id": ["CAND-000002"]}))
    (tmp_path / "notes.txt").write_text("nothing here")
    report = scan(tmp_path, [VALUE])
    assert report.clean
    assert (report.files, report.parquet_files) == (2, 1)
    assert report.bytes == sum(path.stat().st_size for path in tmp_path.iterdir())


def test_a_value_inside_a_compressed_dictionary_page_is_found_by_decoding_alone(tmp_path: Path):
    values = [f"CAND-{n:06d}" for n in range(2000)] * 5
    write(tmp_path / "a.parquet", pa.table({"id": values}))
    assert VALUE.encode() not in (tmp_path / "a.parquet").read_bytes()
    assert scan(tmp_path, [VALUE]).findings == (Finding(file="a.parquet", value=VALUE, how=How.DECODED, column="id"),)


def test_a_parquet_file_is_known_by_its_bytes_not_its_name(tmp_path: Path):
    write(tmp_path / "leftover", pa.table({"id": [f"CAND-{n:06d}" for n in range(2000)] * 5}))
    assert seen(scan(tmp_path, [VALUE])) == {("leftover", How.DECODED, "id")}


@pytest.mark.parametrize(
    ("column", "kind", "cell"),
    [
        ("tags.list.element", pa.list_(pa.string()), ["x", VALUE]),
        ("who.name", pa.struct([("name", pa.string())]), {"name": f"see {VALUE}!"}),
        ("m.key_value.key", pa.map_(pa.string(), pa.int64()), [(VALUE, 1)]),
        ("m.key_value.value", pa.map_(pa.int64(), pa.string()), [(1, VALUE)]),
        (
            "deep.list.element.names.list.element",
            pa.list_(pa.struct([("names", pa.list_(pa.string()))])),
            [{"names": [VALUE]}],
        ),
        ("raw", pa.binary(), VALUE.encode()),
        ("fixed", pa.binary(len(VALUE)), VALUE.encode()),
        ("large", pa.large_string(), VALUE),
        ("view", pa.string_view(), VALUE),
        ("coded", pa.dictionary(pa.int32(), pa.string()), VALUE),
    ],
)
def test_nested_and_binary_columns_are_decoded(tmp_path: Path, column: str, kind: pa.DataType, cell: object):
    name = column.partition(".")[0]
    rows = (
        pa.chunked_array([pa.array([None, cell], kind)])
        if not pa.types.is_dictionary(kind)
        else pa.array([None, cell], pa.string()).dictionary_encode()
    )
    write(tmp_path / "a.parquet", pa.table({name: rows}))
    assert ("a.parquet", How.DECODED, column) in seen(scan(tmp_path, [VALUE]))


def test_a_text_across_the_border_of_two_chunks_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scan_module, "CHUNK_BYTES", 16)
    for offset in range(40):
        (tmp_path / "blob").write_bytes(b"." * offset + VALUE.encode() + b"." * 20)
        assert seen(scan(tmp_path, [VALUE])) == {("blob", How.RAW, None)}, offset


def test_a_text_much_longer_than_a_chunk_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scan_module, "CHUNK_BYTES", 4)
    (tmp_path / "blob").write_bytes(b"ab" * 7 + b"the whole of a long text" + b"cd" * 3)
    assert not scan(tmp_path, ["the whole of a long text"]).clean


def test_a_log_entry_is_parsed_down_to_the_statistics_inside_its_strings(tmp_path: Path):
    stats = json.dumps({"minValues": {"id": "caf\u00e9"}})
    (tmp_path / "0.json").write_text(json.dumps({"add": {"path": "p", "stats": stats}}) + "\n")
    found = seen(scan(tmp_path, ["caf\u00e9"]))
    assert ("0.json", How.DECODED, "add.stats.minValues.id") in found


def test_a_member_name_counts_as_a_text(tmp_path: Path):
    (tmp_path / "0.json").write_text(json.dumps({"txn": {VALUE: 1}}))
    assert ("0.json", How.DECODED, f"txn.{VALUE}") in seen(scan(tmp_path, [VALUE]))


def test_a_line_that_is_not_json_is_searched_too(tmp_path: Path):
    (tmp_path / "0.json").write_text('{"add":\n{"broken ' + VALUE)
    assert ("0.json", How.RAW, None) in seen(scan(tmp_path, [VALUE]))


def test_a_partition_folder_that_carries_the_text_is_found_by_name(tmp_path: Path):
    folder = tmp_path / "who=Anna%20K"
    folder.mkdir()
    (folder / "part").write_bytes(b"x")
    assert seen(scan(tmp_path, ["Anna K"])) == {("who=Anna%20K/part", How.NAME, None)}


def test_a_parquet_file_that_cannot_be_decoded_is_not_clean(tmp_path: Path):
    write(tmp_path / "a.parquet", pa.table({"id": ["x"] * 100}))
    whole = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(whole[:-10])
    report = scan(tmp_path, [VALUE])
    assert report.unreadable == ("a.parquet",)
    assert not report.clean


def test_a_parquet_file_with_a_column_name_that_is_not_text_is_not_clean(tmp_path: Path):
    write(tmp_path / "a.parquet", pa.table({"column_name": ["x"] * 100}))
    whole = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(whole.replace(b"column_name", b"column_\xffame"))
    assert scan(tmp_path, [VALUE]).unreadable == ("a.parquet",)


def test_a_line_of_json_that_python_cannot_parse_is_searched_as_text(tmp_path: Path):
    (tmp_path / "a.json").write_text(f'{{"n": nine, "id": "{VALUE}"}}\n')
    assert seen(scan(tmp_path, [VALUE])) == {("a.json", How.RAW, None), ("a.json", How.DECODED, None)}


def test_every_text_gets_its_own_findings(tmp_path: Path):
    write(tmp_path / "a.parquet", pa.table({"a": ["one"] * 10, "b": ["two"] * 10}))
    found = {(f.value, f.column) for f in scan(tmp_path, ["one", "two", "three"]).findings if f.how is How.DECODED}
    assert found == {("one", "a"), ("two", "b")}


def test_a_text_beyond_the_first_batch_is_found(tmp_path: Path):
    rows = [f"row {n}" for n in range(scan_module.BATCH_ROWS + 5)]
    write(tmp_path / "a.parquet", pa.table({"id": [*rows, VALUE]}))
    assert ("a.parquet", How.DECODED, "id") in seen(scan(tmp_path, [VALUE]))


@pytest.mark.parametrize("values", [[], [""], ["x", ""]])
def test_a_scan_without_a_text_is_refused(tmp_path: Path, values: list[str]):
    with pytest.raises(InvalidRequest):
        scan(tmp_path, values)


def test_a_missing_folder_is_refused(tmp_path: Path):
    with pytest.raises(InvalidRequest, match="nowhere"):
        scan(tmp_path / "nowhere", [VALUE])


def test_a_dangling_link_is_skipped(tmp_path: Path):
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    assert scan(tmp_path, [VALUE]).files == 0


@pytest.mark.parametrize("number", ["9" * 5000, "-" + "9" * 5000])
def test_an_escaped_value_beside_a_number_of_thousands_of_digits_is_found(tmp_path: Path, number: str):
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in VALUE)
    (tmp_path / "a.json").write_text(f'{{"n": {number}, "a": "{escaped}"}}\n')
    assert [finding.column for finding in scan(tmp_path, [VALUE]).findings] == ["a"]


def test_json_that_is_nested_too_deeply_is_unreadable_and_not_clean(tmp_path: Path):
    (tmp_path / "a.json").write_text('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}\n")
    assert scan(tmp_path, [VALUE]).unreadable == ("a.json",)
