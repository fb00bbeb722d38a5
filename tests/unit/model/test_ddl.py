import pyarrow as pa
import pytest

from siltstone.errors import InvalidRequest
from siltstone.model.ddl import as_schema, parse_ddl
from siltstone.model.schema import canonical, comment_of
from tests.support.refusals import refused as refuses

UTC = pa.timestamp("us", tz="UTC")
TYPES = {
    "STRING": pa.string(),
    "string": pa.string(),
    "VARCHAR": pa.string(),
    "DOUBLE PRECISION": pa.float64(),
    "BIGINT": pa.int64(),
    "LONG": pa.int64(),
    "INT": pa.int32(),
    "INTEGER": pa.int32(),
    "SMALLINT": pa.int16(),
    "SHORT": pa.int16(),
    "TINYINT": pa.int8(),
    "BYTE": pa.int8(),
    "FLOAT": pa.float32(),
    "REAL": pa.float32(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": UTC,
    "TIMESTAMP_LTZ": UTC,
    "TIMESTAMP_NTZ": pa.timestamp("us"),
    "DECIMAL": pa.decimal128(10, 0),
    "DECIMAL(5)": pa.decimal128(5, 0),
    "DECIMAL(38,18)": pa.decimal128(38, 18),
    "NUMERIC(4,2)": pa.decimal128(4, 2),
    "ARRAY<STRING>": pa.list_(pa.field("element", pa.string())),
    "MAP<STRING, BIGINT>": pa.map_(pa.string(), pa.int64()),
    "STRUCT<a: INT, b: ARRAY<DATE>>": pa.struct(
        [pa.field("a", pa.int32()), pa.field("b", pa.list_(pa.field("element", pa.date32())))]
    ),
}


@pytest.mark.parametrize("text", TYPES)
def test_spark_type_names_are_parsed(text: str):
    schema = parse_ddl(f"c {text}")
    assert schema.field("c").type == TYPES[text]
    assert canonical(schema) == schema


def test_columns_keep_their_order_names_and_nullability():
    schema = parse_ddl(
        "id STRING NOT NULL, `Group` INT, amount DECIMAL(10,2) NOT NULL COMMENT 'in euro', at TIMESTAMP NULL"
    )
    assert schema.names == ["id", "Group", "amount", "at"]
    assert [field.nullable for field in schema] == [False, True, False, True]


def test_nested_values_are_always_nullable():
    with refuses(InvalidRequest, None, "'s'", "NULL"):
        parse_ddl("id STRING, s STRUCT<a: INT NOT NULL>")
    given = pa.schema([("s", pa.struct([pa.field("a", pa.int64(), nullable=False)]))])
    assert canonical(given).field("s").type.field("a").nullable


def test_comments_and_lines_do_not_matter():
    assert parse_ddl("id STRING, -- the key\n  n BIGINT -- a number").names == ["id", "n"]


@pytest.mark.parametrize("text", ["id", "STRING", "id STRING; n INT", "SELECT 1", "(", "id STRING, PRIMARY KEY (id)"])
def test_an_invalid_list_of_columns_is_refused_with_an_example(text: str):
    with pytest.raises(InvalidRequest, match="STRING"):
        parse_ddl(text)


@pytest.mark.parametrize(
    "text",
    [
        "id STRING) ; DROP TABLE x --",
        "id STRING) AS SELECT 1 --",
        "id STRING) USING delta LOCATION '/' --",
        "id STRING); SELECT (1",
    ],
)
def test_text_cannot_break_out_of_the_list(text: str):
    with pytest.raises(InvalidRequest):
        parse_ddl(text)


@pytest.mark.parametrize(
    "kind", ["INTERVAL", "VARIANT", "JSON", "INT UNSIGNED", "ARRAY", "MAP", "MAP<STRING>", "GEOMETRY", "UUID"]
)
def test_a_type_that_cannot_be_stored_is_refused(kind: str):
    with pytest.raises(InvalidRequest):
        parse_ddl(f"c {kind}")


@pytest.mark.parametrize(
    "kind", ["DECIMAL(39,2)", "DECIMAL(50)", "DECIMAL(0,0)", "DECIMAL(2,5)", "ARRAY<DECIMAL(99,1)>"]
)
def test_a_decimal_that_does_not_exist_is_refused_by_column(kind: str):
    with pytest.raises(InvalidRequest, match="'c"):
        canonical(parse_ddl(f"c {kind}"))


@pytest.mark.parametrize("text", ["", "   ", "\n"])
def test_no_columns_are_refused(text: str):
    with pytest.raises(InvalidRequest):
        canonical(parse_ddl(text))


NOT_SUPPORTED = {
    "c VARCHAR(3)": "VARCHAR(3)",
    "c CHAR(3)": "CHAR(3)",
    "c ARRAY<VARCHAR(3)>": "VARCHAR(3)",
    "c TIMESTAMP(3)": "TIMESTAMP(3)",
    "c INT(5)": "INT(5)",
    "c INT DEFAULT 5": "DEFAULT",
    "c INT NOT NULL DEFAULT 5": "DEFAULT",
    "c INT CHECK (c > 0)": "CHECK",
    "c STRING PRIMARY KEY": "PRIMARY",
    "c STRING UNIQUE": "UNIQUE",
    "c INT GENERATED ALWAYS AS (1)": "GENERATED",
    "c INT REFERENCES x(y)": "REFERENCES",
    "c STRING COLLATE UTF8_LCASE": "COLLATE",
    "c TIMESTAMP WITHOUT TIME ZONE": "WITHOUT",
    "c STRING NULL NOT NULL": "NOT",
    "c STRING COMMENT 'a' COMMENT 'b'": "COMMENT",
}


@pytest.mark.parametrize("text", NOT_SUPPORTED)
def test_an_unsupported_type_is_refused_by_name(text: str):
    with pytest.raises(InvalidRequest) as refused:
        parse_ddl(text)
    assert "'c'" in str(refused.value)
    assert NOT_SUPPORTED[text] in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "c INT,",
        ",c INT",
        "c INT,, d INT",
        "c STRUCT<a: INT,>",
        "c ARRAY<INT, INT>",
        "c INT CHECK",
        "c INT 5",
        "c INT 'x'",
        "c DECIMAL(1,)",
    ],
)
def test_stray_signs_are_refused(text: str):
    with pytest.raises(InvalidRequest):
        parse_ddl(text)


def test_a_comment_is_read_with_its_quotes():
    schema = parse_ddl("c INT COMMENT 'it''s \\'so\\'' NOT NULL, d INT COMMENT \"plain\"")
    assert [comment_of(field) for field in schema] == ["it's 'so'", "plain"]
    assert not schema.field("c").nullable


def test_a_struct_names_each_field_once():
    with pytest.raises(InvalidRequest, match="'a'"):
        parse_ddl("c STRUCT<a INT, a STRING>")


def test_a_length_in_a_struct_type_of_spark_is_refused():
    from pyspark.sql.types import StructField, StructType, VarcharType

    with pytest.raises(InvalidRequest, match="VARCHAR"):
        as_schema(StructType([StructField("c", VarcharType(3))]))


def test_a_type_that_is_nested_too_deeply_is_refused():
    with pytest.raises(InvalidRequest):
        parse_ddl("a " + "ARRAY<" * 5000 + "INT" + ">" * 5000)
