"""Answers a query on the hot engine: translated once, run inside a reader's transaction, with Spark's types.

A row can raise an error while the query runs. The cause is an overflow, a division by zero, or letters that the engines
treat differently. Then `HotExecutionFailed` is raised, and Spark answers a query for which either engine is allowed.
"""

import datetime
import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from sqlglot import exp

from siltstone.errors import Reason
from siltstone.query.gate.checked_query import CheckedQuery, Source
from siltstone.query.hot import change_set
from siltstone.query.hot.duckdb_types import UnsupportedType, check_values, columns_sql
from siltstone.query.hot.read_transactions import Reader
from siltstone.query.result import answered_schema, in_form
from siltstone.query.translate import Unsupported
from siltstone.query.translate.select import Relation, Translated, translate
from siltstone.query.translate.typed_sql import GUARD

if TYPE_CHECKING:
    from siltstone.query.cancellation import ActiveQuery
    from siltstone.query.hot.cache import HotSnapshot

CACHED_TRANSLATIONS: Final = 256
_MARK: Final = f"silt_{secrets.token_hex(8)}_"
"""Prefix of table placeholders in a translation, which outlives table names.

It is random, so that no text contains it by chance.
"""
_ODD_TREES: Final = (AttributeError, KeyError, IndexError, TypeError, ValueError, RecursionError)
"""Errors of a translation rule on a tree of an unexpected form."""


class HotExecutionFailed(Exception):  # noqa: N818
    """The hot engine started and could not answer; the message is a phrase with the reason."""

    def __init__(self, message: str, *, reason: Reason | None = None) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class HotPlan:
    """A translated query. Its table names are filled in later."""

    translated: Translated
    sources: tuple[Source, ...]
    schema: pa.Schema
    """Columns of the result, in the form of results."""

    def sql(self, tables: Mapping[str, str]) -> str:
        """Return the SQL with the current table names."""
        text = self.translated.sql
        for number, source in enumerate(self.sources):
            text = text.replace(f"{_MARK}{number}_", tables[str(source.name)])
        return text


class Translations:
    """Cache of translated queries, the oldest evicted first. Thread-safe."""

    def __init__(self) -> None:
        self._cached: OrderedDict[tuple[object, ...], HotPlan | str] = OrderedDict()
        self._mutex = threading.Lock()

    def plan(self, admitted: CheckedQuery, schemas: Mapping[str, pa.Schema], *, max_rows: int) -> HotPlan:
        """Translate a query over datasets with these columns."""
        kinds = tuple((name, _kind(value)) for name, value in sorted(admitted.parameters.items()))
        key = (admitted.normalised, max_rows, kinds, *schemas.items())
        with self._mutex:
            plan = self._cached.get(key)
        if plan is None:
            plan = _translate(admitted, schemas, max_rows=max_rows)
            with self._mutex:
                self._cached[key] = plan
                while len(self._cached) > CACHED_TRANSLATIONS:
                    self._cached.popitem(last=False)
        if isinstance(plan, str):
            raise Unsupported(plan)
        return plan


def _translate(admitted: CheckedQuery, schemas: Mapping[str, pa.Schema], *, max_rows: int) -> HotPlan | str:
    """Translate, or return the reason why not."""
    sources = admitted.references
    numbers: dict[tuple[str, ...], int] = {source.path: number for number, source in enumerate(sources)}

    def relation(table: exp.Table) -> Relation:
        number = numbers[tuple(part.name for part in table.parts)]
        return Relation(sql=f"{_MARK}{number}_", schema=schemas[str(sources[number].name)])

    try:
        translated = translate(admitted.tree, tables=relation, parameters=admitted.parameters, limit=max_rows + 1)
    except Unsupported as error:
        return str(error)
    except _ODD_TREES:
        return "a form that it does not know"
    return HotPlan(translated=translated, sources=sources, schema=answered_schema(translated.schema))


