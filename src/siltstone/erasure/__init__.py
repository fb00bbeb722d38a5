"""Forgetting, and the proof of it."""
