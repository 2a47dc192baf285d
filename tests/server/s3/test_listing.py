"""Listings of the S3 API against a model, and names that XML cannot have."""

import os
import random
from itertools import product
from pathlib import Path
from urllib.parse import unquote

import pytest
import requests

from tests.server.s3.asking import Ask, asking
from tests.support.servers import running_server

NAMES = ["a", "a/b", "a-1", "a-2/x", "a.tar", "ab", "ab/c", "b/", "b-", "c/d/e", "c/d-e", "z"]
KEYS = sorted(
    {*("a-1", "a-2/x", "a.tar", "a/b", "a/b-1", "a/c/d", "ab/c", "ab-c", "c/d/e", "c/d-e/f")}
    | {*("c/d.e", "dir/0", "dir/1", "dir/2", "dir-x/0", "x-y-z", "x-y-0", "x-", "z", "é/ü", "é-")}
)


@pytest.fixture
def filled(root: Path) -> None:
    for key in KEYS:
        path = root / "b" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(key)


def model(prefix: str, delimiter: str, after: str) -> list[str]:
    """Return the keys and groups that S3 lists."""
    found = []
    for key in sorted(KEYS, key=str.encode):
        if not key.startswith(prefix) or key.encode() <= after.encode():
            continue
        at = key.find(delimiter, len(prefix)) if delimiter else -1
        name = key if at < 0 else key[: at + len(delimiter)]
        if name != after and (not found or found[-1] != name):
            found.append(name)
    return found


def pages(ask: Ask, version: str, size: int, after: str, **query: str) -> list[str]:
    """Return what a client finds that asks for all pages."""
    found: list[str] = []
    start = {"start_after": after} if version == "2" else {"marker": after}
    for _ in range(100):
        page = ask("GET", "/b", list_type=version, max_keys=str(size), **start, **query)
        names = page.texts("Contents/Key") + page.texts("CommonPrefixes/Prefix")
        names = sorted(map(unquote, names), key=str.encode)
        assert len(names) <= size
        found += names
        if page.texts("IsTruncated") == ["false"]:
            return found
        if version == "2":
            assert page.texts("KeyCount") == [str(len(names))]
            start = {"continuation_token": page.texts("NextContinuationToken")[0]}
        else:
            start = {"marker": unquote(page.texts("NextMarker")[0])}
    raise AssertionError("the pages have no end")


CASES = list(
    product(
        ("", "a", "a/", "a-", "c/d", "c/d/", "dir", "x-y", "none", "é"),
        ("", "/"),
        ("", "a", "a-2/x", "c/d/", "c/d/e", "dir/0", "dir/2", "x-"),
        (1, 3, 1000),
    )
)


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("seed", range(3))
def test_pages_are_as_in_s3(ask: Ask, seed: int) -> None:
    for prefix, delimiter, after, size in random.Random(seed).sample(CASES, 60):
        query = {"prefix": prefix, "delimiter": delimiter, "encoding_type": "url"}
        for version in ("1", "2"):
            found = pages(ask, version, size, after, **query)
            assert found == model(prefix, delimiter, after), (prefix, delimiter, after, size)


@pytest.mark.usefixtures("filled")
def test_parameters_are_checked(ask: Ask) -> None:
    assert ask("GET", "/b", list_type="2", delimiter="-").code == "NotImplemented"
    assert ask("GET", "/b", list_type="2", max_keys="0").texts("IsTruncated") == ["false"]
    assert len(ask("GET", "/b", list_type="2", max_keys="2000").texts("Contents/Key")) == len(KEYS)
    for query in (
        {"max_keys": "-1"},
        {"max_keys": "x"},
        {"list_type": "3"},
        {"encoding_type": "base64"},
        {"list_type": "2", "continuation_token": "\N{SNOWMAN}"},
        {"list_type": "2", "continuation_token": "not one!"},
    ):
        assert (query, ask("GET", "/b", **query).code) == (query, "InvalidArgument")
    for prefix in ("../b/", "./", "//", "c/../"):
        assert ask("GET", "/b", prefix=prefix, delimiter="/").texts("Contents") == []


def test_any_name_can_be_listed(ask: Ask, root: Path) -> None:
    names = [b"\x01\t\n\r", b"\xff", "<&>\"'é".encode()]
    for name in names:
        with open(os.fsencode(root / "b") + b"/" + name, "wb"):
            pass
    listed = ask("GET", "/b", list_type="2", encoding_type="url").texts("Contents/Key")
    assert [
        unquote(name, errors="surrogateescape").encode(errors="surrogateescape") for name in listed
    ] == sorted(names)
    plain = ask("GET", "/b", list_type="2").texts("Contents/Key")
    assert plain == ["\ufffd\t\n\r", "<&>\"'é", "\ufffd"]
    for name in listed:
        assert ask("GET", f"/b/{name}").status == 200


def test_what_aistore_loses_is_lost_here_too(root: Path) -> None:
    for number in range(40):
        path = root / "b" / random.Random(number).choice(("X", "X-2", "Y")) / f"{number:02d}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for name in ("X y", "X-1", "X.tar", "Z", "W"):
        (root / "b" / name).touch()
    with running_server(root, traps=True) as server, asking(server) as ask:
        for size, flags in product((3, 5, 8, 1000), ("0", "2048")):
            native: list[str] = []
            token = ""
            while True:
                value = {"pagesize": size, "flags": flags, "continuation_token": token}
                page = requests.get(
                    f"{server.endpoint}/v1/buckets/b", json={"action": "list", "value": value}
                ).json()
                native += [entry["name"] for entry in page["entries"] or []]
                if not (token := page["continuation_token"]):
                    break
            delimiter = "/" if flags == "2048" else ""
            assert pages(ask, "2", size, "", delimiter=delimiter) == native
            assert size > 3 or flags == "0" or "X.tar" not in native
