"""Real clients of S3 against `/s3`: boto3, obstore, rclone and s3fs."""

import io
import os
import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import obstore
import pytest
import requests
from aistore.botocore_patch import botocore as _follows_redirects  # noqa: F401 - the name says it
from botocore.config import Config
from botocore.exceptions import ClientError
from obstore.exceptions import AlreadyExistsError, GenericError, PreconditionError
from obstore.store import S3Store

from tests.support.servers import RunningServer, running_server

BIG = random.Random(19).randbytes(12 << 20)
KEY = "d/ö x+y%41"
MIB = 1 << 20


def boto(server: RunningServer, token: str | None = None) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=f"{server.endpoint}/s3",
        aws_access_key_id="any",
        aws_secret_access_key="thing",
        aws_session_token=token,
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}),
    )


def environment(**more: str) -> dict[str, str]:
    """Return ours without what points these programs at a certificate bundle."""
    return {name: value for name, value in os.environ.items() if name != "AWS_CA_BUNDLE"} | more


@pytest.fixture(params=[False, True], ids=["kind", "traps"])
def either(root: Path, request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    """Both servers: one that serves objects itself, and one that redirects as AIStore does."""
    with running_server(root, traps=request.param) as running:
        yield running
        assert "Traceback" not in running.log()
        assert ("redirect" in running.requests()) == request.param


def test_boto3_writes_reads_lists_copies_and_deletes(either: RunningServer, root: Path) -> None:
    client = boto(either)
    client.create_bucket(Bucket="new")
    client.head_bucket(Bucket="new")
    assert [each["Name"] for each in client.list_buckets()["Buckets"]] == ["b", "new"]
    client.put_object(
        Bucket="b",
        Key=KEY,
        Body=b"text",
        ContentType="text/plain",
        Metadata={"a_b": "1", "a-b": "2"},
    )
    assert (root / "b" / KEY).read_bytes() == b"text"
    client.upload_fileobj(io.BytesIO(BIG), "b", "big")  # in parts, with checksums at their ends
    assert (root / "b" / "big").read_bytes() == BIG
    client.copy({"Bucket": "b", "Key": "big"}, "new", "big")  # part by part
    client.copy_object(Bucket="new", Key="text", CopySource={"Bucket": "b", "Key": KEY})

    found = client.get_object(Bucket="new", Key="text", Range="bytes=1-2")
    assert found["Body"].read() == b"ex"
    kept = {} if "redirect" in either.requests() else {"a_b": "1", "a-b": "2"}
    assert (found["ContentType"], found["Metadata"]) == ("text/plain", kept)
    assert client.head_object(Bucket="new", Key="big")["ETag"].endswith('-2"')
    into = io.BytesIO()
    client.download_fileobj("new", "big", into)
    assert into.getvalue() == BIG
    pages = client.get_paginator("list_objects_v2").paginate(
        Bucket="b", PaginationConfig={"PageSize": 1}
    )
    listed = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
    assert listed == ["big", KEY]
    groups = client.list_objects_v2(Bucket="b", Delimiter="/")["CommonPrefixes"]
    assert groups == [{"Prefix": "d/"}]

    deleted = client.delete_objects(Bucket="b", Delete={"Objects": [{"Key": "big"}, {"Key": KEY}]})
    assert len(deleted["Deleted"]) == 2
    client.delete_object(Bucket="new", Key="big")
    assert not (root / "new" / "big").exists()
    with pytest.raises(client.exceptions.NoSuchKey):
        client.get_object(Bucket="new", Key="big")


def test_a_token_goes_where_signatures_leave_room(root: Path) -> None:
    (root / "b" / "o").write_text("x")
    with running_server(root, traps=False, token="open") as server:
        assert boto(server, "open").get_object(Bucket="b", Key="o")["Body"].read() == b"x"
        with pytest.raises(ClientError, match="AccessDenied"):
            boto(server, "wrong").get_object(Bucket="b", Key="o")
        bearer = {"Authorization": "Bearer open"}
        assert requests.get(f"{server.endpoint}/s3/b/o", headers=bearer).content == b"x"


def test_obstore_writes_reads_lists_copies_and_deletes(server: RunningServer, root: Path) -> None:
    store = S3Store(
        "b",
        endpoint=f"{server.endpoint}/s3",
        access_key_id="any",
        secret_access_key="thing",
        region="us-east-1",
        checksum_algorithm="SHA256",
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )
    obstore.put(store, KEY, b"text", attributes={"Content-Type": "text/plain", "a_b": "1"})
    assert (root / "b" / KEY).read_bytes() == b"text"
    assert bytes(obstore.get_range(store, KEY, start=1, end=3)) == b"ex"
    assert obstore.get(store, KEY).attributes == {"Content-Type": "text/plain", "a_b": "1"}
    old = obstore.head(store, KEY)["e_tag"]
    with pytest.raises(AlreadyExistsError):
        obstore.put(store, KEY, b"other", mode="create")
    obstore.put(store, KEY, b"new", mode={"e_tag": old})
    with pytest.raises(PreconditionError):
        obstore.put(store, KEY, b"late", mode={"e_tag": old})
    assert (root / "b" / KEY).read_bytes() == b"new"

    obstore.put(store, "big", BIG, use_multipart=True, chunk_size=5 * MIB)
    obstore.copy(store, "big", "copy")
    obstore.rename(store, "copy", "d/moved")
    assert (root / "b" / "d" / "moved").read_bytes() == BIG
    listed = {entry["path"]: entry for entry in obstore.list(store).collect()}
    assert set(listed) == {KEY, "big", "d/moved"}
    assert listed["big"]["e_tag"] == obstore.head(store, "big")["e_tag"]
    found = obstore.list_with_delimiter(store)
    assert list(found["common_prefixes"]) == ["d"]
    obstore.delete(store, ["big", "d/moved", KEY])
    assert not obstore.list(store).collect()


def test_obstore_cannot_send_a_body_through_aistores_redirects(root: Path) -> None:
    (root / "b" / "o").write_text("x")
    with running_server(root, traps=True) as server:
        store = S3Store(
            "b",
            endpoint=f"{server.endpoint}/s3",
            skip_signature=True,
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        )
        assert bytes(obstore.get(store, "o").bytes()) == b"x"
        with pytest.raises(GenericError, match="307"):
            obstore.put(store, "o", b"y")
    assert (root / "b" / "o").read_text() == "x"


def test_rclone_copies_checks_moves_and_deletes(
    server: RunningServer, root: Path, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "f").write_bytes(b"f" * 1000)
    (source / "g h").write_bytes(BIG)
    (source / "empty").touch()

    def rclone(*words: str) -> str:
        settings = {
            "RCLONE_CONFIG": str(tmp_path / "none"),
            "RCLONE_S3_PROVIDER": "Other",
            "RCLONE_S3_ACCESS_KEY_ID": "any",
            "RCLONE_S3_SECRET_ACCESS_KEY": "thing",
            "RCLONE_S3_ENDPOINT": f"{server.endpoint}/s3",
            "RCLONE_RETRIES": "1",
        }
        done = subprocess.run(
            ["rclone", *words],
            env=environment(**settings),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    rclone("copy", str(source), ":s3:b/r", "--s3-upload-cutoff=5M", "--s3-chunk-size=5M")
    rclone("check", str(source), ":s3:b/r", "--download")
    assert (root / "b" / "r" / "g h").read_bytes() == BIG
    # The times are user metadata: nothing is to be sent again.
    before = server.requests()["put"]
    rclone("copy", str(source), ":s3:b/r")
    assert server.requests()["put"] == before
    rclone("moveto", ":s3:b/r/sub/f", ":s3:b/r/f")
    assert sorted(rclone("lsf", "-R", "--files-only", ":s3:b").split("\n")) == [
        "",
        "r/empty",
        "r/f",
        "r/g h",
    ]
    rclone("delete", ":s3:b/r")
    assert rclone("lsf", "-R", "--files-only", ":s3:b") == ""


@contextmanager
def s3fs(server: RunningServer, folder: Path) -> Iterator[Path]:
    """Mount the bucket."""
    mount, secret = folder / "mnt", folder / "secret"
    mount.mkdir()
    secret.write_text("any:thing")
    secret.chmod(0o600)
    options = f"url={server.endpoint}/s3,use_path_request_style,passwd_file={secret}"
    options += ",multipart_size=5,retries=1"
    process = subprocess.Popen(
        ["s3fs", "b", str(mount), "-f", "-o", options],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 30
        while not os.path.ismount(mount):
            assert process.poll() is None, "s3fs did not mount"
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield mount
    finally:
        if os.path.ismount(mount):
            subprocess.run(["fusermount3", "-u", "-z", str(mount)], check=True)
        process.terminate()
        process.wait(30)


@pytest.mark.mount
def test_s3fs_reads_writes_renames_and_deletes(
    server: RunningServer, root: Path, tmp_path: Path
) -> None:
    (root / "b" / "sub").mkdir()
    (root / "b" / "sub" / "there").write_text("hello")
    with s3fs(server, tmp_path) as mount:
        assert sorted(os.listdir(mount)) == ["sub"]
        assert (mount / "sub" / "there").read_text() == "hello"
        (mount / "big").write_bytes(BIG)
        assert (root / "b" / "big").read_bytes() == BIG
        (mount / "small").write_text("abc")
        (mount / "small").chmod(0o640)  # a copy to itself, with other metadata
        assert (mount / "small").stat().st_mode & 0o777 == 0o640
        with (mount / "small").open("a") as file:
            file.write("def")
        assert (root / "b" / "small").read_text() == "abcdef"
        (mount / "big").rename(mount / "sub" / "moved")
        assert (root / "b" / "sub" / "moved").read_bytes() == BIG
        (mount / "sub" / "moved").unlink()
        assert sorted(os.listdir(mount / "sub")) == ["there"]
