"""The hot cache: whole datasets as merged rows in memory, refreshed before each answer.

Terms. A *resident* is one dataset in memory. A *fill* reads the whole dataset, a *refresh* applies new changes. A
dataset with *unsupported* types or values can never be resident. The *state* of a resident is the incarnation,
sequence, content version and columns that its rows show. It is part of the result-cache key.

1. `dataset_resolver` finds the dataset of a name. This costs one look at the registry.
2. `admission` (pure) decides whether a dataset is admitted and which residents are evicted for it.
3. `fill` streams base into a new table, one piece at a time, without Spark.
4. `change_set` computes the effect of the changes above a sequence, and applies it in a fill and in a refresh.
5. `resident` is one dataset in memory.
6. `duckdb_engine` is DuckDB without files, network or changeable settings. Each dataset has an in-memory database of
   its own, so that an eviction frees all of it. `duckdb_types` maps the types.
7. `residents` has a slot for each dataset: its lock and its counters, also while it is not resident. `fill_queue`
   fills slots, `memory_reclaim` shrinks them after answers. `read_transactions` manages the readers' transactions.
8. `directives` passes requests of commands to every long-running process, and reports what each process holds.
9. `cache` is the interface of the package, `stats` has the counters.

Invariant: a query sees every write that was acknowledged before it. A refresh compares sequence and content version,
never the version of base. So a fold, a squash, a roll-up or a clustering changes nothing here.
"""

from siltstone.query.hot.admission import AdmissionDecision
from siltstone.query.hot.cache import HotCache, HotSnapshot
from siltstone.query.hot.resident import NotResident, State

__all__ = ["AdmissionDecision", "HotCache", "HotSnapshot", "NotResident", "State"]
