"""A query that the gate has let through: what it asks, of which datasets, with which values."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlglot import exp

from siltstone.model.names import RAW_PREFIX, DatasetName


@dataclass(frozen=True, slots=True, order=True)
class Source:
    """What a query reads: a dataset's merged view, or its raw rows.

    >>> str(Source(DatasetName.parse("crm.sales.calls"), raw=True))
    'crm.sales.__raw__calls'
    """

    name: DatasetName
    raw: bool = False

    @classmethod
    def parse(cls, catalog: str, schema: str, table: str) -> "Source":
        """Read a name; the prefix of its table asks for the raw rows.

        Raises:
            InvalidRequest: a part cannot be that of a dataset.
        """
        raw = table.startswith(RAW_PREFIX)
        return cls(DatasetName.parse(".".join([catalog, schema, table.removeprefix(RAW_PREFIX)])), raw)

    @property
    def table(self) -> str:
        """The name of its table in a query."""
        return f"{RAW_PREFIX if self.raw else ''}{self.name.table}"

    def __str__(self) -> str:
        return f"{self.name.catalog}.{self.name.schema}.{self.table}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedQuery:
    """One SELECT that may run.

    Whoever changes a tree copies it first: an admitted query is kept and given out again.
    """

    text: str
    """The characters that were asked."""
    normalised: str
    """The same question in one form: the same for any spacing, comments, letter case of keywords and default schema."""
    tree: exp.Query
    """The question in Spark's dialect, read from `normalised`. A table of three parts is a dataset, one of one part a common
    table expression; every table has an alias. Where the parser knows a function otherwise than Spark does, all functions are
    `exp.Anonymous`."""
    checked: exp.Query
    """The tree that was checked, in which functions are names with arguments; `gate.spark_text` writes it for Spark."""
    references: tuple[Source, ...]
    """The datasets it names, each once, in the order of the text."""
    parameters: Mapping[str, object]
    """The values of its placeholders (``exp.Placeholder`` in the tree), by name."""
    functions: frozenset[str]
    """The functions it calls, by Spark's names in lower case."""
    volatile: frozenset[str]
    """What in it has another answer each time (``rand``, ``now``): if there is any, a result is not kept."""
    catalog: str | None = None
    schema: str | None = None
