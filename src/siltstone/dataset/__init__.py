"""Datasets: the user's handle, its two tables, and the registry of names.

`dataset` (the facade), `ports` (what it needs from the layers above), `description`, `store` (tables of one
incarnation), `snapshot`, `table_invariants` and `table_repair` (how `changes` and `base` relate), `registry`,
`handles`, `dataset_folder`, `orphan_folders`, `adoption`, `lake_folder`, `schema_changes`, `schema_compat`, `tiers`,
`history`, `audit`. Packages: `write`, `read`, `load`.
"""
