"""Hot against Spark: the same questions, the same columns, types and rows."""
