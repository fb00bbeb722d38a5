"""Any writes in any order: every reader returns the rows of a plain dict."""
