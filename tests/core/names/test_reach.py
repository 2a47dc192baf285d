"""What somebody else than the user of this machine may name: one function, tried with a table."""

import json

from aisfs.core.names.reach import GRANTABLE, Reach
from aisfs.core.names.sources import parse_shard_list, parse_sources
from aisfs.core.names.urls import split_url
from aisfs.errors import ConfigError
from tests.support.for_each import for_each

AIS = ("ais://b", "s3://b/x.tar", "gs://b/", "gcp://b/*.tar", "az://b", "ais://@uuid#ns/b/x.tar", "aws://b/{0..2}.tar", "oci://b")  # fmt: skip
LOCAL = (
    "/etc", "/etc/passwd", "//etc", "./x", "../x", "x", "etc/", "~/x", "-", "", " ",
    "file:/etc", "file:///etc", "file://etc/", "file://./etc/", "file://localhost/etc/",
    "FILE://etc/", "File://etc/", "local://etc/", "local:/etc", "local:etc", "LOCAL://etc/",
    "file%3a//etc", "%66ile://etc/", "file:%2f%2fetc/", "fi{l,l}e://etc/", "{file://etc/,ais://b}",
    "{ais://b,file://etc/}", "{/etc,/root}", "@/etc/passwd", "@profile", "csv:ais://b",
    "simplecache::file://etc/", "filecache::local://etc/", "blockcache::file:///etc",
    "zip://x::file:///etc/x.zip", "ais://b::file://etc/".replace("ais", "dir"), "dir://etc/",
    "reference://etc/", "memory://x/", "tar://x::/etc/x.tar", "data:text/plain,x", "fsspec://etc/",
    "pipe:///x", "/dev/fd/3", "/proc/self/environ", "unix:///run/docker.sock", "\tais://b",
)  # fmt: skip
"""Ways to write a file of this machine, and what other programs would take for one."""
ELSEWHERE = (
    "https://data.example.com/x/", "http://data.example.com/x/", "http://127.0.0.1/x/",
    "http://169.254.169.254/latest/", "https://[::1]/x/", "http://localhost:8080/x/",
    "hf://datasets/o/n", "s3+direct://b", "aws+direct://b", "gs+direct://b", "az+direct://acct/cont",
    "sftp://host/x/", "ftp://host/x/", "smb://host/x/", "ssh://host/x/", "oc+direct://b",
)  # fmt: skip
"""What only an operator can permit, or nobody."""


def reached(reach: Reach, text: str) -> bool:
    """Return whether a source may be named, as the driver and then the mounter of a volume ask."""
    try:
        reach.check_text(text, text)
        source = parse_sources([text], is_directory=lambda _: False)
        for bucket in places(source):
            reach.check(text, bucket)
    except ConfigError:
        return False
    return True


def places(source):
    if hasattr(source, "words"):
        return [pattern.bucket for word in source.words for pattern in word.patterns]
    return [getattr(source, "bucket", None)]


@for_each("text", AIS)
def test_a_tenant_may_name_what_aistore_serves(text):
    assert reached(Reach.of_tenant([], []), text)


@for_each("text", [*LOCAL, *ELSEWHERE])
def test_a_tenant_may_name_nothing_else_unless_it_is_permitted(text):
    assert not reached(Reach.of_tenant([], ["data.example.com"]), text)


@for_each("text", LOCAL)
def test_no_permission_makes_a_local_file_of_anything(text):
    assert not reached(Reach.of_tenant(GRANTABLE, ["etc", "data.example.com", "localhost"]), text)


