"""A query that the gate has admitted: its tree, datasets and parameters."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlglot import exp

from siltstone.model.names import RAW_PREFIX, DatasetName
from siltstone.query.gate.tokenizer import TextPosition


@dataclass(frozen=True, slots=True, order=True)
class Source:
    """A table of a query: a dataset's merged view, or its raw rows.

    >>> str(Source(DatasetName.parse("crm.sales.calls"), raw=True))
    'crm.sales.__raw__calls'
    """

    name: DatasetName
    raw: bool = False

    @classmethod
    def parse(cls, catalog: str, schema: str, table: str) -> "Source":
        """Parse a name; a prefix of its table requests the raw rows."""
        raw = table.startswith(RAW_PREFIX)
        return cls(DatasetName.parse(".".join([catalog, schema, table.removeprefix(RAW_PREFIX)])), raw)

    @property
    def path(self) -> tuple[str, str, str]:
        """Catalog, schema and table name in a query."""
        return self.name.catalog, self.name.schema, f"{RAW_PREFIX if self.raw else ''}{self.name.table}"

    def __str__(self) -> str:
        return ".".join(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedQuery:
    """One SELECT that may run.

    Copy a tree before changing it, because admitted queries are cached and shared.
    """

    normalised: str
    """The query in a normal form, independent of spacing, comments, letter case of keywords and default schema."""
    tree: exp.Query
    """The query in Spark's dialect, parsed from `normalised`.

    A table of three parts is a dataset, a table of one part is a common table expression. Every table has an alias. If
    sqlglot's meaning of a function differs from Spark's, all functions are `exp.Anonymous`.
    """
    checked: exp.Query
    """The checked tree, in which functions are names with arguments; `spark_text` writes it for Spark."""
    references: tuple[Source, ...]
    """The datasets that it names, each once, in the order of the text."""
    placeholders: Mapping[str, TextPosition]
    """Its placeholders (``exp.Placeholder`` in the tree) by name, each with its first position in the text."""
    parameters: Mapping[str, object] = field(default_factory=dict)
    """The values of its placeholders, by name."""
    functions: frozenset[str]
    """The functions that it calls, by Spark's names in lower case."""
    volatile: frozenset[str]
    """Its functions and names with a different result each time (``rand``, ``now``).

    If there are any, the result is not cached.
    """
    catalog: str | None
    schema: str | None

    @property
    def names(self) -> tuple[str, ...]:
        """The datasets that it reads, each once, also if it reads both the merged view and the raw rows."""
        return tuple(dict.fromkeys(str(source.name) for source in self.references))

    @property
    def is_raw(self) -> bool:
        """True if it reads raw rows."""
        return any(source.raw for source in self.references)

    @property
    def is_cacheable(self) -> bool:
        """True if the same query on the same data has the same answer. A fold changes raw rows."""
        return not self.volatile and not self.is_raw
