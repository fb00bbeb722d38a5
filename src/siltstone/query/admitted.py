"""A query that the gate has let through: what it asks, of which datasets, with which values."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlglot import exp

from siltstone.errors import InvalidRequest
from siltstone.model.names import PARTS, RAW_PREFIX, DatasetName


@dataclass(frozen=True, slots=True, order=True)
class Source:
    """What a query reads: a dataset's merged view, or its raw rows.

    >>> str(Source(DatasetName.parse("crm.sales.calls"), raw=True))
    'crm.sales.__raw__calls'
    """

    name: DatasetName
    raw: bool = False

    def __str__(self) -> str:
        return f"{self.name.catalog}.{self.name.schema}.{RAW_PREFIX if self.raw else ''}{self.name.table}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """One SELECT that may run.

    Whoever changes the tree copies it first: an admitted query is kept and given out again.
    """

    text: str
    """The characters that were asked."""
    normalised: str
    """The same question in one form: the same for any spacing, comments, letter case of keywords and default schema."""
    tree: exp.Query
    """The question in Spark's dialect. A table of three parts is a dataset, one of one part a common table expression."""
    references: tuple[Source, ...]
    """The datasets it names, each once, in the order of the text."""
    parameters: Mapping[str, object]
    """The values of its placeholders (``exp.Placeholder`` in the tree), by name."""
    functions: frozenset[str]
    """The functions it calls, by Spark's names in lower case."""
    volatile: frozenset[str]
    """Those of them whose answer is another one each time: a result that used one is not kept."""

    def with_tables(self, names: Mapping[Source, str]) -> exp.Query:
        """Return a copy of the tree that reads each dataset from the table that is named for it.

        A table keeps its alias; one without an alias keeps its own name as alias, so that its columns are found.
        """
        tree = self.tree.copy()
        for table in list(tree.find_all(exp.Table)):
            if len(table.parts) == PARTS:
                alias = table.alias or table.name
                table.set("this", exp.to_identifier(names[source_of(table)], quoted=True))
                table.set("db", None)
                table.set("catalog", None)
                if not table.args.get("alias"):
                    table.set("alias", exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))
        return tree


def source_of(table: exp.Table) -> Source:
    """Return the dataset that a table of three parts names.

    Raises:
        InvalidRequest: the name cannot be that of a dataset.
    """
    names = [part.name for part in table.parts]
    if len(names) != PARTS:
        raise InvalidRequest(f"{'.'.join(names)} is not a dataset: name catalog.schema.table.")
    raw = names[-1].startswith(RAW_PREFIX)
    return Source(DatasetName.parse(".".join([*names[:-1], names[-1].removeprefix(RAW_PREFIX)])), raw)
