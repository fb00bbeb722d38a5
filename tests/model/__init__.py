"""The storage protocol as an explicit-state model, and the search that checks it."""
