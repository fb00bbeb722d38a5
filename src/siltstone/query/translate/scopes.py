"""Name resolution for an expression: the sources of a SELECT and their columns, independent of letter case."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from siltstone.query.hot.duckdb_types import quoted
from siltstone.query.translate import Unsupported
from siltstone.query.translate.typed_sql import TypedSql, text_literal


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeSource:
    """A table, a subquery or a common table expression in FROM."""

    parts: tuple[str, ...]
    """The parts of its name, from the outermost; empty if it has no name."""
    columns: tuple[TypedSql, ...]
    lowered: tuple[str, ...] = field(init=False, compare=False)
    by_name: dict[str, list[TypedSql]] = field(init=False, compare=False)
    """Its columns, by their names in lower case."""

    def __post_init__(self) -> None:
        """Index names and columns, because a query may name each of thousands."""
        by_name: dict[str, list[TypedSql]] = {}
        for column in self.columns:
            if column.name is not None:
                by_name.setdefault(column.name.lower(), []).append(column)
        object.__setattr__(self, "lowered", tuple(part.lower() for part in self.parts))
        object.__setattr__(self, "by_name", by_name)

    def is_named(self, parts: Sequence[str]) -> bool:
        """True if these parts, in lower case, are the last parts of its name."""
        return bool(parts) and self.lowered[-len(parts) :] == tuple(parts)


@dataclass(slots=True)
class Scope:
    """The sources that one SELECT sees, and those around it."""

    sources: list[ScopeSource] = field(default_factory=list)
    outer: "Scope | None" = None
    open: bool = False
    """True while WHERE is translated.

    Only there may a subquery name columns of the query around it, and of no further one.
    """
    aliases: dict[str, TypedSql] = field(default_factory=dict)
    """Names of the SELECT's own columns, where they have precedence over those of its sources."""
    unclear: frozenset[str] = frozenset()
    """Names that Spark may resolve to a source's column or to an alias."""
    merged: bool = False
    """True if USING has merged columns. Then only Spark knows which source they belong to."""

    def find(self, parts: Sequence[str]) -> TypedSql:
        """Resolve a name of one or more parts."""
        if len(parts) == 1 and parts[0].lower() in self.unclear:
            raise Unsupported(f"the name {parts[0]}, which is a column and an alias")
        if len(parts) == 1 and parts[0].lower() in self.aliases:
            return self.aliases[parts[0].lower()]
        lowered = [part.lower() for part in parts]
        for depth in reversed(range(len(parts))):  # a source's name has precedence over a struct's
            qualifier, name, fields = lowered[:depth], lowered[depth], parts[depth + 1 :]
            among = [s for s in self.sources if s.is_named(qualifier)] if depth else self.sources
            matches = [column for s in among for column in s.by_name.get(name, ())]
            if len(matches) > 1:
                raise Unsupported(f"column {'.'.join(parts)}, which is ambiguous")
            if matches:
                return self._field(matches[0].named(parts[-1]), fields)  # Spark names it as the query does
        if self.outer is None:
            raise Unsupported(f"column {'.'.join(parts)}, which is not found")
        if not self.open:
            raise Unsupported(f"column {'.'.join(parts)} of an outer query beyond the WHERE of a subquery")
        return replace(self.outer, outer=None).find(parts)

    @staticmethod
    def _field(piece: TypedSql, path: Sequence[str]) -> TypedSql:
        for name in path:
            if not pa.types.is_struct(piece.kind):
                raise Unsupported(f"field {name} of something that is not a struct")
            matches = [field for field in piece.kind.fields if field.name.lower() == name.lower()]
            if len(matches) != 1:
                raise Unsupported(f"field {name}, which is not found")
            sql = f"struct_extract({piece.sql}, {text_literal(matches[0].name)})"
            piece = TypedSql(sql=sql, kind=matches[0].type, name=name)
        return piece

    def stars(self, qualifier: Sequence[str]) -> list[TypedSql]:
        """Return the columns of a star."""
        if qualifier and self.merged:
            raise Unsupported(f"{'.'.join(qualifier)}.* beside USING")
        lowered = [part.lower() for part in qualifier]
        among = [s for s in self.sources if s.is_named(lowered)] if qualifier else self.sources
        if not among or (qualifier and len(among) > 1):
            raise Unsupported(f"{'.'.join(qualifier)}.*, which is not found")
        return [column for s in among for column in s.columns]


def source_of(
    alias: str, parts: tuple[str, ...], columns: Sequence[tuple[str | None, str, pa.DataType]], names: Sequence[str]
) -> ScopeSource:
    """Create a source: each column with its visible name, its name in DuckDB and its type. An alias may list `names`."""
    if names and len(names) != len(columns):
        raise Unsupported("an alias with another number of columns")
    pieces = [TypedSql(name=name, sql=f"{alias}.{quoted(inner)}", kind=kind) for name, inner, kind in columns]
    named = [piece.named(name) for piece, name in zip(pieces, names, strict=True)] if names else pieces
    return ScopeSource(parts=parts, columns=tuple(named))
