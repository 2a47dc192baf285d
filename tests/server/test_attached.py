"""A cluster that is attached to another one, whose objects change behind that one's back."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.servers import RunningServer, running_server


@dataclass
class Pair:
    """Two clusters, the second of which is attached to the first as `far`."""

    near: RunningServer
    far: RunningServer
    http: requests.Session
    uuid: str = ""

    def ask(self, method: str, key: str, space: str = "@far#", **more: Any) -> requests.Response:
        query = {"provider": "ais", "namespace": space, **more.pop("params", {})}
        url = f"{self.near.endpoint}/v1/objects/b/{key}"
        return self.http.request(method, url, params=query, allow_redirects=True, **more)

    def there(self, method: str, key: str, **more: Any) -> requests.Response:
        url = f"{self.far.endpoint}/v1/objects/b/{key}"
        return self.http.request(method, url, allow_redirects=True, **more)

    def listed(self, **value: str) -> dict[str, dict[str, Any]]:
        message = {"action": "list", "value": {"props": "name,size,version,checksum", **value}}
        url = f"{self.near.endpoint}/v1/buckets/b"
        reply = self.http.get(url, params={"namespace": "@far#"}, json=message)
        assert reply.status_code == 200
        return {entry["name"]: entry for entry in reply.json()["entries"] or []}


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    for name in ("near", "far"):
        (tmp_path / name / "b").mkdir(parents=True)
    with (
        running_server(tmp_path / "near") as near,
        running_server(tmp_path / "far") as far,
        requests.Session() as http,
    ):
        near.attach("far", far)
        found = http.get(f"{near.endpoint}/v1/cluster?what=remote").json()["a"]
        assert [(each["alias"], each["url"]) for each in found] == [("far", far.endpoint)]
        yield Pair(near, far, http, found[0]["uuid"])
        assert "Traceback" not in near.log() + far.log()


def test_an_object_that_changes_behind_the_cluster(pair: Pair) -> None:
    """Listings show the new version, GET and HEAD the old one, until the latest is asked for."""
    pair.there("PUT", "k", data=b"old")
    before = pair.ask("HEAD", "k")
    assert (before.status_code, before.headers["Ais-Present"]) == (200, "false")
    assert pair.listed()["k"]["flags"] == 0
    assert pair.ask("GET", "k").content == b"old"
    assert pair.ask("HEAD", "k").headers["Ais-Present"] == "true"
    old = pair.listed()["k"]
    assert (old["version"], old["size"], old["flags"]) == ("1", "3", 64)

    pair.there("PUT", "k", data=b"newer")
    entry = pair.listed()["k"]
    assert entry == {**old, "version": "2", "flags": 1088}
    names = pair.listed(props="name,size")["k"]
    assert (names["size"], names["flags"]) == ("5", 64)
    for _ in range(3):
        assert pair.ask("GET", "k").content == b"old"
        assert pair.ask("HEAD", "k").headers["Ais-Version"] == "1"
    ranged = pair.ask("GET", "k", headers={"Range": "bytes=0-0"})
    assert (ranged.status_code, ranged.content) == (206, b"o")
    looked = pair.ask("HEAD", "k", params={"latest-ver": "true"})
    assert looked.status_code == 409
    assert "ErrRemoteMetadataMismatch" in looked.headers["Hdr-Error"]

    latest = {"latest-ver": "true"}
    renewed = pair.ask("GET", "k", params=latest, headers={"Range": "bytes=3-4"})
    assert (renewed.status_code, renewed.content) == (206, b"er")
    assert pair.ask("GET", "k").content == b"newer"
    assert pair.ask("HEAD", "k", params=latest).headers["Ais-Version"] == "2"
    assert (pair.listed()["k"]["size"], pair.listed()["k"]["flags"]) == ("5", 64)


def test_a_change_of_equal_size_has_no_flag(pair: Pair) -> None:
    pair.there("PUT", "k", data=b"old")
    old = pair.ask("GET", "k").headers["Ais-Checksum-Value"]
    pair.there("PUT", "k", data=b"new")
    entry = pair.listed()["k"]
    assert (entry["version"], entry["checksum"], entry["flags"]) == ("2", old, 64)


def test_what_is_removed_there_is_read_here(pair: Pair) -> None:
    pair.there("PUT", "k", data=b"old")
    pair.ask("GET", "k")
    pair.there("DELETE", "k")
    assert pair.listed() == {}
    assert pair.ask("GET", "k").content == b"old"
    assert pair.ask("GET", "k", params={"latest-ver": "true"}).status_code == 404
    assert pair.ask("HEAD", "k", params={"latest-ver": "true"}).status_code == 410
    assert pair.ask("HEAD", "k").status_code == 200
    assert pair.ask("HEAD", "none", params={"latest-ver": "true"}).status_code == 410
    assert pair.ask("DELETE", "k").status_code == 404
    assert pair.ask("GET", "k").status_code == 404


def test_custom_metadata_is_kept_with_the_copy(pair: Pair) -> None:
    change = {"action": "", "value": {"who": "you"}}
    pair.there("PUT", "k", data=b"1")
    assert pair.ask("PATCH", "k", json=change).status_code == 404
    pair.ask("PUT", "k", data=b"22", headers={"Ais-Custom-Md": "who=me"})
    assert pair.ask("HEAD", "k").headers["Ais-Custom-Md"] == "source=ais"
    assert pair.ask("PATCH", "k", json=change).status_code == 200
    assert "who=you" in pair.ask("HEAD", "k").headers["Ais-Custom-Md"]
    assert "Ais-Custom-Md" not in pair.there("HEAD", "k").headers
    shown = {"k": {"name": "k", "custom-md": "[source:ais who:you]", "flags": 64}}
    assert pair.listed(props="name,custom") == shown
    assert "custom-md" not in pair.listed(props="name,size,custom", flags="1024")["k"]
    pair.there("PUT", "k", data=b"333")
    pair.ask("GET", "k", params={"latest-ver": "true"})
    assert pair.ask("HEAD", "k").headers["Ais-Custom-Md"] == "source=ais"


def test_a_listing_of_originals_mixes_nothing(pair: Pair) -> None:
    pair.there("PUT", "k", data=b"old")
    old = pair.listed()["k"]
    pair.ask("GET", "k")
    pair.there("PUT", "k", data=b"newer")
    now = pair.listed(flags="1024")["k"]
    assert (now["version"], now["size"]) == ("2", "5")
    assert now["checksum"] != old["checksum"]
    assert pair.listed(flags="1024", prefix="k") == {"k": now}


def test_names_of_any_bytes(pair: Pair) -> None:
    for key in ("a%0Ab", "a%3Fb", "a%25b", "a%2Bb", "%FF", "%E2%82%AC"):
        assert pair.ask("PUT", key + "?pid=p&utm=1", data=key.encode()).status_code == 200
        assert pair.there("GET", key + "?pid=p&utm=1").content == key.encode()
    assert len(pair.listed(props="name")) == 6


def test_a_copy_takes_the_uuid_and_no_alias(pair: Pair) -> None:
    """And there is no rename."""
    pair.ask("PUT", "k", data=b"content")
    alias = pair.ask("PUT", "k", params={"object_to": "ais/@far#/b/copy"})
    assert (alias.status_code, alias.json()["tcode"]) == (404, "ErrRemoteBckNotFound")
    place = {"object_to": f"ais/@{pair.uuid}#/b/copy"}
    assert pair.ask("PUT", "k", params=place).status_code == 200
    assert pair.there("GET", "copy").content == b"content"
    renamed = pair.ask("POST", "k", json={"action": "rename-obj", "name": "other"})
    assert renamed.status_code == 501


def test_the_alias_becomes_the_uuid_in_a_redirect(pair: Pair) -> None:
    pair.there("PUT", "k", data=b"1")
    url = f"{pair.near.endpoint}/v1/objects/b/k?namespace=%40far%23"
    place = pair.http.get(url, allow_redirects=False).headers["Location"]
    assert f"namespace=%40{pair.uuid}%23" in place


def test_buckets(pair: Pair) -> None:
    url = f"{pair.near.endpoint}/v1/buckets"
    local = {"name": "b", "provider": "ais", "namespace": {"uuid": "", "name": ""}}
    assert pair.http.get(url).json() == [local]
    far = pair.http.get(url, params={"provider": "ais", "namespace": "@far#"}).json()
    assert far == [{**local, "namespace": {"uuid": "far", "name": ""}}]
    missing = pair.http.head(f"{url}/none?namespace=@far%23")
    assert missing.status_code == 404
    assert pair.http.head(f"{url}/b?namespace=@far%23").headers["Ais-Bucket-Props"]
    pair.there("PUT", "k", data=b"1")
    pair.ask("GET", "k")
    in_use = {**local, "namespace": {"uuid": pair.uuid, "name": ""}}
    assert pair.http.get(url).json() == [local, in_use]


def test_a_batch_reads_the_copies(pair: Pair) -> None:
    pair.there("PUT", "k", data=b"content of k")
    message = {"in": [{"objname": "k"}], "coer": True, "onob": True, "strm": True}
    url = f"{pair.near.endpoint}/v1/ml/moss/b"
    reply = pair.http.get(url, params={"namespace": "@far#"}, json=message)
    assert b"content of k" in reply.content
    assert pair.ask("HEAD", "k").headers["Ais-Present"] == "true"


def test_a_cluster_that_is_gone_or_detached(pair: Pair) -> None:
    pair.there("PUT", "k", data=b"copied")
    pair.there("PUT", "other", data=b"not copied")
    pair.ask("GET", "k")
    pair.far.kill()
    assert pair.ask("GET", "k").content == b"copied"
    refused = pair.ask("GET", "other")
    assert refused.status_code == 400
    assert refused.json()["message"].startswith("remote-cluster[far]: dial tcp")
    detach = {"Ais-Remote-Ais-Alias": "far"}
    url = f"{pair.near.endpoint}/v1/cluster/detach?what=remote"
    assert pair.http.put(url, headers=detach).status_code == 200
    assert pair.http.get(f"{pair.near.endpoint}/v1/cluster?what=remote").json()["a"] is None
    assert pair.ask("GET", "k").status_code == 501


def test_attached_clusters_survive_a_restart(tmp_path: Path) -> None:
    for name in ("near", "far"):
        (tmp_path / name / "b").mkdir(parents=True)
    (tmp_path / "far/b/k").write_bytes(b"1")
    with requests.Session() as http, running_server(tmp_path / "far") as far:
        with running_server(tmp_path / "near") as near:
            near.attach("far", far)
            near.kill()
        with running_server(tmp_path / "near") as near:
            assert Pair(near, far, http).ask("GET", "k").content == b"1"
