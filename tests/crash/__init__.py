"""A process that dies or fails at every fail point."""
