"""The server while data moves between its targets: what is hidden, from what, and what it says of that."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import requests

from tests.support.mounts import eventually
from tests.support.servers import RunningServer, running_server

KEYS = [f"dir/{number}" for number in range(40)]
LONG = 3600


class Http:
    """Requests to a server with one bucket."""

    def __init__(self, server: RunningServer, session: requests.Session) -> None:
        self.server, self._session = server, session

    def ask(self, method: str, key: str, **more: Any) -> requests.Response:
        url = f"{self.server.endpoint}/v1/objects/b/{key}"
        return self._session.request(method, url, allow_redirects=True, **more)

    def page(self, **value: Any) -> requests.Response:
        message = {"action": "list", "value": value}
        return self._session.get(f"{self.server.endpoint}/v1/buckets/b", json=message)

    def listed(self, **value: Any) -> tuple[list[str], int]:
        """Give the names of a page, which is the only one, and its flags."""
        page = self.page(**value)
        assert page.status_code == 200
        found = page.json()
        assert found["continuation_token"] == ""
        return [entry["name"] for entry in found["entries"] or []], found["flags"]

    def copies(self, key: str) -> list[tuple[str, int]]:
        """Give version and flags of each entry of a name, in a listing of what is misplaced too."""
        found = self.page(prefix=key, props="name,version", flags="2").json()
        entries = [entry for entry in found["entries"] or [] if entry["name"] == key]
        return [(entry["version"], entry["flags"]) for entry in entries]

    def put(self, key: str, content: str) -> str:
        """Store an object; give its version."""
        reply = self.ask("PUT", key, data=content)
        assert reply.status_code == 200
        return reply.headers["Ais-Version"]

    def get(self, key: str) -> tuple[str, str]:
        """Give content and version of an object, which HEAD and a listing show as well."""
        got, head = self.ask("GET", key), self.ask("HEAD", key)
        assert (got.status_code, head.status_code) == (200, 200)
        page = self.page(prefix=key, props="name,size,version,checksum").json()
        (shown,) = [entry for entry in page["entries"] if entry["name"] == key]
        described = [
            (reply.headers["Ais-Version"], reply.headers["Ais-Checksum-Value"], length)
            for reply, length in (
                (got, str(len(got.content))),
                (head, head.headers["Content-Length"]),
            )
        ]
        described.append((shown["version"], shown["checksum"], shown["size"]))
        assert described == described[:1] * 3
        return got.text, got.headers["Ais-Version"]

    def hidden(self, method: str) -> set[str]:
        """Give the names that are not found, and show that all others are."""
        found = {key: self.ask(method, key).status_code for key in KEYS}
        assert set(found.values()) <= {200, 404}
        return {key for key, status in found.items() if status == 404}

    def cluster(self) -> tuple[int, set[int]]:
        """Give version and flags of the cluster's map."""
        found = self._session.get(f"{self.server.endpoint}/v1/daemon?what=smap").json()
        flags = {node["flags"] for node in found["tmap"].values()}
        assert self._session.get(f"{self.server.endpoint}/v1/cluster?what=smap").status_code == 200
        return int(found["version"]), flags

    def rebalances(self) -> list[bool]:
        """Give of each rebalance whether it runs."""
        url = f"{self.server.endpoint}/v1/cluster?what=qryxstats"
        found = self._session.get(url, json={"kind": "rebalance"}).json()
        (jobs,) = found.values()
        return [job["end-time"].startswith("0001") for job in jobs]

    def is_healthy(self) -> bool:
        url = f"{self.server.endpoint}/v1/health"
        asked = [self._session.get(url + more) for more in ("", "?readiness=true", "?prr=true")]
        return all(reply.status_code == 200 for reply in asked)


@pytest.fixture(params=[1, 3])
def http(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Http]:
    root = tmp_path / "served"
    (root / "b").mkdir(parents=True)
    with (
        running_server(root, targets=request.param) as server,
        requests.Session() as session,
    ):
        http = Http(server, session)
        for key in KEYS:
            assert http.ask("PUT", key, data=b"old").status_code == 200
        yield http
        assert "Traceback" not in server.log()


