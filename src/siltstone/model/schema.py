"""Schemas that a user may declare, their canonical form, and their fingerprint.

The canonical form is a `pyarrow.Schema` whose types are exactly those that Delta can store. Strings are ``string``.
Timestamps are in microseconds, in UTC or without zone. The text form is the Delta type name (``long``,
``decimal(10,2)``, ``array<string>``). Output shows it, and fingerprints are made of it.

Checks refuse a schema with InvalidRequest. Its message names the column, and what to write instead.
"""

import datetime
import decimal
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import pyarrow as pa

from siltstone.errors import InvalidRequest
from siltstone.model.columns import BASE_FIELDS, CHANGE_FIELDS, RESERVED_PREFIX

FINGERPRINT_HEX_DIGITS: Final = 32
MAX_KEY_BYTES: Final = 1024
"""Size limit of a key, because long keys would bloat statistics, bloom filters and every change batch."""
MAX_DECIMAL_DIGITS: Final = 38

COMMENT: Final = b"comment"
TAGS: Final = b"siltstone.tags"
DEFAULT: Final = b"siltstone.default"
_NOTES: Final = (COMMENT, TAGS, DEFAULT)
"""Metadata of a column's field: its comment, its tags, and its default for old rows."""

_SIMPLE: Final[dict[str, pa.DataType]] = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_NAMES: Final = {kind: name for name, kind in _SIMPLE.items()}
_WIDER: Final[dict[pa.DataType, pa.DataType]] = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.date64(): pa.date32(),
}
_KEY_TYPES: Final[tuple[Callable[[pa.DataType], bool], ...]] = (
    pa.types.is_string,
    pa.types.is_integer,
    pa.types.is_date,
    pa.types.is_timestamp,
    pa.types.is_decimal,
    pa.types.is_boolean,
)
_KEY_TYPE_NAMES: Final = "string, integer, date, timestamp, decimal or boolean"
_PARTITION_TYPES: Final = (pa.types.is_string, pa.types.is_integer, pa.types.is_date, pa.types.is_boolean)
_SORT_TYPES: Final = (*_KEY_TYPES, pa.types.is_floating)


def type_name(kind: pa.DataType) -> str:
    """Return the Delta name of a canonical Arrow type.

    >>> type_name(pa.list_(pa.int64()))
    'array<long>'
    """
    if kind in _NAMES:
        return _NAMES[kind]
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"array<{type_name(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{type_name(kind.key_type)},{type_name(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{f.name}:{type_name(f.type)}' for f in kind.fields)}>"
    raise InvalidRequest(f"Type {kind} cannot be stored.")


def a_type(kind: pa.DataType) -> str:
    """Return the name of a type with its article, for messages.

    >>> a_type(pa.int32()), a_type(pa.string())
    ('an integer', 'a string')
    """
    name = type_name(kind)
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def inner_types(first: pa.DataType, second: pa.DataType) -> list[tuple[pa.DataType, pa.DataType]] | None:
    """Return pairs of the types inside two lists, maps, or structs of the same fields; None for other types.

    >>> inner_types(pa.list_(pa.int8()), pa.list_(pa.int64()))
    [(DataType(int8), DataType(int64))]
    """
    if pa.types.is_list(first) and pa.types.is_list(second):
        return [(first.value_type, second.value_type)]
    if pa.types.is_map(first) and pa.types.is_map(second):
        return [(first.key_type, second.key_type), (first.item_type, second.item_type)]
    if pa.types.is_struct(first) and pa.types.is_struct(second) and first.names == second.names:
        return [(left.type, right.type) for left, right in zip(first.fields, second.fields, strict=True)]
    return None


def canonical_type(kind: pa.DataType, *, column: str) -> pa.DataType:
    """Return the storable type that holds every value of `kind`, or refuse it by name.

    Only columns can be required. Values inside a column may always be null.
    """
    if kind in _NAMES:
        return kind
    if kind in _WIDER:
        return _WIDER[kind]
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz is not None else None)
    if pa.types.is_decimal(kind) and kind.precision <= MAX_DECIMAL_DIGITS and 0 <= kind.scale <= kind.precision:
        return pa.decimal128(kind.precision, kind.scale)
    if pa.types.is_dictionary(kind):
        return canonical_type(kind.value_type, column=column)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(pa.field("element", canonical_type(kind.value_type, column=f"{column}.element")))
    if pa.types.is_map(kind):
        return pa.map_(
            canonical_type(kind.key_type, column=f"{column}.key"),
            canonical_type(kind.item_type, column=f"{column}.value"),
        )
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, canonical_type(f.type, column=f"{column}.{f.name}")) for f in kind.fields])
    raise InvalidRequest(
        f"Column {column!r}: type {kind} cannot be stored. Use one of {', '.join(_SIMPLE)}, decimal(p,s), array, map "
        "or struct."
    )


