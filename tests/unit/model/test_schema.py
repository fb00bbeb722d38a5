import hashlib
import json

import pyarrow as pa
import pytest

from siltstone.errors import InvalidRequest
from siltstone.model.columns import CHANGE_FIELDS
from siltstone.model.schema import (
    canonical,
    change_schema,
    check_key,
    describe,
    fingerprint,
    from_struct_json,
    type_name,
)
from siltstone.model.spec import (
    FIRST_FORMAT,
    FORMAT_VERSION,
    PROPERTY_FORMAT,
    PROPERTY_ROLE,
    PROPERTY_SPEC,
    Kind,
    Spec,
    as_names,
    check_format,
    check_properties,
)
from tests.support.refusals import refused

CANONICAL = {
    pa.string(): "string",
    pa.int64(): "long",
    pa.int32(): "integer",
    pa.int16(): "short",
    pa.int8(): "byte",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us", tz="UTC"): "timestamp",
    pa.timestamp("us"): "timestamp_ntz",
    pa.decimal128(10, 2): "decimal(10,2)",
    pa.decimal128(38, 38): "decimal(38,38)",
    pa.list_(pa.field("element", pa.int64())): "array<long>",
    pa.map_(pa.string(), pa.int32()): "map<string,integer>",
    pa.struct([pa.field("a", pa.int64()), pa.field("b", pa.string())]): "struct<a:long,b:string>",
}
WIDENED = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.date64(): pa.date32(),
    pa.timestamp("ns"): pa.timestamp("us"),
    pa.timestamp("s", tz="Europe/Berlin"): pa.timestamp("us", tz="UTC"),
    pa.timestamp("ns", tz="UTC"): pa.timestamp("us", tz="UTC"),
    pa.dictionary(pa.int32(), pa.string()): pa.string(),
    pa.decimal256(20, 3): pa.decimal128(20, 3),
    pa.large_list(pa.large_string()): pa.list_(pa.field("element", pa.string())),
    pa.list_(pa.int8(), 3): pa.list_(pa.field("element", pa.int8())),
}
REFUSED = [
    pa.null(),
    pa.uint64(),
    pa.float16(),
    pa.time32("s"),
    pa.time64("us"),
    pa.duration("us"),
    pa.month_day_nano_interval(),
    pa.decimal256(50, 2),
    pa.decimal128(5, -2),
    pa.binary(16),
    pa.list_(pa.uint64()),
    pa.map_(pa.string(), pa.time32("s")),
    pa.struct([pa.field("inner", pa.null())]),
]


def one(kind: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field("c", kind)])


@pytest.mark.parametrize("kind", CANONICAL, ids=str)
def test_a_storable_type_is_its_own_canonical_form_and_has_a_name(kind: pa.DataType):
    assert canonical(one(kind)).field("c").type == kind
    assert type_name(kind) == CANONICAL[kind]


@pytest.mark.parametrize("kind", WIDENED, ids=str)
def test_a_type_becomes_the_one_that_holds_all_its_values(kind: pa.DataType):
    assert canonical(one(kind)).field("c").type == WIDENED[kind]


@pytest.mark.parametrize("kind", REFUSED, ids=str)
def test_a_type_that_cannot_be_stored_is_refused_by_column(kind: pa.DataType):
    with pytest.raises(InvalidRequest, match="'c"):
        canonical(one(kind))


def test_a_nested_type_that_cannot_be_stored_is_named_by_its_path():
    with refused(InvalidRequest, None, "c.element.x"):
        canonical(one(pa.list_(pa.struct([pa.field("x", pa.uint64())]))))


@pytest.mark.parametrize("name", ["_seq", "_op", "_anything", "_"])
def test_names_that_start_with_an_underscore_are_ours(name: str):
    with pytest.raises(InvalidRequest, match="'_"):
        canonical(pa.schema([pa.field(name, pa.string())]))


