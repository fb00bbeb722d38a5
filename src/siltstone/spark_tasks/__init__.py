"""Code that runs inside Spark's Python workers.

`spark.arrow_tasks` makes Spark send these modules by value. So the workers need pyarrow and numpy, but not Siltstone, and no
module imports anything else of it.

`io` (Arrow tables as bytes, output files), `parquet_checksums`, `values` (rules for one value), `text_columns` (the same for a
whole column of text), `json_rows`, `csv_rows`, `sort` (sorted loads), `fold`, `merge_files` (roll-ups), `stream` (query results).
"""