def canonical(schema: pa.Schema) -> pa.Schema:
    """Return the schema in canonical form. Refuse a reserved or repeated name, and a type that cannot be stored."""
    if not schema.names:
        raise InvalidRequest("A schema needs at least one column.")
    seen: set[str] = set()
    for name in schema.names:
        if name.startswith(RESERVED_PREFIX):
            raise InvalidRequest(f"Column {name!r}: names that start with '_' are reserved for Siltstone. Rename it.")
        if not name or any(c in name for c in ' ,;{}()\n\t=."`*') or not name.isprintable():
            raise InvalidRequest(
                f"Column {name!r}: a name must not be empty. Spaces, quotes and , ; {{ }} ( ) = . * are not allowed in it."
            )
        if name.lower() in seen:
            raise InvalidRequest(f"Column {name!r} appears twice; names must differ by more than case.")
        seen.add(name.lower())
    return pa.schema([_noted(f.name, canonical_type(f.type, column=f.name), f.nullable, f.metadata) for f in schema])


def _noted(name: str, kind: pa.DataType, nullable: bool, notes: Mapping[bytes, bytes] | None) -> pa.Field:  # noqa: FBT001
    """Return a field with its comment, tags and default; other metadata is dropped."""
    retained = {note: text for note, text in (notes or {}).items() if note in _NOTES}
    return pa.field(name, kind, nullable, metadata=retained or None)


def comment_of(field: pa.Field) -> str | None:
    """Return the column's comment."""
    text = (field.metadata or {}).get(COMMENT)
    return text.decode() if text is not None else None


def tags_of(field: pa.Field) -> list[str]:
    """Return the column's tags, sorted."""
    return sorted(json.loads((field.metadata or {}).get(TAGS, b"[]")))


def default_text(field: pa.Field) -> str | None:
    """Return the column's default as text: its value in rows that were written before the column existed."""
    text = (field.metadata or {}).get(DEFAULT)
    return text.decode() if text is not None else None


def default_of(field: pa.Field) -> pa.Scalar:
    """Return the column's default: its value in rows that were written before the column existed. Null if not set."""
    text = default_text(field)
    return pa.scalar(None, field.type) if text is None else read_default(text, field.type, column=field.name)


def read_default(text: str, kind: pa.DataType, *, column: str) -> pa.Scalar:
    """Parse a column's default. Refuse one that is not a value of the column's type."""
    try:
        if pa.types.is_timestamp(kind):
            return pa.scalar(_moment(text, has_zone=kind.tz is not None), kind)
        if pa.types.is_decimal(kind):
            return pa.scalar(decimal.Decimal(text), kind)
        if pa.types.is_nested(kind) or pa.types.is_binary(kind):
            raise InvalidRequest(f"Column {column!r}: {a_type(kind)} cannot have a default.")
        return pa.scalar(text).cast(kind)
    except (pa.ArrowException, ValueError, ArithmeticError) as error:
        raise InvalidRequest(f"Column {column!r}: the default {text!r} is not {a_type(kind)}.") from error


def _moment(text: str, *, has_zone: bool) -> datetime.datetime:
    moment = datetime.datetime.fromisoformat(text)
    if (moment.tzinfo is not None) != has_zone:
        raise ValueError(text)
    return moment


