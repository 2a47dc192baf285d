"""The embedded server as a process: what AIStore's users and a careful operator rely on."""

import io
import json
import os
import re
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import msgspec
import pytest
import requests

from aisfs.errors import ConfigError
from aisfs.server.run import serve
from tests.support.archives import make_tar
from tests.support.servers import REPOSITORY, RunningServer, running_server, until

CONFORMANCE = REPOSITORY.parent / "shared" / "ais-conformance" / "check.py"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "served"
    folder.mkdir()
    return folder


@pytest.fixture
def server(root: Path) -> Iterator[RunningServer]:
    with running_server(root) as running:
        yield running
        assert "Traceback" not in running.log()


def object_url(server: RunningServer, key: str, bucket: str = "b") -> str:
    return f"{server.endpoint}/v1/objects/{bucket}/{key}"


def list_page(http: requests.Session, server: RunningServer, bucket: str, **value) -> dict:
    reply = http.get(
        f"{server.endpoint}/v1/buckets/{bucket}",
        json={"action": "list", "value": value},
        headers={"Accept": "application/msgpack"},
    )
    reply.raise_for_status()
    return msgspec.msgpack.decode(reply.content)


UNLIKE_AISTORE = {
    "buckets/namespaces are separate": "there is none but the global one",
    "names/double slash is stored and never listed": "no file can have such a name",
    "names/component of 256 bytes": "nor this one",
    "redirect/unmarked request at the target": "the one listener is the proxy too",
}
"""Steps of the level `extra` that fail, and why."""


@pytest.mark.skipif(not CONFORMANCE.exists(), reason=f"{CONFORMANCE} is not there")
@pytest.mark.parametrize(
    ("traps", "level"),
    [
        (False, "core"),
        (False, "full"),
        (False, "extra"),
        (True, "core"),
        (True, "full"),
        (True, "extra"),
        (True, "traps"),
    ],
)
def test_conformance(root: Path, tmp_path: Path, traps: bool, level: str) -> None:
    steps = tmp_path / "steps.json"
    with running_server(root, traps=traps) as server:
        check = subprocess.run(
            [
                *(sys.executable, str(CONFORMANCE), server.endpoint),
                *("--level", level, "--json", str(steps)),
            ],
            capture_output=True,
            text=True,
            timeout=100,
        )
        outcomes = json.loads(steps.read_text()).items()
        failed = {name for name, outcome in outcomes if outcome["status"] == "failed"}
        expected = UNLIKE_AISTORE.keys() if level == "extra" else set()
        assert failed == expected, check.stdout[-4000:] + check.stderr
        assert "Traceback" not in server.log()


def sdk(server: RunningServer) -> Any:
    from aistore.sdk import Client  # 0.3 s of each worker

    return Client(server.endpoint)


def test_the_real_sdk(server: RunningServer, tmp_path: Path) -> None:
    from aistore.sdk.archive_config import ArchiveConfig

    client = sdk(server)
    bucket = client.bucket("sdk").create()
    assert [b.name for b in client.cluster().list_buckets()] == ["sdk"]

    data = os.urandom(300_000)
    bucket.object("dir/data.bin").get_writer().put_content(data)
    thing = bucket.object("dir/data.bin")
    assert thing.get_reader().read_all() == data
    assert thing.get_reader(byte_range="bytes=1000-1999").read_all() == data[1000:2000]
    assert thing.props.size == len(data)

    shard = tmp_path / "s.tar"
    member = tmp_path / "m.txt"
    member.write_bytes(b"a member")
    subprocess.run(["tar", "-cf", shard, "-C", tmp_path, "m.txt"], check=True)
    bucket.object("s.tar").get_writer().put_file(shard)
    config = ArchiveConfig(archpath="m.txt")
    reader = bucket.object("s.tar").get_reader(archive_config=config)
    assert reader.read_all() == b"a member"

    names = [entry.name for entry in bucket.list_all_objects()]
    assert names == ["dir/data.bin", "s.tar"]
    bucket.object("s.tar").delete()
    assert [entry.name for entry in bucket.list_all_objects()] == ["dir/data.bin"]
    bucket.delete()
    assert client.cluster().list_buckets() == []


