"""What a dataset does: writing changes, taking snapshots, merging, loading, and the registry of names."""
