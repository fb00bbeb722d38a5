"""Bulk loads on Spark: files or a database to one commit.

`file_ingest` (new and valid files) on `source_files`, `file_formats`, `csv_options`, `schema_inference`, `loaded_files`,
`quarantine`; `jdbc`; `loader` (a frame to a commit) on `staged_load` (a frame to files) with `row_validation`,
`latest_row`, `sorted_write`, `partition_groups`.
"""
