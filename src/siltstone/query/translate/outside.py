"""The error for queries outside the hot subset."""


class Unsupported(Exception):  # noqa: N818
    """The query is outside the subset; the message is a phrase that names the unsupported part."""
