"""Schemas from text in Spark's DDL: ``id STRING NOT NULL, amount DECIMAL(10,2), tags ARRAY<STRING>``.

::

    columns = column ("," column)*
    column  = name [":"] type ("NOT NULL" | "NULL" | "COMMENT" text)*
    type    = word ["(" digits ["," digits] ")"] | "ARRAY<" type ">" | "MAP<" type "," type ">" | "STRUCT<" field ("," field)* ">"
    field   = name [":"] type

Text outside this grammar is refused with InvalidRequest. A word that is not in it (DEFAULT, CHECK, a length) is refused
by name. A dataset does not store it.
"""

import json
import re
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import pyarrow as pa

from siltstone.errors import InvalidRequest
from siltstone.model.schema import COMMENT, MAX_DECIMAL_DIGITS, canonical_type, from_struct_json

_UTC: Final = pa.timestamp("us", tz="UTC")
_TYPES: Final[dict[str, pa.DataType]] = {
    "STRING": pa.string(),
    "TEXT": pa.string(),
    "VARCHAR": pa.string(),
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
    "BOOL": pa.bool_(),
    "BINARY": pa.binary(),
    "VARBINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": _UTC,
    "TIMESTAMPTZ": _UTC,
    "TIMESTAMP_LTZ": _UTC,
    "TIMESTAMP_NTZ": pa.timestamp("us"),
}
_DECIMALS: Final = ("DECIMAL", "DEC", "NUMERIC")
_LENGTHS: Final = ("CHAR", "CHARACTER", "NCHAR", "NVARCHAR", "VARCHAR", "STRING", "TEXT")
_ADVICE: Final = {
    "DEFAULT": "Write the value with each row. For rows older than an added column, alter takes a default.",
    "PRIMARY": "Name the key columns with key= or --key.",
    "CHECK": "Check rows before they are written.",
    "WITH": "Write TIMESTAMP.",
    "WITHOUT": "Write TIMESTAMP_NTZ.",
}
"""Advice for each refused word."""
_TOKEN: Final = re.compile(
    r"""
    (?P<skip>\s+|--[^\n]*|/\*.*?\*/)
  | (?P<word>\w+)
  | `(?P<quoted>(?:[^`]|``)+)`
  | (?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
  | (?P<sign>[<>(),:])
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\(.)|''|\"\"", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r"}


def parse_ddl(text: str) -> pa.Schema:
    """Return the schema of a column list in Spark's DDL."""
    try:
        return _Parser(text).columns()
    except RecursionError as error:
        raise InvalidRequest("The schema is nested too deeply.") from error


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    """``word``, ``quoted``, ``text``, ``sign``, or ``end``."""
    value: str

    @property
    def upper(self) -> str:
        """The word in capitals; empty if the token is not a word."""
        return self.value.upper() if self.kind == "word" else ""


class _Parser:
    """Parses one text from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._tokenize()
        self._at = 0

    def _tokenize(self) -> list[_Token]:
        tokens: list[_Token] = []
        at = 0
        while at < len(self._text):
            match = _TOKEN.match(self._text, at)
            if match is None:
                self._refuse(f"{self._text[at]!r} has no meaning there")
            if match.lastgroup and match.lastgroup != "skip":
                tokens.append(_Token(match.lastgroup, match[match.lastgroup]))
            at = match.end()
        return [*tokens, _Token("end", "")]

    def _refuse(self, why: str) -> NoReturn:
        raise InvalidRequest(
            f"The schema {self._text!r} cannot be read: {why}. Write columns as 'id STRING NOT NULL, amount DECIMAL(10,2), "
            "at TIMESTAMP'."
        )

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self) -> _Token:
        token = self._tokens[self._at]
        self._at += 1
        return token

    def _takes(self, *values: str) -> bool:
        """Consume the next token if it is one of these signs or words; return whether it was."""
        if self._next.kind in ("sign", "word") and self._next.value.upper() in values:
            self._at += 1
            return True
        return False

    def _expect(self, sign: str, where: str) -> None:
        if not self._takes(sign):
            self._refuse(f"{where} lacks {sign!r}")

    def columns(self) -> pa.Schema:
        """Parse the whole text."""
        fields = [self._column()]
        while self._takes(","):
            fields.append(self._column())
        if self._next.kind != "end":
            self._refuse(f"{self._next.value!r} does not belong there")
        return pa.schema(fields)

    def _name(self) -> str:
        token = self._take()
        if token.kind not in ("quoted", "word"):
            what = {"end": "the end", "sign": repr(token.value)}.get(token.kind, "text")
            self._refuse(f"there is {what} where a column is expected")
        return token.value.replace("``", "`") if token.kind == "quoted" else token.value

    def _column(self) -> pa.Field:
        name = self._name()
        self._takes(":")
        kind = self._type(name)
        nullable: bool | None = None
        comment: str | None = None
        while self._next.kind in ("word", "quoted"):
            word = self._take()
            if word.upper in ("NOT", "NULL") and nullable is None and (word.upper == "NULL" or self._takes("NULL")):
                nullable = word.upper == "NULL"
            elif word.upper == "COMMENT" and comment is None and self._next.kind == "text":
                text = self._take().value[1:-1]
                comment = _ESCAPE.sub(lambda m: _ESCAPED.get(m[1], m[1]) if m[1] else m[0][0], text)
            else:
                advice = _ADVICE.get(word.upper, "A column has a type, NOT NULL and COMMENT; leave the rest out.")
                raise InvalidRequest(f"Column {name!r}: {word.value} is not supported. {advice}")
        notes = {COMMENT: comment.encode()} if comment else None
        return pa.field(name, kind, nullable=nullable is not False, metadata=notes)

    def _type(self, column: str) -> pa.DataType:
        token = self._take()
        word = token.upper
        if not word:
            self._refuse(f"column {column!r} has no type")
        if self._next == _Token("sign", "<"):
            return self._nested(word, column)
        digits = self._digits(column)
        if word in _DECIMALS:
            precision, scale, *more = [*digits, *(10, 0)[len(digits) :]]
            if more or not 1 <= precision <= MAX_DECIMAL_DIGITS:
                raise InvalidRequest(
                    f"Column {column!r}: a decimal has 1 to {MAX_DECIMAL_DIGITS} digits, as in DECIMAL(10,2)."
                )
            return pa.decimal128(precision, scale)
        if digits and (word in _LENGTHS or word in _TYPES):
            shown = f"{token.value}({', '.join(map(str, digits))})"
            instead = "STRING" if word in _LENGTHS else word
            raise InvalidRequest(f"Column {column!r}: the length in {shown} is not supported. Write {instead}.")
        if word == "DOUBLE":
            self._takes("PRECISION")
        if word not in _TYPES:
            raise InvalidRequest(
                f"Column {column!r}: type {token.value} cannot be stored. Write columns as 'id STRING, amount DECIMAL(10,2)', "
                f"with the types {', '.join(_TYPES)}, DECIMAL(p,s), ARRAY<...>, MAP<..., ...> and STRUCT<name: type>."
            )
        return _TYPES[word]

    def _digits(self, column: str) -> list[int]:
        """Parse numbers in brackets, if they come next."""
        if not self._takes("("):
            return []
        numbers: list[int] = []
        while not numbers or self._takes(","):
            token = self._take()
            if not re.fullmatch("[0-9]{1,9}", token.value) or token.kind != "word":
                self._refuse(f"the brackets of column {column!r} must hold whole numbers")
            numbers.append(int(token.value))
        self._expect(")", f"the type of column {column!r}")
        return numbers

    def _nested(self, word: str, column: str) -> pa.DataType:
        self._expect("<", f"the type of column {column!r}")
        match word:
            case "ARRAY":
                kind = pa.list_(pa.field("element", self._type(column)))
            case "MAP":
                key = self._type(column)
                self._expect(",", f"the map of column {column!r}")
                kind = pa.map_(key, self._type(column))
            case "STRUCT":
                kind = pa.struct(self._fields(column))
            case _:
                self._refuse(f"{word} of column {column!r} holds no other types")
        self._expect(">", f"the type of column {column!r}")
        return kind

    def _fields(self, column: str) -> list[pa.Field]:
        fields = [self._field(column)]
        while self._takes(","):
            fields.append(self._field(column))
        names = [field.name for field in fields]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InvalidRequest(f"Column {column!r}: its struct has the field {twice!r} twice.")
        return fields

    def _field(self, column: str) -> pa.Field:
        name = self._name()
        self._takes(":")
        kind = self._type(f"{column}.{name}")
        if self._next.kind == "word":
            word = " ".join(token.value for token in self._tokens[self._at : self._at + 2] if token.kind == "word")
            raise InvalidRequest(f"Column {column!r}: {word} is for whole columns, not inside a struct.")
        return pa.field(name, kind)


def as_schema(schema: "pa.Schema | str | Any") -> pa.Schema:  # noqa: ANN401
    """Return a schema that a user gave as Arrow's, as Spark's or as DDL text. Refuse any other type."""
    if isinstance(schema, pa.Schema):
        return schema
    if isinstance(schema, str):
        return parse_ddl(schema)
    if hasattr(schema, "jsonValue"):
        struct = schema.jsonValue()
        if re.search(r'"(var)?char\(', json.dumps(struct)):
            raise InvalidRequest(
                "A schema has a column of type CHAR or VARCHAR; the length is not supported. Use StringType."
            )
        return from_struct_json(struct)
    raise InvalidRequest(f"A schema is a pyarrow.Schema, a Spark StructType or DDL text, not {type(schema).__name__}.")


def as_type(kind: pa.DataType | str, *, column: str) -> pa.DataType:
    """Return a type that a user gave as Arrow's or as DDL text."""
    if isinstance(kind, str):
        kind = as_schema(f"`{column}` {kind}").field(0).type
    return canonical_type(kind, column=column)