def test_head_does_not_find_what_get_finds(http: Http) -> None:
    assert http.listed() == (sorted(KEYS), 0)
    before, _ = http.cluster()
    state = http.server.move(cause="maintenance", moving=None, incomplete=LONG)
    assert state["moving"]
    assert state["incomplete"]
    hidden = http.hidden("HEAD")
    assert 0 < len(hidden) < len(KEYS)
    assert http.hidden("HEAD") == hidden
    assert http.hidden("GET") == set()
    assert "ErrNotFound" in http.ask("HEAD", min(hidden)).headers["Hdr-Error"]
    assert http.ask("GET", min(hidden), headers={"Range": "bytes=0-0"}).content == b"o"
    by_s3 = f"{http.server.endpoint}/s3/b/{min(hidden)}"
    assert requests.head(by_s3, allow_redirects=True, timeout=30).status_code == 404
    seen = sorted(set(KEYS) - hidden)
    for value in ({}, {"flags": "16"}, {"props": "name"}, {"flags": "18"}, {"prefix": "dir/"}):
        assert http.listed(**value) == (seen, 1)
    for key in KEYS:
        assert http.copies(key) == [("1", 65 if key in hidden else 64)]
    assert http.listed(flags="2") == (sorted(KEYS), 1)
    assert http.listed(flags="2048", prefix="dir/") == (seen, 1)
    assert http.cluster()[0] == before + 1
    assert 4 in http.cluster()[1]
    assert http.rebalances() == [True]
    assert http.is_healthy()

    assert not http.server.moved()["moving"]
    assert http.hidden("HEAD") == set()
    assert http.listed() == (sorted(KEYS), 1)  # still, though it is complete
    assert http.cluster() == (before + 2, {0})
    assert eventually(lambda: http.rebalances() == [False])


def test_a_page_in_messagepack_says_so_too(http: Http) -> None:
    http.server.move(moving=None, unmapped=0)
    url, packed = f"{http.server.endpoint}/v1/buckets/b", {"Accept": "application/msgpack"}
    message = {"action": "list", "value": {}}
    reply = requests.get(url, json=message, headers=packed, timeout=30)
    assert msgspec.msgpack.decode(reply.content)["Flags"] == 1


def test_a_target_that_joins(http: Http) -> None:
    """It has no map at first, and then no neighbours."""
    http.server.move(moving=None, unmapped=LONG, joining=LONG)
    assert http.page().status_code == 400
    assert "cannot handle bucket request: Smap v0" in http.page().json()["message"]
    assert "tcode" not in http.page().json()
    refused = {key for key in KEYS if http.ask("GET", key).status_code == 400}
    assert 0 < len(refused) < len(KEYS)
    for method in ("PUT", "DELETE", "HEAD"):
        assert http.ask(method, min(refused), data=b"1").status_code == 400
    assert http.is_healthy()

    http.server.move(moving=None, unmapped=0, joining=LONG)
    assert http.hidden("GET") == http.hidden("HEAD") == refused
    assert http.listed() == (sorted(set(KEYS) - refused), 1)

    http.server.move(moving=None, unmapped=0, joining=0)
    assert http.hidden("GET") == set()
    assert http.hidden("HEAD") == refused
    assert http.rebalances() == [True]


def test_what_is_written_meanwhile_is_at_its_new_target(http: Http) -> None:
    """Where the previous version has not come yet, so that versions begin anew."""
    for key in KEYS:
        http.ask("PATCH", key, json={"action": "", "value": {"old": "yes"}})
    http.server.move(cause="leave", moving=None, incomplete=0)
    hidden = http.hidden("HEAD")
    assert 8 in http.cluster()[1]
    key, copied, *others = sorted(hidden)
    stored = http.ask("PUT", key, data=b"new")
    assert (stored.status_code, stored.headers["Ais-Version"]) == (200, "1")
    assert "old=yes" not in stored.headers.get("Ais-Custom-Md", "")
    there = min(set(KEYS) - hidden)
    place = {"object_to": f"ais/@#/b/{copied}"}
    assert http.ask("PUT", there, params=place).status_code == 200
    for name in (key, copied):
        assert http.ask("HEAD", name).status_code == 200
        assert name in http.listed()[0]
    assert http.ask("GET", key).content == b"new"
    assert http.hidden("HEAD") == set(others)
    http.server.moved()
    assert http.ask("GET", key).content == b"new"
    assert http.listed() == (sorted(KEYS), 0)