def _kind(value: object) -> object:
    """Return what a translation depends on of a parameter: its type, and the size of a whole number or decimal."""
    match value:
        case bool():
            return bool
        case int():
            return (int, -(2**31) <= value < 2**31)
        case Decimal():
            return (Decimal, value.as_tuple().exponent, len(value.as_tuple().digits))
        case datetime.datetime():
            return (datetime.datetime, value.tzinfo is not None)
        case _:
            return type(value)


def bound(value: object) -> object:
    """Return the value to bind for a parameter. Times and decimals are passed as text that the SQL casts."""
    match value:
        case datetime.datetime():
            return (value.astimezone(datetime.UTC) if value.tzinfo else value).isoformat(sep=" ")
        case datetime.date():
            return value.isoformat()
        case Decimal():
            return f"{value:f}"
        case _:
            return value


def answer(plan: HotPlan, parameters: Mapping[str, object], view: "HotSnapshot", query: "ActiveQuery") -> pa.Table:
    """Run a translated query in a reader's transaction.

    Raises:
        HotExecutionFailed: the engine raised an error, or a guard found a value that the engines treat differently.
        Unavailable: its time is up, or it was cancelled.
    """
    import duckdb

    values = {name: bound(parameters[name]) for name in plan.translated.parameters}
    sql = plan.sql(view.tables)
    try:
        with query.interruptible(view.cursor.interrupt, in_process=True):
            rows = view.cursor.sql(sql, params=values) if values else view.reader.prepared(sql)
            table = rows.to_arrow_table()
    except duckdb.InterruptException as error:
        if query.is_cancelled:
            raise query.error() from error
        raise KeyboardInterrupt from error
    except duckdb.OutOfMemoryException as error:
        raise HotExecutionFailed(
            "it would take more memory than hot queries have (the setting hot_query_mb)", reason=Reason.MEMORY
        ) from error
    except (duckdb.Error, pa.ArrowException) as error:
        if query.is_cancelled:
            raise query.error() from error
        raise HotExecutionFailed(_why(error)) from error
    return in_form(table, plan.schema)


def explained(plan: HotPlan, parameters: Mapping[str, object], view: "HotSnapshot") -> str:
    """Return the engine's plan with the names of the datasets."""
    import duckdb

    values = {name: bound(parameters[name]) for name in plan.translated.parameters}
    try:
        lines = view.cursor.execute(f"EXPLAIN {plan.sql(view.tables)}", values or None)
        text = "\n".join(str(row[1]) for row in lines.fetchall())
    except duckdb.Error as error:
        raise HotExecutionFailed(_why(error)) from error
    for name, table in view.tables.items():
        database, _, inner = table.rpartition(".")
        for shown in (table, f'{database}."{inner}"'):
            text = text.replace(shown, name)
    return text


@contextmanager
def registered(view: "HotSnapshot", tables: Mapping[str, pa.Table]) -> Iterator["HotSnapshot"]:
    """Give a view that reads datasets from Arrow tables for a block, because raw rows are never resident."""
    reader = Reader(view.cursor.cursor())  # a separate cursor, because its prepared queries keep the rows in memory
    names = {name: f"silt_raw_{number}" for number, name in enumerate(tables)}
    schemas = {name: table.schema for name, table in tables.items()}
    try:
        for table in tables.values():
            columns_sql(table.schema)  # raises for a type that DuckDB does not have
            check_values(table)
        with change_set.registered(reader.cursor, {names[name]: table for name, table in tables.items()}):
            yield replace(view, reader=reader, tables=names, schemas=schemas)
    except UnsupportedType as error:
        raise HotExecutionFailed(str(error).rstrip(".")) from error
    finally:
        reader.end()


def _why(error: Exception) -> str:
    line = str(error).splitlines()[0] if str(error) else type(error).__name__
    at = line.find(GUARD)
    return f"a row has {line[at + len(GUARD) :]}" if at >= 0 else line
