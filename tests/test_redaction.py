"""Secrets of a mount are struck out of what is shown, however many there are and however they are written."""

import base64
import json
import logging
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

from aisfs import redaction
from aisfs.redaction import remember, remember_query, remember_settings, remember_url, shown
from aisfs.settings import ClusterSettings
from aisfs.stores.ais.auth import Credentials
from aisfs.stores.web import HostHeaders
from aisfs.system import logs
from tests.support.for_each import for_each
from tests.support.mounts import aisfs
from tests.support.tars import END, entry


@pytest.fixture(autouse=True)
def _none_known(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(redaction, "_long", {})
    monkeypatch.setattr(redaction, "_short", {})


def test_tokens_that_were_replaced_long_ago(tmp_path: Path):
    file = tmp_path / "token"
    tokens = [f"opaque{number:04}+/x{number * 7919:08}" for number in range(200)]
    file.write_text(json.dumps({"token": tokens[0]}))
    credentials = Credentials.load(ClusterSettings(authn_token_file=file))
    for before, token in pairwise(tokens):
        file.write_text(json.dumps({"token": token}))
        assert credentials.renew(f"Bearer {before}") == f"Bearer {token}"
    for token in tokens:
        assert shown(f"the server says {token} is old") == "the server says [struck out] is old"


def test_headers_of_many_hosts(tmp_path: Path):
    file = tmp_path / "headers"
    lines = [f"h{number} X-Key: value-{number:03}-of-many" for number in range(100)]
    pair = base64.b64encode(b"me:pass-word-7").decode()
    lines += [
        "a Cookie: session=cookie-value-1; b=cookie-value-2",
        f"c Authorization: Basic {pair}",
    ]
    lines += ["d X-Api-Token: abc1"]
    file.write_text("\n".join(lines))
    HostHeaders.load(file)
    secrets = [f"value-{number:03}-of-many" for number in range(100)]
    secrets += ["cookie-value-1", "cookie-value-2", "pass-word-7", "abc1"]
    for secret in secrets:
        assert secret not in shown(
            f"no such value: {secret}!" if len(secret) > 8 else f"no {secret}"
        )
    assert shown("abc123 xabc1") == "abc123 xabc1"  # short ones only as words


SECRET = 'a/b+c d="%é\\end'


@for_each(
    "spelled",
    [SECRET, quote(SECRET), quote(SECRET, safe=""), quote_plus(SECRET), json.dumps(SECRET, ensure_ascii=False),
     quote(SECRET, safe="").replace("%2F", "%2f").replace("%3D", "%3d").replace("%2B", "%2b")
     .replace("%5C", "%5c").replace("%C3%A9", "%c3%a9")],
)  # fmt: skip
def test_ways_to_write_one(spelled: str):
    remember(SECRET)
    assert "end" not in shown(f"it was {spelled}, or so")


def test_urls_and_queries():
    remember_url("http://user:pa%2Fss-word@host:1/x?X-Amz-Signature=0123456789abcdef&part=2")
    remember_query("?sv=2022&sp=r&sig=AbCdEf%2Fghi%3D")
    for secret in (
        "pa%2Fss-word",
        "pa/ss-word",
        "0123456789abcdef",
        "AbCdEf%2Fghi%3D",
        "AbCdEf/ghi=",
    ):
        assert secret not in shown(f"said {secret} again")
    assert "part 2022" in shown("part 2022")


@for_each(
    "text, expected",
    [
        ("to https://me:hidden@h/x failed", "to https://[struck out]@h/x failed"),
        ("got http://h/k?a=1&X-Amz-Signature=abc&b=2", "got http://h/k?a=1&[struck out]&b=2"),
        ("got http://h/k?sig=abc%3D", "got http://h/k?[struck out]"),
        ("http://h:80/a@b and ais://@uuid#ns/b", "http://h:80/a@b and ais://@uuid#ns/b"),
        ("is it design=1? signal=2", "is it design=1? signal=2"),
    ],
)
def test_secrets_of_urls_that_nobody_told_us_of(text: str, expected: str):
    assert shown(text) == expected


def test_settings_of_a_library():
    remember_settings({"ftp": {"username": "somebody", "password": "hidden-word"}, "x": [1]})
    assert shown("somebody hidden-word") == "somebody [struck out]"


ENVIRONMENT = {
    "AZURE_STORAGE_SAS_TOKEN": "sv=2022-11-02&sig=SasSignature%2Fxyz%3D",
    "AWS_SECRET_ACCESS_KEY": "AwsSecret/KeyOfMine",
    "GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps({"private_key": "-----BEGIN\nGoogleKey\n-----END"}),
    "AWS_ENDPOINT_URL": "http://key:EndpointPassword@localhost:1",
    "https_proxy": "http://me:ProxyPassword@localhost:2",
}
SCRIPT = """
import os
from aisfs.settings.clouds import remember_secrets
from aisfs.redaction import shown
remember_secrets()
print(shown(os.environ["SAID"]))
"""


@for_each(
    "secret",
    ["SasSignature%2Fxyz%3D", "SasSignature/xyz=", "AwsSecret/KeyOfMine",
     r"-----BEGIN\nGoogleKey\n-----END", "EndpointPassword", "ProxyPassword"],
)  # fmt: skip
def test_clouds(secret: str):
    environment = {**os.environ, **ENVIRONMENT, "SAID": f"a cloud says {secret} somewhere"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=60)  # fmt: skip
    assert done.stdout == "a cloud says [struck out] somewhere\n", done.stderr


def test_password_of_the_endpoint_is_not_shown():
    environment = {
        "AIS_ENDPOINT": "http://me:EndpointPassword@127.0.0.1:1",
        "AISFS_IO_TIMEOUT": "1",
    }
    for command in (["config", "show"], ["ls", "ais://b"], ["doctor"]):
        done = aisfs(*command, env=environment)
        said = done.stdout + done.stderr
        assert b"127.0.0.1" in said, command
        assert b"EndpointPassword" not in said, command


# What a terminal gets ---------------------------------------------------------------------------


def test_names_in_log_lines_are_one_line():
    record = logging.LogRecord(
        "aisfs", logging.WARNING, "", 0, "no %s", ("a\nfake\x1b[2J\u202e",), None
    )
    assert logs._Printable("%(message)s").format(record) == r"no a\nfake\x1b[2J\u202e"


def test_inspect_prints_few_lines_of_any_shard(tmp_path: Path):
    members = [entry(b"s%d.\x1b[2J\n%d" % (at, at), b"") for at in range(3000)]
    (tmp_path / "s.tar").write_bytes(b"".join(members) + END)
    done = aisfs("inspect", tmp_path, env={"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert b"\x1b" not in done.stdout + done.stderr
    assert rb"\x1b[2J\n0" in done.stdout
    assert b"more)" in done.stdout
    assert len(done.stdout.splitlines()) < 100
