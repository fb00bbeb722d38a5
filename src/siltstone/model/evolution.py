"""Allowed changes of a dataset's columns that need no rewrite of old files. Pure.

A column can be added if it is not required. A column can be widened if all old values are values of the wider type. A
change that would alter the values of old rows, or make old files unreadable, is refused by name.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from siltstone.errors import InvalidRequest
from siltstone.model.schema import (
    COMMENT,
    DEFAULT,
    TAGS,
    canonical,
    comment_of,
    default_text,
    read_default,
    tags_of,
    type_name,
)

WIDER: Final[Mapping[pa.DataType, tuple[pa.DataType, ...]]] = {
    pa.int8(): (pa.int16(), pa.int32(), pa.int64()),
    pa.int16(): (pa.int32(), pa.int64()),
    pa.int32(): (pa.int64(),),
    pa.float32(): (pa.float64(),),
}
"""Wider types of each type: they hold all its values, and readers can read its files as them."""
MAX_COMMENT_CHARS: Final = 1000
MAX_TAG_CHARS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Alteration:
    """A requested change: columns to add, wider types, comments, tags and defaults.

    None removes a comment or a default. Tags replace the column's tags.
    """

    add: pa.Schema = field(default_factory=lambda: pa.schema([]))
    widen: Mapping[str, pa.DataType] = field(default_factory=dict)
    comments: Mapping[str, str | None] = field(default_factory=dict)
    tags: Mapping[str, Collection[str]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)


def altered(schema: pa.Schema, alteration: Alteration, *, key: Collection[str]) -> pa.Schema:
    """Return the altered schema. Parts of the alteration that are already true change nothing.

    >>> old = pa.schema([pa.field("id", pa.string(), nullable=False), ("n", pa.int32())])
    >>> altered(old, Alteration(add=pa.schema([("m", pa.string())]), widen={"n": pa.int64()}), key=["id"])
    id: string not null
    n: int64
    m: string

    Raises:
        InvalidRequest: a column is unknown, exists with another type, is required or part of the key, or cannot be
            widened so.
    """
    fields = {f.name: f for f in schema}
    added = _added(fields, alteration, key=key)
    fields |= {f.name: f for f in added}
    for name, kind in alteration.widen.items():
        fields[name] = _widened(_column(fields, name), kind, key=key)
    for name, comment in alteration.comments.items():
        if comment is not None and len(comment) > MAX_COMMENT_CHARS:
            raise InvalidRequest(f"Column {name!r}: a comment is text of at most {MAX_COMMENT_CHARS} characters.")
        fields[name] = _with_note(_column(fields, name), COMMENT, comment)
    for name, tags in alteration.tags.items():
        if isinstance(tags, str) or any(not 0 < len(tag) <= MAX_TAG_CHARS for tag in tags):
            raise InvalidRequest(f"Column {name!r}: tags are a list of words of at most {MAX_TAG_CHARS} characters.")
        fields[name] = _with_note(_column(fields, name), TAGS, json.dumps(sorted(set(tags))) if tags else None)
    for name, default in alteration.defaults.items():
        if name not in {f.name for f in alteration.add}:
            raise InvalidRequest(f"Column {name!r}: a default is set when its column is added, and cannot change.")
        if name in {f.name for f in added}:
            fields[name] = _with_note(fields[name], DEFAULT, _checked_default(fields[name], default))
        elif default_text(fields[name]) != (_checked_default(fields[name], default) or None):
            raise InvalidRequest(
                f"Column {name!r} exists already with another default ({default_text(fields[name])!r})."
            )
    return canonical(pa.schema(list(fields.values())))


def _added(fields: Mapping[str, pa.Field], alteration: Alteration, *, key: Collection[str]) -> list[pa.Field]:
    if not alteration.add.names:
        return []
    added: list[pa.Field] = []
    for new in canonical(alteration.add):
        old = fields.get(new.name)
        if old is None and not new.nullable:
            raise InvalidRequest(f"Column {new.name!r} cannot be added as NOT NULL: existing rows do not have it.")
        if old is None:
            added.append(new)
        elif old.type != new.type or new.name in key:
            raise InvalidRequest(f"Column {new.name!r} exists already, as {type_name(old.type)}.")
    return added


def _column(fields: Mapping[str, pa.Field], name: str) -> pa.Field:
    if name not in fields:
        raise InvalidRequest(f"There is no column {name!r}; there are {', '.join(fields)}.")
    return fields[name]


def _widened(column: pa.Field, kind: pa.DataType, *, key: Collection[str]) -> pa.Field:
    if column.type == kind:
        return column
    if column.name in key:
        raise InvalidRequest(f"Column {column.name!r} is part of the key, whose type cannot change.")
    if kind not in WIDER.get(column.type, ()):
        possible = " or ".join(type_name(wider) for wider in WIDER.get(column.type, ())) or "nothing"
        raise InvalidRequest(
            f"Column {column.name!r} is {type_name(column.type)}, which can be widened to {possible}, not to {type_name(kind)}."
        )
    return column.with_type(kind)


def _with_note(column: pa.Field, note: bytes, text: str | None) -> pa.Field:
    notes = {name: value for name, value in (column.metadata or {}).items() if name != note}
    if text:
        notes[note] = text.encode()
    return column.with_metadata(notes)


def _checked_default(column: pa.Field, default: Any) -> str | None:  # noqa: ANN401
    """Return the stored text of a default, after a check that it can be read back."""
    if default is None:
        return None
    text = str(default).lower() if isinstance(default, bool) else str(default)
    read_default(text, column.type, column=column.name)
    return text


def alterations(before: pa.Schema, after: pa.Schema) -> list[str]:
    """Describe the differences of two schemas, for reports and errors.

    >>> alterations(pa.schema([("n", pa.int32())]), pa.schema([("n", pa.int64()), ("m", pa.string())]))
    ['n: integer becomes long', 'm string is added']
    """
    changes: list[str] = []
    old_names = set(before.names)
    for new in after:
        if new.name not in old_names:
            default = default_text(new)
            changes.append(f"{new.name} {type_name(new.type)} is added" + (f", default {default}" if default else ""))
            continue
        old = before.field(new.name)
        if old.type != new.type:
            changes.append(f"{new.name}: {type_name(old.type)} becomes {type_name(new.type)}")
        if comment_of(old) != comment_of(new):
            changes.append(f"{new.name}: comment")
        if tags_of(old) != tags_of(new):
            changes.append(f"{new.name}: tags {', '.join(tags_of(new)) or 'none'}")
    return changes