@for_each(
    "text, found",
    [
        ("https://data.example.com/x/", True),
        ("https://DATA.example.com/x/", True),
        ("https://data.example.com:443/x/", True),
        ("http://data.example.com/x/", True),
        ("https://{data,data}.example.com/x-{0..3}.tar", True),
        ("http://10.0.0.7:8080/x/", True),
        ("http://10.0.0.7/x/", False),
        ("http://10.0.0.7:80/x/", False),
        ("https://data.example.com:8443/x/", False),
        ("https://data.example.com./x/", False),
        ("https://data.example.com.evil.org/x/", False),
        ("https://x.data.example.com/x/", False),
        ("https://data.example.com@127.0.0.1/x/", False),
        ("https://127.0.0.1%2f@data.example.com/x/", False),
        ("https://{data.example.com,127.0.0.1}/x.tar", False),
        ("https://{data.example.com/x,127.0.0.1/y}.tar", False),
        ("http://127.0.0.1/x/", False),
        ("http://127.1/x/", False),
        ("http://2130706433/x/", False),
        ("http://0x7f000001/x/", False),
        ("http://[::ffff:127.0.0.1]/x/", False),
        ("http://[::1]/x/", False),
        ("http://0/x/", False),
        ("http://localhost/x/", False),
        ("http://169.254.169.254/latest/meta-data/", False),
        ("http://metadata.google.internal/computeMetadata/v1/", False),
        ("hf://datasets/o/n", True),
        ("s3+direct://b", True),
        ("az+direct://account/container", True),
        ("sftp://data.example.com/x/", False),
    ],
)
def test_web_servers_are_permitted_by_host_and_port(text: str, found: bool):
    reach = Reach.of_tenant(GRANTABLE, ["Data.Example.com", "10.0.0.7:8080"])
    assert reached(reach, text) is found


LISTS = [
    ("ais://b/l.json", "x.tar", True),
    ("ais://b/l.json", "../../x.tar", True),
    ("ais://b/l.json", "ais://other/x.tar", True),
    ("ais://b/l.json", "s3://other/x.tar", True),
    ("ais://b/l.json", "s3+direct://other/x.tar", False),
    ("ais://b/l.json", "https://host/x.tar", False),
    ("ais://b/l.json", "hf://datasets/o/n/x.tar", False),
    ("ais://b/l.json", "file://x.tar", False),
    ("ais://b/l.json", "file://localhost/etc/x.tar", False),
    ("s3+direct://b/l.json", "s3+direct://other/x.tar", True),
    ("s3+direct://b/l.json", "gs+direct://other/x.tar", False),
    ("s3+direct://b/l.json", "ais://other/x.tar", False),
    ("az+direct://acct/cont/l.json", "az+direct://acct/other/x.tar", True),
    ("az+direct://acct/cont/l.json", "az+direct://evil/cont/x.tar", False),
    ("https://a/d/l.json", "x.tar", True),
    ("https://a/d/l.json", "https://a/other/x.tar", True),
    ("https://a/d/l.json", "https://a:443/other/x.tar", True),
    ("https://a/d/l.json", "https://A/other/x.tar", True),
    ("https://a/d/l.json", "https://b/x.tar", False),
    ("https://a/d/l.json", "https://a:8443/x.tar", False),
    ("https://a/d/l.json", "http://a/x.tar", False),
    ("https://a/d/l.json", "http://127.0.0.1/x.tar", False),
    ("https://a/d/l.json", "http://169.254.169.254/x.tar", False),
    ("https://a/d/l.json", "ais://b/x.tar", False),
    ("https://a/d/l.json", "sftp://a/x.tar", False),
    ("http://a/d/l.json", "https://a/x.tar", True),
    ("hf://datasets/o/n/l.json", "hf://datasets/o/m/x.tar", True),
    ("hf://datasets/o/n/l.json", "https://huggingface.co/x.tar", False),
    ("sftp://h/d/l.json", "sftp://h/x.tar", True),
    ("sftp://h/d/l.json", "sftp://other/x.tar", False),
    ("sftp://h/d/l.json", "sftp://root@h/x.tar", False),
    *[(at, url, False) for at in ("ais://b/l.json", "https://a/l.json", "sftp://a/l.json")
      for url in ("/etc/x.tar", "file:///etc/x.tar", "file://etc/x.tar", "local://etc/x.tar",
                  "//etc/x.tar", "FILE:///etc/x.tar", "simplecache::file://etc/x.tar")],
]  # fmt: skip


@for_each("place, url, found", LISTS)
@for_each("how", ["url", "base"])
def test_a_list_names_shards_of_its_own_store_and_host(place: str, url: str, found: bool, how: str):
    directory = place.rpartition("/")[0]
    base, slash, name = url.rpartition("/")
    listed: dict[str, object] = {"shardlist": [{"url": url}]}
    if how == "base":
        listed = {"base": base + slash, "shardlist": [{"url": name}]}
    reach = Reach.of_list(split_url(place)[0])

    def check() -> bool:
        try:
            for shard in parse_shard_list("l", json.dumps(listed).encode(), directory=directory):
                reach.check(str(shard), shard.bucket)
        except ConfigError:
            return False
        return True

    assert check() is found