def test_upload_in_parts_with_the_real_sdk(server: RunningServer) -> None:
    bucket = sdk(server).bucket("sdk").create()
    pieces = [os.urandom(200_000), os.urandom(100_000), b"end"]
    thing = bucket.object("dir/large")
    upload = thing.multipart_upload().create()
    for number in (3, 1, 2):
        upload.add_part(number).put_content(pieces[number - 1])
    assert [entry.name for entry in bucket.list_all_objects()] == []
    upload.complete()
    assert thing.get_reader().read_all() == b"".join(pieces)
    given_up = bucket.object("never").multipart_upload().create()
    given_up.add_part(1).put_content(b"x")
    given_up.abort()
    assert [entry.name for entry in bucket.list_all_objects()] == ["dir/large"]
    assert list((server.root / ".aisfs-server" / "tmp").iterdir()) == []


@pytest.mark.parametrize("sizes", [(500, 500, 20), (300, 500, 20), (500, 300, 500), (1, 1, 1)])
def test_parts_in_any_order_of_any_size(root: Path, sizes: tuple[int, ...]) -> None:
    with running_server(root, traps=False) as server:
        _upload_in_any_order(server, sizes)


def _upload_in_any_order(server: RunningServer, sizes: tuple[int, ...]) -> None:
    bucket = sdk(server).bucket("sdk").create()
    pieces = [os.urandom(size) for size in sizes]
    for order in permutations(range(3)):
        thing = bucket.object("x")
        upload = thing.multipart_upload().create()
        for number in order:
            upload.add_part(number + 1).put_content(pieces[number])
        upload.add_part(order[0] + 1).put_content(pieces[order[0]])
        upload.parts.pop()  # it was sent once more, and is one part all the same
        upload.complete()
        assert thing.get_reader().read_all() == b"".join(pieces)


@pytest.mark.parametrize("streaming", [True, False])
def test_batches_with_the_real_sdk(server: RunningServer, streaming: bool) -> None:
    client = sdk(server)
    bucket = client.bucket("sdk").create()
    contents = {f"dir/{n}": os.urandom(n * 1000) for n in range(10)}
    for name, data in contents.items():
        bucket.object(name).get_writer().put_content(data)
    bucket.object("s.tar").get_writer().put_content(make_tar({"a/b": b"member"}))
    batch = client.batch(list(contents), bucket=bucket, streaming_get=streaming)
    batch.add(bucket.object("s.tar"), archpath="a/b")
    got = [data for _, data in batch.get()]
    assert got == [*contents.values(), b"member"]
    assert server.requests()["batch"] == 1


def test_batch_with_too_many_missing_ends_early(
    server: RunningServer, http: requests.Session
) -> None:
    sdk(server).bucket("b").create()
    message = {"in": [{"objname": f"no-{n}"} for n in range(9)], "coer": True, "strm": False}
    url = f"{server.endpoint}/v1/ml/moss/b"
    assert http.get(url, json=message).status_code == 404
    with pytest.raises(requests.exceptions.ChunkedEncodingError):
        http.get(url, json={**message, "strm": True})


def test_batch_of_ranges(server: RunningServer, http: requests.Session) -> None:
    """One that reaches beyond its object leaves nothing of the others, as in AIStore 5.0."""
    sdk(server).bucket("b").create()
    http.put(object_url(server, "k"), data=bytes(range(100)))
    url = f"{server.endpoint}/v1/ml/moss/b"

    def asked(*places: tuple[int, int]) -> requests.Response:
        items = [{"objname": "k", "start": start, "length": length} for start, length in places]
        return http.get(url, json={"in": items, "coer": True, "strm": True, "onob": True})

    def content(*places: tuple[int, int]) -> list[bytes]:
        with tarfile.open(fileobj=io.BytesIO(asked(*places).content)) as tar:
            return [tar.extractfile(member).read() for member in tar]

    assert content((7, 3), (0, 1), (90, -1), (0, 0)) == [
        bytes([7, 8, 9]), bytes(1), bytes(range(90, 100)), bytes(range(100)),
    ]  # fmt: skip
    assert content((7, 3), (99, 2)) == []
    assert asked((7, 3)).history[0].status_code == 307
    without_job = f"{asked((7, 3)).url.partition('/gbt-')[0]}?pid=p&utm=1"
    assert http.get(without_job, json={"in": [{"objname": "k"}]}).status_code == 400