def test_what_is_written_meanwhile_is_lost_when_more_was_written_before(http: Http) -> None:
    for key in KEYS:
        http.put(key, "second")
    http.server.move(cause="join", moving=None, unmapped=0, joining=0)
    once, twice, deleted, *_ = sorted(http.hidden("HEAD"))
    assert http.put(once, "new") == "1"
    assert http.get(once) == ("new", "1")
    assert http.copies(once) == [("1", 64), ("2", 65)]
    assert http.listed(flags="2")[0].count(once) == 2
    assert http.listed(flags=str(2 | 2048), prefix="dir/")[0].count(once) == 1
    assert [http.put(twice, text) for text in ("new", "newer")] == ["1", "2"]
    http.put(deleted, "new")
    assert http.ask("DELETE", deleted).status_code == 200
    assert http.ask("HEAD", deleted).status_code == 404
    assert http.ask("GET", deleted).text == "second"
    assert http.copies(deleted) == [("2", 65)]
    http.server.moved()
    assert http.get(once) == http.get(deleted) == ("second", "2")
    assert http.get(twice) == ("newer", "2")
    assert http.copies(once) == [("2", 64)]


def test_a_target_that_returns_has_what_it_had_when_it_left(http: Http) -> None:
    name, other, removed, new = KEYS[0], KEYS[1], KEYS[2], "dir/new"
    http.server.take_away()
    assert [http.put(name, text) for text in ("second", "the third")] == ["2", "3"]
    http.ask("DELETE", removed)
    http.put(new, "made meanwhile")
    assert http.get(name) == ("the third", "3")
    assert http.hidden("GET") == {removed}

    before, _ = http.cluster()
    assert http.server.move(cause="return", moving=None, incomplete=0)["moving"]
    assert http.cluster() == (before + 1, {0})
    assert True in http.rebalances()
    assert http.get(name) == ("old", "1")
    assert http.copies(name) == [("1", 64), ("3", 65)]
    assert http.get(other) == ("old", "1")
    assert http.copies(other) == [("1", 64), ("1", 65)]
    assert http.get(removed) == ("old", "1")
    assert http.ask("HEAD", new).status_code == 404
    assert http.ask("GET", new).text == "made meanwhile"
    assert http.copies(new) == [("1", 65)]
    assert http.listed() == (sorted(KEYS), 1)

    http.server.moved()
    assert http.get(name) == ("the third", "3")
    assert http.get(removed) == ("old", "1")  # nobody has kept that it was deleted
    assert http.get(new) == ("made meanwhile", "1")
    assert http.copies(name) == [("3", 64)]
    assert http.listed() == (sorted([*KEYS, new]), 0)


def test_what_a_target_that_returns_is_sent_is_lost(http: Http) -> None:
    """Unless its version is not lower than that of what comes."""
    once, twice, deleted, patched, same, gone = KEYS[:6]
    http.server.take_away()
    for key in (once, twice, deleted, patched):
        http.put(key, "second")
        http.put(key, "third")
    http.server.move(cause="return", moving=None, incomplete=0)
    assert http.put(once, "new") == "2"
    assert http.get(once) == ("new", "2")
    assert [http.put(twice, text) for text in ("new", "newer")] == ["2", "3"]
    assert http.ask("DELETE", deleted).status_code == 200
    assert http.ask("HEAD", deleted).status_code == 404
    assert http.copies(deleted) == [("3", 65)]
    change = {"action": "", "value": {"a": "1"}}
    assert http.ask("PATCH", patched, json=change).status_code == 200
    assert http.put(same, "new") == "2"
    assert http.ask("DELETE", gone).status_code == 200
    http.server.moved()
    assert http.get(once) == http.get(deleted) == http.get(patched) == ("third", "3")
    assert "Ais-Custom-Md" not in http.ask("HEAD", patched).headers
    assert http.get(twice) == ("newer", "3")
    assert http.get(same) == ("new", "2")
    assert http.get(gone) == ("old", "1")  # as another target had it too


