"""Imports of the children of tests before they are forked (`children.py`): nothing here starts a thread or opens a file."""

import pytest  # noqa: F401  # some targets are in test modules

import siltstone.eventlog.log
import siltstone.lake  # noqa: F401
import tests.support.appends
import tests.support.cycles
import tests.support.log_actors
import tests.support.maintenance
import tests.support.operations  # noqa: F401