def test_metadata_survives_a_restart(root: Path, http: requests.Session) -> None:
    value = {"action": "create-bck", "value": {"checksum": {"type": "md5"}}}
    with running_server(root) as first:
        http.post(f"{first.endpoint}/v1/buckets/b", json=value).raise_for_status()
        http.put(object_url(first, "k"), b"one")
        stored = http.put(object_url(first, "k"), b"two", headers={"Ais-Custom-Md": "mtime=5"})
        first.kill()
    with running_server(root) as second:
        read = http.get(object_url(second, "k"))
        other = http.put(object_url(second, "other"), b"x")
    assert read.content == b"two"
    for name in ("Ais-Version", "Ais-Checksum-Type", "Ais-Checksum-Value", "Ais-Custom-Md"):
        assert read.headers[name] == stored.headers[name]
    assert read.headers["Ais-Version"] == "2"
    assert read.headers["Ais-Custom-Md"] == "mtime=5"
    assert other.headers["Ais-Checksum-Type"] == "md5"


def test_a_file_changed_behind_the_servers_back_is_a_new_version(
    root: Path, server: RunningServer, http: requests.Session
) -> None:
    (root / "b").mkdir()
    before = http.put(object_url(server, "k"), b"old").headers
    (root / "b" / "k").write_bytes(b"new")
    after = http.get(object_url(server, "k"))
    assert after.content == b"new"
    assert after.headers["Ais-Version"] != before["Ais-Version"]
    assert "Ais-Checksum-Value" not in after.headers


def test_killed_in_the_middle_of_an_upload(root: Path, http: requests.Session) -> None:
    (root / "b").mkdir()
    with running_server(root) as first:
        http.put(object_url(first, "k"), b"old")
        with socket.create_connection(("127.0.0.1", int(first.endpoint.rpartition(":")[2]))) as raw:
            raw.sendall(
                b"PUT /v1/objects/b/k?pid=p&utm=1 HTTP/1.1\r\nHost: x\r\n"
                b"Content-Length: 8000000\r\n\r\n" + b"n" * 4_000_000
            )
            work = root / ".aisfs-server" / "tmp"
            until(lambda: any(f.stat().st_size for f in work.iterdir()))
            first.kill()
    with running_server(root) as second:
        assert http.get(object_url(second, "k")).content == b"old"
        assert http.get(object_url(second, "k")).headers["Ais-Version"] == "1"
        assert list(work.iterdir()) == []


def test_a_short_body_changes_nothing(
    root: Path, server: RunningServer, http: requests.Session
) -> None:
    (root / "b").mkdir()
    http.put(object_url(server, "k"), b"old")
    for framing in (
        b"Content-Length: 10\r\n\r\nhalf",
        b"Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
    ):
        with socket.create_connection(
            ("127.0.0.1", int(server.endpoint.rpartition(":")[2]))
        ) as raw:
            raw.sendall(b"PUT /v1/objects/b/k?pid=p&utm=1 HTTP/1.1\r\nHost: x\r\n" + framing)
            raw.shutdown(socket.SHUT_WR)
            while raw.recv(4096):
                pass
    assert http.get(object_url(server, "k")).content == b"old"
    assert list((root / ".aisfs-server" / "tmp").iterdir()) == []


