"""One Delta table on a disk or in an object store: the commit path, reads of the log, checkpoints, Parquet.

Commit: `table` (the only place that commits), `commit_lock` (order of attempts), `staged_files` (files verified before a log
names them), `entry_writer`, `fsync`, `group_commit` (one entry for several batches), `object_store_table`, `foreign_commits`
(undo). Read: `table_reader`, `log_reader`, `log_replay` (newest version from its entries), `full_replay` (a small log
without delta-rs), `path_checks`, `parquet`, `row_group_reader`, `read_cache`, `layout` (paths of a lake), `named_rows`
(one live row for each name: registry and leases). After commits:
`checkpoints`, `checkpoint_checksums`, `background` (when they run).
"""
