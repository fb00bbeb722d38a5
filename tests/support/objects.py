"""An object store like S3 for one test run, in a separate process on a free port of 127.0.0.1."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from siltstone.spark.connect_server import free_port, listens

BUCKET = "builds"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
START_SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class ObjectStore:
    """A running server."""

    port: int
    process: "subprocess.Popen[bytes]"

    def log(self, name: str) -> str:
        """Return the address of a log in this store."""
        return f"delta+s3://{BUCKET}/{name}?endpoint=http://127.0.0.1:{self.port}&allow_http=true"

    def names(self, prefix: str) -> list[str]:
        """Return the names of the objects below a prefix."""
        client = _client(self.port)
        return [item["Key"] for item in client.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])]

    def delete(self, name: str) -> None:
        """Delete an object."""
        _client(self.port).delete_object(Bucket=BUCKET, Key=name)


@contextmanager
def object_store(folder: Path) -> Iterator[ObjectStore]:
    """Start a server with an empty bucket, and stop it at the end."""
    store = _started(folder, tries=3)
    try:
        yield store
    finally:
        store.process.kill()
        store.process.wait()


def _started(folder: Path, *, tries: int) -> ObjectStore:
    """Start a server. Try again on another port: another process may take the free port before the server binds it."""
    port = free_port()
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            stdout=log,
            stderr=log,
            env=os.environ | CREDENTIALS,
        )
    try:
        _await(port, process)
        _client(port).create_bucket(Bucket=BUCKET)
    except Exception:
        process.kill()
        process.wait()
        if tries == 1:
            raise
        return _started(folder, tries=tries - 1)
    return ObjectStore(port=port, process=process)


def _client(port: int):  # noqa: ANN202  # boto3 has no types
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name=CREDENTIALS["AWS_REGION"],
        aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
    )


def _await(port: int, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_SECONDS
    while not listens(port):
        assert process.poll() is None, "the object store ended"
        assert time.monotonic() < deadline, "the object store did not start in time"
        time.sleep(0.1)