def test_pages_of_a_folder_with_20000_dropped_in_files(
    root: Path, server: RunningServer, http: requests.Session
) -> None:
    folder = root / "many" / "sub"
    folder.mkdir(parents=True)
    expected = [f"sub/f{number:05d}" for number in range(20_000)]
    for name in expected:
        (root / "many" / name).touch()
    (folder / "f00007").write_bytes(b"seven")
    seen, token, pages = [], "", 0
    while True:
        page = list_page(
            http,
            server,
            "many",
            prefix="sub/",
            flags="2048",
            props="name,size,version",
            pagesize=3000,
            continuation_token=token,
        )
        seen += page["Entries"]
        pages += 1
        token = page["ContinuationToken"]
        if not token:
            break
    assert pages == 7
    assert [entry["n"] for entry in seen] == expected
    assert seen[7]["s"] == 5
    assert server.requests()["list_page"] == 7
    assert [e["n"] for e in list_page(http, server, "many", flags="2048")["Entries"]] == ["sub/"]
    recursive = list_page(http, server, "many", props="name", start_after="sub/f19997")
    assert [e["n"] for e in recursive["Entries"]] == ["sub/f19998", "sub/f19999"]


def test_names_that_are_not_utf8(root: Path, server: RunningServer, http: requests.Session) -> None:
    (root / "b").mkdir()
    (root / "b" / os.fsdecode(b"\xff\xfe")).write_bytes(b"odd")
    assert http.get(object_url(server, "%ff%fe")).content == b"odd"
    missing = http.head(object_url(server, "%ff%fd"), allow_redirects=True)
    assert json.loads(missing.headers["Hdr-Error"])["url_path"] == "/v1/objects/b/\ufffd\ufffd"
    value = {"action": "list", "value": {}}
    listed = http.get(f"{server.endpoint}/v1/buckets/b", json=value)
    assert b'"name":"\xff\xfe"' in listed.content


def test_listing_what_is_not_utf8(
    root: Path, server: RunningServer, http: requests.Session
) -> None:
    for name in (b"\xff/one", b"\xff/two", b"\xff/u"):
        file = root / "b" / os.fsdecode(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"odd")
    message = b'{"action":"list","value":{"prefix":"\xff/","pagesize":2,"continuation_token":"%s"}}'
    token = b""
    for found in ([b"one", b"two"], [b"u"]):
        listed = http.get(f"{server.endpoint}/v1/buckets/b", data=message % token)
        assert listed.status_code == 200, listed.content
        assert re.findall(b'"name":"\xff/([a-z]*)"', listed.content) == found
        token = re.findall(b'"continuation_token":"([^"]*)"', listed.content)[0]


def test_a_tilde_is_a_name(root: Path, server: RunningServer, http: requests.Session) -> None:
    (root / "b").mkdir()
    assert http.put(object_url(server, "~"), b"home").status_code == 200
    assert http.get(object_url(server, "~")).content == b"home"
    assert http.put(object_url(server, "~/x"), b"home").status_code == 400


def test_an_open_get_delays_the_overwrite(
    root: Path, server: RunningServer, http: requests.Session
) -> None:
    size = 64 << 20
    (root / "b").mkdir()
    with (root / "b" / "k").open("wb") as file:
        file.truncate(size)
    done = threading.Event()

    def overwrite() -> None:
        requests.put(object_url(server, "k"), b"new", timeout=30).close()
        done.set()

    with http.get(object_url(server, "k"), stream=True) as reader:
        writer = threading.Thread(target=overwrite)
        writer.start()
        assert not done.wait(1.0)
        assert http.head(object_url(server, "k"), allow_redirects=True).status_code == 200
        old = sum(len(piece) for piece in reader.iter_content(1 << 20))
    assert old == size
    assert done.wait(10)
    writer.join()
    assert http.get(object_url(server, "k")).content == b"new"


def test_a_reader_that_vanishes_releases_the_object(
    root: Path, server: RunningServer, http: requests.Session
) -> None:
    (root / "b").mkdir()
    with (root / "b" / "k").open("wb") as file:
        file.truncate(64 << 20)
    with requests.get(object_url(server, "k"), stream=True) as reader:
        reader.raw.read(10)
    assert http.put(object_url(server, "k"), b"new", timeout=10).status_code == 200


