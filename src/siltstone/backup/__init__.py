"""Backups of a lake: consistent copies beside writers, incremental by immutable files, and their restore."""
