"""What is not in the subset."""


class Unsupported(Exception):  # noqa: N818
    """The question lies outside the subset; the message is a phrase that says what in it does."""