@pytest.mark.parametrize(
    "name", ["", "a b", "a,b", "a;b", "a{b", "a(b", "a=b", "a.b", 'a"b', "a`b", "a\tb", "a\nb", "a\x00b"]
)
def test_names_that_an_engine_would_choke_on_are_refused(name: str):
    with pytest.raises(InvalidRequest):
        canonical(pa.schema([pa.field(name, pa.string())]))


@pytest.mark.parametrize("name", ["größe", "名前", "a-b", "select", "A", "a1"])
def test_other_names_are_kept_as_they_are(name: str):
    assert canonical(pa.schema([pa.field(name, pa.string())])).names == [name]


def test_two_columns_must_differ_by_more_than_case():
    with pytest.raises(InvalidRequest):
        canonical(pa.schema([pa.field("Id", pa.string()), pa.field("iD", pa.string())]))


def test_a_schema_needs_a_column():
    with pytest.raises(InvalidRequest):
        canonical(pa.schema([]))


def test_nullability_is_kept_and_metadata_is_not():
    given = pa.schema([pa.field("a", pa.string(), nullable=False, metadata={"x": "y"})], metadata={"z": "w"})
    found = canonical(given)
    assert not found.field("a").nullable
    assert found.metadata is None
    assert found.field("a").metadata is None


# ---- keys ------------------------------------------------------------------------------------------------------------

KEY_TYPES = [
    pa.string(),
    pa.int64(),
    pa.int32(),
    pa.int16(),
    pa.int8(),
    pa.date32(),
    pa.timestamp("us", tz="UTC"),
    pa.timestamp("us"),
    pa.decimal128(10, 2),
    pa.bool_(),
]
NOT_KEY_TYPES = [
    pa.float32(),
    pa.float64(),
    pa.binary(),
    pa.list_(pa.string()),
    pa.map_(pa.string(), pa.string()),
    pa.struct([pa.field("a", pa.string())]),
]


@pytest.mark.parametrize("kind", KEY_TYPES, ids=str)
def test_a_key_may_be_of_a_type_that_all_engines_compare_alike(kind: pa.DataType):
    check_key(one(kind), ["c"])


@pytest.mark.parametrize("kind", NOT_KEY_TYPES, ids=str)
def test_a_key_of_another_type_is_refused(kind: pa.DataType):
    with pytest.raises(InvalidRequest, match="'c'"):
        check_key(one(kind), ["c"])


@pytest.mark.parametrize(("key", "facts"), [([], ()), (["c", "c"], ("'c'",)), (["d"], ("'d'",)), (["C"], ("'C'",))])
def test_a_key_names_columns_of_the_schema_once(key: list[str], facts: tuple[str, ...]):
    with refused(InvalidRequest, None, *facts):
        check_key(one(pa.string()), key)


# ---- the change schema -----------------------------------------------------------------------------------------------


def test_a_change_row_has_the_users_columns_and_ours_and_only_the_key_is_required():
    schema = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("n", pa.int64(), nullable=False)])
    found = change_schema(schema, ["id"])
    assert found.names == ["id", "n", *[field.name for field in CHANGE_FIELDS]]
    assert not found.field("id").nullable
    assert found.field("n").nullable, "a tombstone carries the key alone"


# ---- fingerprints ----------------------------------------------------------------------------------------------------


def test_the_fingerprint_is_the_documented_hash():
    schema = pa.schema([pa.field("n", pa.int64()), pa.field("id", pa.string(), nullable=False)])
    assert fingerprint(schema) == hashlib.sha256(b"id:string:false\nn:long:true").hexdigest()[:32]


def test_the_fingerprint_depends_on_names_types_and_nullability_alone():
    base = pa.schema([pa.field("a", pa.string()), pa.field("b", pa.int64())])
    same = [pa.schema(list(reversed(list(base)))), base.with_metadata({"x": "y"})]
    other = [
        pa.schema([pa.field("a", pa.string()), pa.field("c", pa.int64())]),
        pa.schema([pa.field("a", pa.string()), pa.field("b", pa.int32())]),
        pa.schema([pa.field("a", pa.string(), nullable=False), pa.field("b", pa.int64())]),
        pa.schema([pa.field("a", pa.string())]),
    ]
    assert {fingerprint(schema) for schema in same} == {fingerprint(base)}
    assert len({fingerprint(schema) for schema in [base, *other]}) == 5