def filled(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows of a file in the current columns. A missing column gets its default, a narrower one is widened."""
    have = set(table.column_names)
    columns = [
        table.column(f.name).cast(f.type) if f.name in have else pa.repeat(default_of(f), table.num_rows)
        for f in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def check_key(schema: pa.Schema, key: Iterable[str]) -> None:
    """Refuse a key with unknown or repeated columns, or with a type that engines compare differently."""
    names = list(key)
    if not names:
        raise InvalidRequest("A keyed dataset needs at least one key column.")
    _check_columns(schema, names, "Key column", _KEY_TYPES, _KEY_TYPE_NAMES)


def check_log(
    schema: pa.Schema, *, time: str, subject: Iterable[str], partition_by: Iterable[str], sort_by: Iterable[str]
) -> None:
    """Refuse a log whose columns are unknown, repeated, or of types that do not fit their purpose."""
    kind = _column_type(schema, time, "Time column")
    if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        raise InvalidRequest(
            f"Time column {time!r} is of type {type_name(kind)}; it must be a timestamp, a timestamp_ntz or a date."
        )
    subjects = list(subject)
    _check_columns(schema, subjects, "Subject column", _KEY_TYPES, _KEY_TYPE_NAMES)
    _check_columns(schema, partition_by, "Partition column", _PARTITION_TYPES, "string, integer, date or boolean")
    _check_columns(schema, sort_by, "Sort column", _SORT_TYPES, "of a type with an order")
    for name in partition_by:
        if name in subjects:
            raise InvalidRequest(
                f"Column {name!r} identifies a person; partition_by would write its values into the log. Choose another."
            )


def check_order(schema: pa.Schema, cluster_by: Iterable[str], *, most: int) -> None:
    """Refuse columns that rows of a log cannot be clustered by."""
    names = list(cluster_by)
    _check_columns(schema, names, "Cluster column", _SORT_TYPES, "of a type with an order")
    if len(names) > most:
        raise InvalidRequest(
            f"cluster_by names {len(names)} columns; at most {most} are allowed, because each makes the order less useful."
        )


def check_dedup(schema: pa.Schema, dedup_by: Iterable[str], *, needed: Iterable[str]) -> None:
    """Refuse columns that cannot define duplicates. The `needed` columns put duplicates into one period."""
    names = list(dedup_by)
    _check_columns(schema, names, "Dedup column", _KEY_TYPES, _KEY_TYPE_NAMES)
    missing = [name for name in dict.fromkeys(needed) if name not in names]
    if names and missing:
        raise InvalidRequest(
            f"dedup_by must contain the time, partition and subject columns, so that duplicates are in one period and are "
            f"hidden together: {', '.join(missing)} missing. Write dedup_by={[*names, *missing]}."
        )


def _check_columns(
    schema: pa.Schema, names: Iterable[str], what: str, tests: Iterable[Callable[[pa.DataType], bool]], expected: str
) -> None:
    columns = list(names)
    for name in columns:
        kind = _column_type(schema, name, what)
        if columns.count(name) > 1:
            raise InvalidRequest(f"{what} {name!r} is named twice.")
        if not any(test(kind) for test in tests):
            raise InvalidRequest(f"{what} {name!r} is of type {type_name(kind)}; it must be {expected}.")


def _column_type(schema: pa.Schema, name: str, what: str) -> pa.DataType:
    if name not in schema.names:
        raise InvalidRequest(f"{what} {name!r} is not in the schema ({', '.join(schema.names)}).")
    return schema.field(name).type


def base_schema(schema: pa.Schema, *, is_log: bool) -> pa.Schema:
    """Return the physical schema of a base file: the user's columns, then for a log Siltstone's own columns."""
    return pa.schema([*schema, *BASE_FIELDS]) if is_log else schema


def own_columns(schema: pa.Schema) -> pa.Schema:
    """Return the user's columns of a table."""
    return pa.schema([f for f in schema if not f.name.startswith(RESERVED_PREFIX)])


def change_schema(schema: pa.Schema, key: Iterable[str]) -> pa.Schema:
    """Return the physical schema of a change file: all user columns (nullable except the key), then ours.

    A tombstone has only the key, so every other column must be nullable.
    """
    keys = set(key)
    columns = [pa.field(f.name, f.type, nullable=f.name not in keys, metadata=f.metadata) for f in schema]
    return pa.schema([*columns, *CHANGE_FIELDS])


def fingerprint(schema: pa.Schema) -> str:
    """Return 32 hex digits. Two schemas share them exactly if they have the same columns, types and nullability.

    >>> a = pa.schema([pa.field("id", pa.string(), nullable=False), ("n", pa.int64())])
    >>> fingerprint(a) == fingerprint(pa.schema(list(reversed(list(a)))))
    True
    """
    lines = sorted(f"{f.name}:{type_name(f.type)}:{str(f.nullable).lower()}" for f in schema)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:FINGERPRINT_HEX_DIGITS]


