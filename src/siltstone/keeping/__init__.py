"""Keeping a lake in shape: what a lake does for its compactor, and for whoever asks it. `Lake` is built on it."""
