"""Another user of the machine gets nothing from our Spark, over its ports or from its files."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from siltstone.spark.connect_server import ConnectServer
from tests.support.internals import own_jvms, own_scratch, server_process, server_scratch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")

STRANGER = r"""
import encodings.idna, json, os, socket, struct, sys
from concurrent.futures import ThreadPoolExecutor
os.setgroups([]); os.setgid(65534); os.setuid(65534)
ports, folders = json.loads(sys.argv[1])

def text(value):
    return struct.pack(">i", len(value)) + value

def request(number, body):  # type 3: a request of Spark's transport protocol
    frame = b"\x03" + struct.pack(">qi", number, len(body)) + body
    return struct.pack(">q", len(frame) + 8) + frame

def open_blocks(*names):  # message 0 of its block transfer
    return b"\x00" + text(b"stranger") + text(b"driver") + struct.pack(">i", len(names)) + b"".join(map(text, names))

def call(endpoint):  # a message to an endpoint of the driver: addresses, a name, then a serialised Java object
    place = b"\x00\x01\x00\x09127.0.0.1" + struct.pack(">i", 1)
    return place + struct.pack(">h", len(endpoint)) + endpoint + b"\xac\xed\x00\x05t\x00\x01x"

def replies(port, body):
    found = []
    with socket.socket() as channel:
        channel.settimeout(5)
        channel.connect((socket.inet_ntoa(b"\x7f\x00\x00\x01"), port))
        channel.sendall(request(1, body))
        data = b""
        try:
            while (len(data) < 8 or len(data) < struct.unpack(">q", data[:8])[0]) and (part := channel.recv(65536)):
                data += part
        except (TimeoutError, ConnectionResetError):
            pass
    while len(data) > 8:
        size = struct.unpack(">q", data[:8])[0]
        if not 8 < size <= len(data):
            break
        found.append((data[8], data[9:size].decode(errors="replace")))
        data = data[size:]
    return found

answered = {}
bodies = [open_blocks(b"broadcast_%d_piece0" % n) for n in range(3)]
bodies += [call(b"CoarseGrainedScheduler"), call(b"endpoint-verifier")]
calls = [(port, body) for port in ports for body in bodies]
with ThreadPoolExecutor(len(calls)) as pool:
    for (port, _), found in zip(calls, pool.map(lambda one: replies(*one), calls)):
        answered.setdefault(port, []).extend(found)
read = []
for folder in folders:
    try:
        read += os.listdir(folder)
    except PermissionError:
        pass
print(json.dumps([answered, read]))
"""
SUCCESS, FAILURE = (1, 4), 5
"""Types of replies in Spark's transport protocol: a block or an answer, and a refusal."""


def listening_ports(process: int) -> list[int]:
    """Return the TCP ports at which a process listens; fail if it listens to the network."""
    inodes = set()
    for handle in Path(f"/proc/{process}/fd").iterdir():
        target = str(handle.readlink()) if handle.is_symlink() else ""
        inodes.add(target.removeprefix("socket:[").removesuffix("]"))
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                address, port = fields[1].split(":")
                assert address in {"0100007F", "0000000000000000FFFF00000100007F"}, "it listens beyond this machine"
                found.append(int(port, 16))
    return found


def attacked(process: int, folders: list[Path]) -> tuple[dict[str, list[tuple[int, str]]], list[str]]:
    """As another user, request blocks and endpoints at every port, and read the folders."""
    given = json.dumps([listening_ports(process), [str(folder) for folder in folders]])
    done = subprocess.run([sys.executable, "-c", STRANGER, given], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answered, read = json.loads(done.stdout)
    return answered, read


def check(answered: dict[str, list[tuple[int, str]]]) -> None:
    answers = [answer for found in answered.values() for answer in found]
    assert not [answer for answer in answers if answer[0] in SUCCESS]
    refused = [port for port, found in answered.items() if any(kind == FAILURE for kind, _ in found)]
    assert len(refused) >= 2, "the ports of the driver and of its blocks refuse"
    assert not [text for kind, text in answers if kind == FAILURE and "not found" in text], "a block was looked for"


def test_another_user_gets_nothing_from_a_session(spark: "SparkSession"):
    from pyspark.sql import functions as f

    if not own_jvms():
        pytest.skip("the session of this run is on a server")
    small = spark.range(1000).select("id", f.lit("secret").alias("s"))
    assert spark.range(10_000).join(f.broadcast(small), "id").count() == 1000
    scratch = own_scratch().folder
    blocks = [path for path in scratch.iterdir() if path.name.startswith("blockmgr-")]
    assert blocks, "Spark's blocks are in the scratch folder"
    answered, read = attacked(own_jvms()[0], [scratch.parent, scratch, *blocks])
    check(answered)
    assert read == []


def test_another_user_gets_nothing_from_a_connect_server(connect_server: ConnectServer):
    scratch = server_scratch(connect_server).folder
    (java,) = [one for one in session_of(connect_server) if Path(f"/proc/{one}/comm").read_text() == "java\n"]
    assert "spark.sql.ansi" not in Path(f"/proc/{java}/cmdline").read_text()
    answered, read = attacked(java, [scratch.parent, scratch])
    check(answered)
    assert read == []


def session_of(server: ConnectServer) -> set[int]:
    from siltstone.compaction.execution.worker_main import session_members

    return session_members(server_process(server).pid)


def test_scratch_files_of_spark_are_encrypted(spark: "SparkSession"):
    from pyspark import StorageLevel
    from pyspark.sql import functions as f

    if not own_jvms():
        pytest.skip("the session of this run is on a server")
    marked = spark.range(20_000).select(f.concat(f.lit("very-secret-"), f.col("id")).alias("s")).repartition(3, "s")
    on_disk = marked.persist(StorageLevel.DISK_ONLY)
    try:
        assert on_disk.count() == 20_000
        is_readable: dict[str, bool] = {}
        for folder, _, names in os.walk(own_scratch().folder):
            for name in names:
                if name.startswith(("rdd_", "shuffle_")):
                    with suppress(FileNotFoundError):  # Spark deletes the blocks of earlier tests at any time
                        is_readable[name] = b"very-secret" in (Path(folder) / name).read_bytes()
        assert any(name.startswith("rdd_") for name in is_readable)
        assert not any(is_readable.values())
    finally:
        on_disk.unpersist()
