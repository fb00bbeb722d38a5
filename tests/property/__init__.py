"""Whatever is written, in whatever order: every reader gives the rows of a plain dict."""