def test_readers_that_are_gone_before_the_first_byte(
    root: Path, server: RunningServer, http: requests.Session
) -> None:
    (root / "b").mkdir()
    (root / "b" / "k").write_bytes(b"x" * 300_000)
    for _ in range(30):
        with socket.create_connection(
            ("127.0.0.1", int(server.endpoint.rpartition(":")[2]))
        ) as raw:
            raw.sendall(
                b"GET /v1/objects/b/k?pid=p&utm=1 HTTP/1.1\r\nHost: x\r\nRange: bytes=7-\r\n\r\n"
            )
    assert http.get(object_url(server, "k")).content == b"x" * 300_000


def test_a_client_that_ends_amid_its_headers_is_let_go(server: RunningServer) -> None:
    """Its connection stays readable: a worker that waits for the rest would look again without end."""
    with socket.create_connection(("127.0.0.1", int(server.endpoint.rpartition(":")[2]))) as raw:
        raw.settimeout(30)
        raw.sendall(b"GET /v1/health HTTP/1.1\r\nHos")
        raw.shutdown(socket.SHUT_WR)
        assert raw.recv(100) == b""


def test_the_connection_is_kept(root: Path, server: RunningServer) -> None:
    (root / "b").mkdir()
    (root / "b" / "k").write_bytes(b"x" * 300_000)
    with socket.create_connection(("127.0.0.1", int(server.endpoint.rpartition(":")[2]))) as raw:
        stream = raw.makefile("rb")
        for _ in range(3):
            raw.sendall(b"GET /v1/objects/b/k?pid=p&utm=1 HTTP/1.1\r\nHost: x\r\n\r\n")
            length = 0
            while (line := stream.readline()) != b"\r\n":
                if line.lower().startswith(b"content-length"):
                    length = int(line.split(b":")[1])
            assert stream.read(length) == b"x" * 300_000
        stream.close()


def test_a_token_is_asked_for_at_the_proxy_only(root: Path, http: requests.Session) -> None:
    (root / "b").mkdir()
    (root / "b" / "k").write_bytes(b"secret")
    with running_server(root, token="t0k") as server:
        assert http.get(object_url(server, "k")).status_code == 401
        allowed = {"Authorization": "Bearer t0k"}
        assert http.get(object_url(server, "k"), headers=allowed).content == b"secret"
        assert http.get(object_url(server, "k") + "?pid=p&utm=1").content == b"secret"
        assert http.get(f"{server.endpoint}/v1/health").status_code == 200


def test_it_stops_promptly_and_leaves_nothing(root: Path, http: requests.Session) -> None:
    with running_server(root) as server:
        http.get(f"{server.endpoint}/v1/health")
        started = time.monotonic()
        os.kill(server.pid, 15)
        until(lambda: not group_members(server.pid))
        assert time.monotonic() - started < 4
    assert [entry.name for entry in root.parent.iterdir()] == [root.name]


def test_no_worker_survives_its_parent(root: Path) -> None:
    with running_server(root) as server:
        os.kill(server.pid, 9)
        until(lambda: group_members(server.pid) <= {server.pid})


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such directory; make it: mkdir -p \S+/nowhere"):
        serve(tmp_path / "nowhere", port=0)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="not a directory"):
        serve(tmp_path / "file", port=0)


def test_a_port_that_is_taken(root: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(ConfigError, match="taken"):
            serve(root, port=other.getsockname()[1])


def test_a_directory_is_served_once(root: Path, server: RunningServer) -> None:
    with pytest.raises(ConfigError, match="already being served"):
        serve(root, port=0)


def test_a_public_address_is_warned_about(root: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-m", "tests.support.faulty_server", str(root), "--host", "0.0.0.0"]
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        assert process.stdout
        with process.stdout:
            assert process.stdout.readline().startswith("ready")
        process.terminate()
        process.wait(10)
    assert "there is no authentication" in log.read_text()
    assert process.returncode == 0


def group_members(group: int) -> set[int]:
    """Processes of a group that are not zombies."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, pgrp = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            except OSError:
                continue
            if int(pgrp) == group and state != "Z":
                found.add(int(entry.name))
    return found
