"""Backups of a lake: consistent copies beside writers, incremental by immutable files, and their restore.

`take` (pins and copies), `folder` (pool and manifests), `manifest`, `verify`, `restore` (with fencing).
"""