def differences(existing: pa.Schema, requested: pa.Schema) -> list[str]:
    """Describe how an existing schema differs from a given one, one phrase per difference.

    >>> differences(pa.schema([("a", pa.int64()), ("b", pa.string())]), pa.schema([("a", pa.string()), ("c", pa.string())]))
    ["it has no column 'c'", "it also has column 'b'", "its column 'a' is a long, not a string"]
    """
    old_names, new_names = set(existing.names), set(requested.names)
    added = [repr(name) for name in requested.names if name not in old_names]
    missing = [repr(name) for name in existing.names if name not in new_names]
    phrases = [f"it has no column {', '.join(added)}"] if added else []
    phrases += [f"it also has column {', '.join(missing)}"] if missing else []
    for old, new in ((existing.field(name), requested.field(name)) for name in existing.names if name in new_names):
        if old.type != new.type:
            phrases.append(f"its column {old.name!r} is {a_type(old.type)}, not {a_type(new.type)}")
        elif old.nullable != new.nullable:
            phrases.append(f"its column {old.name!r} {'may' if old.nullable else 'must not'} be null")
    return phrases


def describe(schema: pa.Schema) -> list[dict[str, Any]]:
    """Return the columns as plain data, for JSON and for tables."""
    columns: list[dict[str, Any]] = []
    for f in schema:
        notes = {"comment": comment_of(f), "tags": tags_of(f), "default": default_text(f)}
        stated = {name: value for name, value in notes.items() if value}
        columns.append({"name": f.name, "type": type_name(f.type), "nullable": f.nullable} | stated)
    return columns


def from_struct_json(struct: dict[str, Any]) -> pa.Schema:
    """Return the Arrow schema of a Spark or Delta struct type in its JSON form.

    >>> from_struct_json({"type": "struct", "fields": [{"name": "n", "type": "long", "nullable": True}]})
    n: int64
    """
    return pa.schema(
        [
            _noted(
                f["name"],
                _from_json_type(f["type"], f["name"]),
                f["nullable"],
                {n.encode(): v.encode() for n, v in f.get("metadata", {}).items() if isinstance(v, str)},
            )
            for f in struct["fields"]
        ]
    )


def to_struct_json(schema: pa.Schema) -> dict[str, Any]:
    """Return a schema as the JSON form of a Delta struct type, the opposite of `from_struct_json`."""
    return {"type": "struct", "fields": [_to_json_field(f) for f in schema]}


def _to_json_field(field: pa.Field) -> dict[str, Any]:
    notes = {name.decode(): text.decode() for name, text in sorted((field.metadata or {}).items()) if name in _NOTES}
    return {"name": field.name, "type": _to_json_type(field.type), "nullable": field.nullable, "metadata": notes}


def _to_json_type(kind: pa.DataType) -> str | dict[str, Any]:
    if pa.types.is_list(kind):
        return {"type": "array", "elementType": _to_json_type(kind.value_type), "containsNull": True}
    if pa.types.is_map(kind):
        return {
            "type": "map",
            "keyType": _to_json_type(kind.key_type),
            "valueType": _to_json_type(kind.item_type),
            "valueContainsNull": True,
        }
    if pa.types.is_struct(kind):
        return {"type": "struct", "fields": [_to_json_field(f) for f in kind.fields]}
    return type_name(kind)


def _from_json_type(kind: str | dict[str, Any], column: str) -> pa.DataType:
    if isinstance(kind, str):
        if kind in _SIMPLE:
            return _SIMPLE[kind]
        if kind in ("void", "null"):
            return pa.null()
        if kind.startswith("decimal(") and kind.endswith(")"):
            precision, scale = kind[8:-1].split(",")
            return pa.decimal128(int(precision), int(scale))
        if kind.startswith(("char(", "varchar(")):
            return pa.string()
        raise InvalidRequest(f"Column {column!r}: type {kind} cannot be stored.")
    match kind["type"]:
        case "array":
            return pa.list_(pa.field("element", _from_json_type(kind["elementType"], column)))
        case "map":
            return pa.map_(_from_json_type(kind["keyType"], column), _from_json_type(kind["valueType"], column))
        case "struct":
            return pa.struct(list(from_struct_json(kind)))
        case other:
            raise InvalidRequest(f"Column {column!r}: type {other} cannot be stored.")
