"""From a checked question in Spark's dialect to DuckDB's SQL with the same meaning, or the reason why not.

Nothing is passed through: each node of the tree has a rule of its own here, which knows the type that Spark gives it and writes
SQL that yields that type and those values. A node, an argument or a type without a rule raises `Unsupported`:
Spark answers then.
"""

from siltstone.query.translate.outside import Unsupported
from siltstone.query.translate.select import Relation, Translated, translate

__all__ = ["Relation", "Translated", "Unsupported", "translate"]