def test_only_names_that_left_return(http: Http) -> None:
    http.server.move(cause="maintenance", moving=None, incomplete=0)
    left = http.hidden("HEAD")
    written = min(left)
    assert http.put(written, "while it leaves") == "1"
    http.server.moved()
    for key in KEYS:
        http.put(key, "newer")
    assert http.get(written) == ("newer", "2")
    http.server.move(cause="return", moving=None)
    assert {key for key in KEYS if http.get(key) == ("old", "1")} == left
    http.server.moved()
    assert {http.get(key)[0] for key in KEYS} == {"newer"}
    http.server.move(cause="return", moving=None)
    assert {http.get(key)[0] for key in KEYS} == {"newer"}
    assert {len(http.copies(key)) for key in KEYS} == {1}


def test_a_bucket_that_is_made_anew_has_nothing_that_left(http: Http) -> None:
    http.server.take_away()
    http.put(KEYS[0], "newer")
    url = f"{http.server.endpoint}/v1/buckets/b"
    for method, action in (("DELETE", "destroy-bck"), ("POST", "create-bck")):
        assert requests.request(method, url, json={"action": action}, timeout=30).ok
    http.server.move(cause="return", moving=None)
    assert http.hidden("GET") == set(KEYS)


def test_what_head_does_not_find_cannot_be_changed(http: Http) -> None:
    """A DELETE is 404, and the object stays."""
    http.server.move(cause="maintenance", moving=None)
    hidden = min(http.hidden("HEAD"))
    assert http.ask("DELETE", hidden).status_code == 404
    changes = {"action": "", "value": {"a": "1"}}
    assert http.ask("PATCH", hidden, json=changes).status_code == 404
    renamed = {"action": "rename-obj", "name": "other"}
    assert http.ask("POST", hidden, json=renamed).status_code == 404
    assert http.ask("PUT", hidden, params={"object_to": "ais/@#/b/other"}).status_code == 404
    assert http.ask("GET", hidden).content == b"old"
    http.server.moved()
    assert http.ask("HEAD", hidden).status_code == 200
    assert http.ask("HEAD", "other").status_code == 404


def test_it_ends_by_itself(http: Http) -> None:
    http.server.move(unmapped=0, joining=0.1, moving=0.2, incomplete=0)
    assert eventually(lambda: not http.server.move_state()["incomplete"])
    assert http.hidden("HEAD") == set()
    assert http.listed() == (sorted(KEYS), 0)
    assert http.server.move_state()["version"] == 3


def test_what_comes_to_a_target_that_returns_comes_by_itself(http: Http) -> None:
    http.server.take_away()
    for key in KEYS:
        http.put(key, "newer")
    http.server.move(cause="return", moving=None, incomplete=0)
    assert {http.get(key)[0] for key in KEYS} == {"old"}
    http.server.move(cause="return", moving=0.2, incomplete=0)
    assert eventually(lambda: not http.server.move_state()["moving"])
    assert {http.get(key) for key in KEYS} == {("newer", "2")}


def test_a_plan_that_makes_no_sense_and_a_server_without_traps(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        url = f"{server.endpoint}/-/move"
        reply = requests.post(url, json={"speed": 1}, timeout=30)
        assert reply.status_code == 400
        assert "speed" in reply.json()["message"]
    with running_server(tmp_path, traps=False) as server:
        assert requests.post(f"{server.endpoint}/-/move", timeout=30).status_code == 400
