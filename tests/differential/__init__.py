"""Hot engine against Spark: the same queries, the same columns, types and rows."""
