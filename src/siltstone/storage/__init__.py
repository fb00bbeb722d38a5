"""Where bytes live: Delta tables and their one commit path, Parquet files, presence, the Spark session."""
