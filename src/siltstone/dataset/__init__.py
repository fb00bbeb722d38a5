"""Datasets: the user's handle, its two tables, and the registry of names.

`dataset` (the facade), `store` (tables of one incarnation), `snapshot`, `table_invariants` and `table_repair` (how
`changes` and `base` relate), `registry`, `dataset_folder`, `orphan_folders`, `adoption`, `lake_folder`,
`schema_changes`, `schema_compat`, `tiers`, `history`, `audit`, `purge_listeners`. Packages: `write`, `read`, `load`.
"""
