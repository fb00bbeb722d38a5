"""The hot cache: whole datasets as merged rows in memory, fresh before each answer.

Terms. A *resident* is one dataset in memory. A *fill* reads all of it, a *refresh* applies what is new. *Cold* is a dataset that
is not resident, *unfit* one that never can be. The *state* of a resident is what its rows are a view of: incarnation, sequence,
content version and columns; it is the key for whoever keeps answers.

1. `dataset_resolver` finds the dataset behind a name, which costs one look at the registry.
2. `admission` (pure) says whether a dataset is admitted and who has to go for it.
3. `fill` streams base into a table of its own, a piece at a time, without Spark.
4. `change_set` says what changes above a sequence do to the rows; `resident` applies it, in a fill and before each answer.
5. `duckdb_engine` is DuckDB: no files, no network, no settings; each dataset is an in-memory database of its own, so that it
   goes whole.
6. `residents` knows who is there, `fill_queue` brings them in, `memory_reclaim` keeps them small behind answers,
   `read_transactions` have transactions.
7. `directives` brings what commands ask of every process that lasts, and says what each holds.
8. `cache` is what others hold; `stats` counts.

Invariant: whoever asks sees every write that was acknowledged before. Followers go by sequence and content version, never by the
version of base: a fold, a squash, a roll-up or a clustering changes nothing here.
"""

from siltstone.query.hot.admission import Decision
from siltstone.query.hot.cache import HotCache, HotSnapshot
from siltstone.query.hot.resident import NotResident, State

__all__ = ["Decision", "HotCache", "HotSnapshot", "NotResident", "State"]
