"""Parses user input: rows in JSON, keys as text, query parameters."""

import datetime
import decimal
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa

from siltstone.errors import InvalidRequest, NotFound
from siltstone.model.schema import a_type
from siltstone.spark_tasks.values import MISFITS, accepted, read_json, text_reader

STANDARD_INPUT: Final = "-"


@contextmanager
def open_text(source: str) -> Iterator[IO[str]]:
    """Open a file, or standard input for ``-``.

    Raises:
        NotFound: there is no such file.
        InvalidRequest: it is not a file of UTF-8 text.
    """
    try:
        if source == STANDARD_INPUT:
            yield sys.stdin
        else:
            with Path(source).open(encoding="utf-8-sig") as file:
                yield file
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound(f"There is no file {source}.") from error
    except (IsADirectoryError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{source} is not a file of UTF-8 text: {error}.") from error


def read_rows(source: str | None, arguments: Sequence[str]) -> list[Any]:
    """Return the rows of ``--row`` options, or of a file: a JSON array, one object, or one object per line.

    Raises:
        InvalidRequest: neither or both were given, or the text is not JSON.
    """
    if bool(arguments) == (source is not None):
        raise InvalidRequest("Pass rows as --row '{...}', or as one FILE ('-' for standard input).")
    if source is None:
        return [_json(text, where=f"--row {text!r}") for text in arguments]
    with open_text(source) as file:
        return _file_rows(file, source)


def _file_rows(file: IO[str], source: str) -> list[Any]:
    """Read a whole array or object, or one row per line. The first line that is not blank decides which."""
    name = "standard input" if source == STANDARD_INPUT else source
    numbered = ((number, line) for number, line in enumerate(file, start=1) if line.strip())
    number, first = next(numbered, (0, ""))
    if not first:
        return []
    if first.lstrip().startswith("["):
        document = _json(first + file.read(), where=name, line=number)
        return list(document) if isinstance(document, list) else [document]
    try:
        rows = [read_json(first)]
    except (ValueError, RecursionError):
        return [_json(first + file.read(), where=name, line=number)]  # one object over several lines
    rows += [_json(line, where=name, line=number) for number, line in numbered]
    return rows


def _json(text: str, *, where: str, line: int | None = None) -> Any:  # noqa: ANN401
    """Parse JSON of an argument, or of a file from `line` on. The error message has the line of the file."""
    try:
        return read_json(text)
    except json.JSONDecodeError as error:
        at = where if line is None else f"{where}, line {line + error.lineno - 1}"
        why = f"{error.msg} at column {error.colno}"
        raise InvalidRequest(f"{at} is not JSON: {why}. Nothing was written.") from error
    except RecursionError as error:
        raise InvalidRequest(f"{where} is not JSON: it is nested too deeply. Nothing was written.") from error
    except ValueError as error:
        at = where if line is None else f"{where}, from line {line} on,"
        raise InvalidRequest(f"{at} cannot be read: {error}. Nothing was written.") from error


def read_keys(texts: Iterable[str], schema: pa.Schema, key: Sequence[str]) -> list[Any]:
    """Return keys from text: the value itself, or for a composite key a JSON array or object of its columns.

    Raises:
        InvalidRequest: a text is not a value of the key's type; the message names it.
    """
    kinds = [schema.field(name).type for name in key]
    if len(key) == 1:
        return [_typed(text, kinds[0], key[0]) for text in texts]
    return [_composite(text, kinds, key) for text in texts]


def read_subjects(texts: Iterable[str], schema: pa.Schema, subject: Sequence[str]) -> list[Any]:
    """Return subjects of a log from text: the value itself, or a JSON object of one or more subject columns.

    With one subject column every text is its value, also one that looks like JSON.

    Raises:
        InvalidRequest: a text is not a value of its column's type; the message names it.
    """
    if len(subject) <= 1:
        return read_keys(texts, schema, subject) if subject else list(texts)
    subjects = []
    for text in texts:
        named = _json_or_none(text)
        if not isinstance(named, dict) or not named or not set(named) <= set(subject):
            names = ", ".join(subject)
            raise InvalidRequest(f"{text!r} is not a JSON object that names some of {names}. Nothing was written.")
        subjects.append({name: _typed(value, schema.field(name).type, name) for name, value in named.items()})
    return subjects


def _json_or_none(text: str) -> Any:  # noqa: ANN401
    try:
        return read_json(text)
    except (ValueError, RecursionError):
        return None


def _composite(text: str, kinds: Sequence[pa.DataType], key: Sequence[str]) -> dict[str, Any]:
    values = _json_or_none(text)
    if isinstance(values, list) and len(values) == len(key):
        values = dict(zip(key, values, strict=True))
    if not isinstance(values, dict) or set(values) != set(key):
        raise InvalidRequest(f"Key {text!r} is not a JSON array or object of {', '.join(key)}.")
    return {name: _typed(values[name], kind, name) for name, kind in zip(key, kinds, strict=True)}


def _typed(value: Any, kind: pa.DataType, column: str) -> Any:  # noqa: ANN401
    """Parse text as the key column's type. A string column takes the text unchanged, and accepts only text."""
    if not isinstance(value, str) or pa.types.is_string(kind):
        return value
    try:
        return pa.scalar(text_reader(kind)(value), kind).as_py()
    except MISFITS as error:
        raise InvalidRequest(
            f"Key {value!r} is not {a_type(kind)}, which column {column!r} is. Accepted: {accepted(kind)}."
        ) from error


def read_lines(source: str) -> list[str]:
    """Return the lines of a file that are not blank."""
    with open_text(source) as file:
        return [line.rstrip("\n") for line in file if line.strip()]


def _utc(text: str) -> datetime.datetime:
    moment = datetime.datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)


PARAMETER_TYPES: Final[dict[str, Callable[[str], object]]] = {
    "int": int,
    "double": float,
    "decimal": decimal.Decimal,
    "string": str,
    "boolean": {"true": True, "false": False}.__getitem__,
    "date": datetime.date.fromisoformat,
    "timestamp": _utc,
    "timestamp_ntz": lambda text: datetime.datetime.fromisoformat(text).replace(tzinfo=None),
    "null": {"": None, "null": None}.__getitem__,
}
"""The function that parses a parameter, by its type."""


def read_parameter(text: str) -> tuple[str, object]:
    """Parse ``name=value`` or ``name:type=value``. Without a type, numbers, true, false and null are recognized.

    >>> read_parameter("n=5"), read_parameter("code:string=5"), read_parameter("share=0.5")
    (('n', 5), ('code', '5'), ('share', Decimal('0.5')))

    Raises:
        InvalidRequest: it has another form, or the value is not of its type.
    """
    named, equals, value = text.partition("=")
    name, colon, kind = named.partition(":")
    if not equals or not name or (colon and kind not in PARAMETER_TYPES):
        raise InvalidRequest(
            f"--param takes NAME=VALUE or NAME:TYPE=VALUE, with a type of {', '.join(PARAMETER_TYPES)}; not {text!r}."
        )
    try:
        return name, (PARAMETER_TYPES[kind] if colon else _inferred)(value)
    except (ValueError, ArithmeticError, KeyError) as error:
        raise InvalidRequest(f"--param {name}: {value!r} is not a valid {kind or 'number'}.") from error


def _inferred(value: str) -> object:
    if value in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[value]
    if re.fullmatch(r"-?\d+", value):
        return int(value)
    return decimal.Decimal(value) if re.fullmatch(r"-?(\d+\.\d*|\.\d+)", value) else value
