"""Addresses of event logs: a URI names the backend, the location and its options.

``memory:`` · ``sqlite:///relative.db`` · ``sqlite:////absolute.db`` · ``postgresql://user@host:5432/name`` ·
``delta:///absolute/path`` · ``delta+s3://bucket/path?region=eu-central-1`` ·
``delta+azure://container/path?account=name``

Credentials of object stores come from the environment, never from an address.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from siltstone.errors import InvalidRequest

FORMS: Final = "memory:, sqlite:///path, postgresql://host/name, delta:///path, delta+s3://bucket/path or delta+azure://container/path"


class BackendKind(StrEnum):
    """The backend that stores a log."""

    MEMORY = "memory"
    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"
    DELTA = "delta"
    DELTA_S3 = "delta+s3"
    DELTA_AZURE = "delta+azure"


OPTIONS: Final[Mapping[BackendKind, Mapping[str, str]]] = {
    BackendKind.DELTA_S3: {
        "region": "aws_region",
        "endpoint": "aws_endpoint",
        "allow_http": "allow_http",
        "virtual_hosted": "aws_virtual_hosted_style_request",
    },
    BackendKind.DELTA_AZURE: {
        "account": "azure_storage_account_name",
        "endpoint": "azure_storage_endpoint",
        "allow_http": "allow_http",
    },
}
"""Allowed query parameters of an address, and the option of the object store that each one sets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The backend and location of a log. `shown` is the URI without a password."""

    backend: BackendKind
    uri: str
    shown: str
    path: str = ""
    bucket: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    """Connection options of an object store."""


def parse_address(uri: str) -> Address:
    """Parse the URI of a log.

    Raises:
        InvalidRequest: it names no known backend or no location.

    >>> parse_address("sqlite:///builds.db").path
    'builds.db'
    >>> parse_address("postgresql://ada:secret@db/builds").shown
    'postgresql://ada:***@db/builds'
    """
    scheme, colon, rest = uri.partition(":")
    backends = {backend.value: backend for backend in BackendKind} | {"postgres": BackendKind.POSTGRESQL}
    if not colon or scheme not in backends:
        raise InvalidRequest(f"{_hidden(uri)!r} is not an address of an event log: use {FORMS}.")
    backend = backends[scheme]
    try:
        parts = urlsplit(uri)
    except ValueError as error:
        raise InvalidRequest(f"{_hidden(uri)!r} is not an address of an event log: {error}. Use {FORMS}.") from error
    match backend:
        case BackendKind.MEMORY:
            if rest:
                raise InvalidRequest("An event log in memory has no name: use 'memory:'.")
            return Address(backend=backend, uri=uri, shown=uri)
        case BackendKind.SQLITE | BackendKind.DELTA:
            return Address(backend=backend, uri=uri, shown=uri, path=_local_path(parts, backend))
        case BackendKind.POSTGRESQL:
            if not parts.path.strip("/"):
                raise InvalidRequest(f"{_hidden(uri)!r} names no database: use postgresql://user@host:5432/name.")
            _check_port(parts, uri)
            return Address(backend=backend, uri=uri, shown=_hidden(uri))
        case BackendKind.DELTA_S3 | BackendKind.DELTA_AZURE:
            if not parts.netloc or not parts.path.strip("/"):
                container = "bucket" if backend is BackendKind.DELTA_S3 else "container"
                raise InvalidRequest(
                    f"{uri!r} must name a {container} and a path in it: use {backend.value}://{container}/path."
                )
            return Address(
                backend=backend,
                uri=uri,
                shown=uri,
                path=unquote(parts.path.strip("/")),
                bucket=parts.netloc,
                options=_options(parts.query, backend),
            )


def _check_port(parts: SplitResult, uri: str) -> None:
    try:
        _ = parts.port
    except ValueError as error:
        raise InvalidRequest(f"{_hidden(uri)!r} has a port that is not a number.") from error


def _options(query: str, backend: BackendKind) -> dict[str, str]:
    """Return the options of a URI's query by the store's names. Refuse unknown options and secrets."""
    allowed = OPTIONS[backend]
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in allowed:
            raise InvalidRequest(
                f"{backend.value}: does not know {name!r}: use {', '.join(allowed)}. Credentials come from the environment."
            )
        options[allowed[name]] = value
    return options


def _local_path(parts: SplitResult, backend: BackendKind) -> str:
    """Return the path of ``scheme:///path``: the text after the third slash, as in SQLAlchemy; for Delta, absolute."""
    if parts.netloc or not parts.path.startswith("/") or parts.query or parts.fragment:
        raise InvalidRequest(f"Use {backend.value}:///path, with three slashes and nothing but a path.")
    path = unquote(parts.path[1:] if backend is BackendKind.SQLITE else parts.path)
    if not path.strip("/"):
        raise InvalidRequest(f"{backend.value}:/// names no path.")
    if path == ":memory:":
        raise InvalidRequest("An event log in memory is 'memory:'.")
    return path


def _hidden(uri: str) -> str:
    """Return a URI with its password masked."""
    before, at, after = uri.rpartition("@")
    scheme, slashes, user = before.partition("://")
    after = _PASSWORD.sub(r"\1***", after)
    if not at or ":" not in user:
        return f"{before}{at}{after}"
    return f"{scheme}{slashes}{user.split(':', 1)[0]}:***@{after}"


_PASSWORD: Final = re.compile(r"([?&](?:ssl)?password=)[^&]*", re.IGNORECASE)
