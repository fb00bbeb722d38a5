"""Erasure, and its proof: `scan` searches a folder for values that must be gone."""
