"""Operations that rewrite or delete data of one dataset.

`dataset_maintenance` (entry point), `commit` (the order of durable steps), `fold_plan` and `fold` by `fold_arrow` (few
changes), `fold_shuffle` (many) or `fold_log` (logs), `squash`, `rewrite` for `roll_up` on `merge_small_files` and
`cluster`, `garbage_collection` (sweep, vacuum, purge), `unreadable_files`, `rewrite_errors`, `dataset_status`.
"""
