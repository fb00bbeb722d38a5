"""Frozen values and pure functions, no I/O.

Datasets: `names`, `spec`, `schema`, `ddl` (schemas from text), `evolution` (schema changes), `tiers`, `periods`.
Tables: `columns`, `files`, `commit`, `as_of`, `small_runs`. Processes: `lease`, `roles`, `compaction_request`.
Results: `reports`, `preview`, `frames`, `units`. Helpers: `arrays`, `numbers`, `sql_parsing`.
"""
