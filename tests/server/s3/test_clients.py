"""Real clients of S3 read from `/s3`: boto3, obstore, rclone and s3fs."""

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
import pytest
import requests
from aistore.botocore_patch import botocore as _follows_redirects  # noqa: F401 - the name says it
from botocore.config import Config
from botocore.exceptions import ClientError

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


def fill(root: Path) -> None:
    (root / "b" / "d").mkdir()
    (root / "b" / KEY).write_bytes(b"text")
    (root / "b" / "big").write_bytes(BIG)


@pytest.fixture(params=[False, True], ids=["kind", "traps"])
def either(root: Path, request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    """Both servers: one that serves objects itself, and one that redirects as AIStore does."""
    with running_server(root, traps=request.param) as running:
        yield running
        assert "Traceback" not in running.log()
        assert ("redirect" in running.requests()) == request.param


def test_boto3_reads_and_lists(either: RunningServer, root: Path) -> None:
    fill(root)
    client = boto(either)
    client.head_bucket(Bucket="b")
    assert [each["Name"] for each in client.list_buckets()["Buckets"]] == ["b"]
    assert client.get_object(Bucket="b", Key=KEY, Range="bytes=1-2")["Body"].read() == b"ex"
    assert client.head_object(Bucket="b", Key="big")["ContentLength"] == len(BIG)
    into = io.BytesIO()
    client.download_fileobj("b", "big", into)
    assert into.getvalue() == BIG
    pages = client.get_paginator("list_objects_v2").paginate(
        Bucket="b", PaginationConfig={"PageSize": 1}
    )
    listed = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
    assert listed == ["big", KEY]
    groups = client.list_objects_v2(Bucket="b", Delimiter="/")["CommonPrefixes"]
    assert groups == [{"Prefix": "d/"}]
    with pytest.raises(client.exceptions.NoSuchKey):
        client.get_object(Bucket="b", Key="none")


def test_a_token_goes_where_signatures_leave_room(root: Path) -> None:
    (root / "b" / "o").write_text("x")
    with running_server(root, traps=False, token="open") as server:
        assert boto(server, "open").get_object(Bucket="b", Key="o")["Body"].read() == b"x"
        with pytest.raises(ClientError, match="AccessDenied"):
            boto(server, "wrong").get_object(Bucket="b", Key="o")
        bearer = {"Authorization": "Bearer open"}
        assert requests.get(f"{server.endpoint}/s3/b/o", headers=bearer).content == b"x"


def test_rclone_copies_and_lists(server: RunningServer, root: Path, tmp_path: Path) -> None:
    fill(root)
    settings = {
        "RCLONE_CONFIG": str(tmp_path / "none"),
        "RCLONE_S3_PROVIDER": "Other",
        "RCLONE_S3_ACCESS_KEY_ID": "any",
        "RCLONE_S3_SECRET_ACCESS_KEY": "thing",
        "RCLONE_S3_ENDPOINT": f"{server.endpoint}/s3",
        "RCLONE_RETRIES": "1",
    }

    def rclone(*words: str) -> str:
        done = subprocess.run(
            ["rclone", *words],
            env=environment(**settings),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    rclone("copy", ":s3:b", str(tmp_path / "copy"))
    assert (tmp_path / "copy" / "big").read_bytes() == BIG
    assert (tmp_path / "copy" / KEY).read_bytes() == b"text"
    assert sorted(rclone("lsf", "-R", "--files-only", ":s3:b").split("\n")) == ["", "big", KEY]


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
def test_s3fs_reads(server: RunningServer, root: Path, tmp_path: Path) -> None:
    fill(root)
    with s3fs(server, tmp_path) as mount:
        assert sorted(os.listdir(mount)) == ["big", "d"]
        assert (mount / "big").read_bytes() == BIG
        assert (mount / KEY).read_bytes() == b"text"
