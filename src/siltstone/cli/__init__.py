"""The command `silt`."""
