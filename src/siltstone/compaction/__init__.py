"""Compactions: what keeps a dataset fast and makes it forget. Plan, run, verify, commit, prune, sweep, purge."""