def test_a_schema_is_described_in_plain_data():
    schema = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("tags", pa.list_(pa.string()))])
    assert describe(schema) == [
        {"name": "id", "type": "string", "nullable": False},
        {"name": "tags", "type": "array<string>", "nullable": True},
    ]


# ---- Spark's struct types --------------------------------------------------------------------------------------------


def struct(kind: object) -> pa.DataType:
    found = from_struct_json({"type": "struct", "fields": [{"name": "c", "type": kind, "nullable": True}]})
    return found.field("c").type


@pytest.mark.parametrize("kind", [kind for kind in CANONICAL if not pa.types.is_nested(kind)], ids=str)
def test_every_simple_type_is_parsed_from_its_name(kind: pa.DataType):
    assert struct(type_name(kind)) == kind


def test_nested_types_are_parsed_from_their_json():
    assert struct({"type": "array", "elementType": "long", "containsNull": True}) == pa.list_(
        pa.field("element", pa.int64())
    )
    assert struct({"type": "map", "keyType": "string", "valueType": "date"}) == pa.map_(pa.string(), pa.date32())
    inner = {"type": "struct", "fields": [{"name": "x", "type": "string", "nullable": False}]}
    assert struct(inner) == pa.struct([pa.field("x", pa.string(), nullable=False)])


@pytest.mark.parametrize("kind", ["varchar(10)", "char(3)"])
def test_sized_text_is_text(kind: str):
    assert struct(kind) == pa.string()


@pytest.mark.parametrize("kind", ["interval day to second", "variant", {"type": "udt"}])
def test_a_type_of_spark_that_cannot_be_stored_is_refused_by_column(kind: object):
    with pytest.raises(InvalidRequest, match="'c'"):
        struct(kind)


# ---- the specification -----------------------------------------------------------------------------------------------


def test_a_specification_survives_its_stored_form():
    spec = Spec(kind=Kind.KEYED, key=("a", "b"), subject=("a",))
    assert Spec.from_json(spec.to_json()) == spec
    assert json.loads(spec.to_json())["format_version"] == FIRST_FORMAT


def test_the_tables_properties_are_enough_to_rebuild_the_specification():
    spec = Spec(key=("id",), subject=("id",))
    properties = spec.to_properties(role="base")
    assert Spec.from_json(properties[PROPERTY_SPEC]) == spec
    assert properties[PROPERTY_ROLE] == "base"
    assert properties[PROPERTY_FORMAT] == str(FIRST_FORMAT)


@pytest.mark.parametrize("version", [FORMAT_VERSION + 1, str(FORMAT_VERSION + 1), 99])
def test_a_newer_format_is_refused_with_what_to_do(version: int | str):
    with refused(InvalidRequest, None, version):
        check_format(version)
    with refused(InvalidRequest, None, version):
        check_properties({PROPERTY_FORMAT: str(version)})
    newer = json.dumps({"kind": "keyed", "key": ["id"], "subject": [], "format_version": int(version), "unknown": 1})
    with pytest.raises(InvalidRequest):
        Spec.from_json(newer)


def test_our_own_format_and_tables_without_one_are_read():
    check_format(FORMAT_VERSION)
    check_properties({})
    check_properties({PROPERTY_FORMAT: str(FORMAT_VERSION)})


@pytest.mark.parametrize(("given", "names"), [(None, ()), ("id", ("id",)), (["a", "b"], ("a", "b")), (("a",), ("a",))])
def test_names_are_given_as_text_or_sequence(given: str | list[str] | None, names: tuple[str, ...]):
    assert as_names(given) == names
