"""Translates a checked query from Spark's dialect to DuckDB's SQL with the same meaning, or raises the reason why not.

Nothing is passed through unchecked. Each node of the tree has its own rule. The rule knows the node's type in Spark,
and writes SQL with that type and those values. A node, an argument or a type without a rule raises `Unsupported`. Then
Spark answers.

`select` (queries), `scopes` (names), `expressions`, `functions`, `aggregates`, `types`, `typed_sql` (SQL text with its type),
`subset` (the published subset, as data), `outside` (the error).
"""

from siltstone.query.translate.outside import Unsupported
from siltstone.query.translate.select import Relation, Translated, translate

__all__ = ["Relation", "Translated", "Unsupported", "translate"]
