"""The tests: the tree names the promise, `tests/<kind>/test_<subject>.py`."""
