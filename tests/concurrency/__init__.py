"""Several processes and threads on one dataset at once."""
