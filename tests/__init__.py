"""Tests. The path names the subject: `tests/<kind>/test_<subject>.py`."""
