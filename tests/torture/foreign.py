"""The other client: the objects of a bucket by plain HTTP, without a line of aisfs."""

import errno
import fcntl
import io
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import quote, urlsplit

import requests

from tests.torture.ledger import ABSENT, Ledger, digest

KEEP = ".keep"
"""Objects that let directories stay, whatever is removed."""
NO_RECURSION = 2048
PAGE = 9_000
"""More than any directory here has: what fits one page loses no name."""


@contextmanager
def calm() -> Iterator[None]:
    """Let nothing be changed by curl, in any process, while a move of data begins.

    AIStore loses what is changed meanwhile by a client that does not look at the map before and after.
    """
    with open(__file__, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class BrokenObject(Exception):
    """The cluster has an object and cannot give it."""


def members_of(archive: bytes) -> dict[str, str]:
    """Return the digests of all files of a tar."""
    found = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for info in tar:
            if info.isreg():
                member = tar.extractfile(info)
                assert member is not None
                found[info.name] = digest(member.read())
    return found


class Foreign:
    """Reads and writes one bucket, as curl would."""

    def __init__(self, endpoint: str, bucket: str) -> None:
        self._endpoint = endpoint
        self._bucket = bucket
        self._http = requests.Session()

    def wait_until_ready(self, seconds: float) -> None:
        """Wait until proxy and targets have found each other."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                if self._http.get(f"{self._endpoint}/v1/health?prr=true", timeout=5).ok:
                    return
            except requests.RequestException:
                pass
            assert time.monotonic() < deadline, "the cluster does not come back"
            time.sleep(0.2)

    def get(self, key: str) -> bytes | None:
        """Return an object; None when there is none.

        Raises:
            BrokenObject: it ends early, or is an error.
        """
        try:
            return self._get(key)
        except requests.RequestException as error:
            raise BrokenObject(str(error)) from error

    def _get(self, key: str) -> bytes | None:
        reply = self._send("GET", key)
        if reply.status_code == 200:
            return reply.content
        # A directory that outlives its objects is a 500 of its own kind.
        if reply.status_code == 404 or b"ErrLmetaNotFound" in reply.content:
            return None
        raise BrokenObject(f"{reply.status_code} {reply.text[:300]}")

    def put(self, key: str, content: bytes) -> int:
        """Write an object, and return its version.

        Raises:
            OSError: nobody knows whether it was written.
        """
        return int(self._change("PUT", key, content).headers["Ais-Version"])

    def delete(self, key: str) -> None:
        """Delete an object.

        Raises:
            OSError: ENOENT says that nothing was deleted; after EIO nobody knows.
        """
        self._change("DELETE", key)

    def version(self, key: str) -> tuple[int, str] | None:
        """Return version and digest of an object; None if there is none, or nothing can be told."""
        with suppress(requests.RequestException):
            reply = self._send("GET", key)
            if reply.status_code == 200:
                return int(reply.headers["Ais-Version"]), digest(reply.content)
        return None

    def _change(self, method: str, key: str, content: bytes = b"") -> requests.Response:
        try:
            with calm():
                while self._moves():
                    time.sleep(0.1)
                reply = self._send(method, key, content)
        except requests.RequestException as error:
            raise OSError(errno.EIO, type(error).__name__) from error
        if reply.status_code == 404:
            raise OSError(errno.ENOENT, "404")
        if not reply.ok:
            raise OSError(errno.EIO, f"HTTP {reply.status_code}")
        return reply

    def _moves(self) -> bool:
        """Return whether the embedded server moves data; no other cluster is made to."""
        reply = self._http.get(f"{self._endpoint}/-/move", timeout=60)
        return reply.ok and bool(reply.json()["moving"])

    def _send(self, method: str, key: str, content: bytes = b"") -> requests.Response:
        path = quote(f"/v1/objects/{self._bucket}/{key}")
        url = self._endpoint + path
        first = self._http.request(method, url, allow_redirects=False, timeout=60)
        if not first.is_redirect:
            return first
        # Its path may be another object's: line breaks became spaces.
        to = urlsplit(first.headers["Location"])
        url = f"{to.scheme}://{to.netloc}{path}?{to.query}"
        return self._http.request(method, url, data=content, allow_redirects=False, timeout=60)

    def names(self, prefix: str) -> set[str]:
        """Return all keys below a prefix that ends with a slash."""
        found, directories = set(), [prefix]
        while directories:
            where = directories.pop()
            value = {"prefix": where, "props": "name", "flags": str(NO_RECURSION), "pagesize": PAGE}
            url = f"{self._endpoint}/v1/buckets/{self._bucket}"
            page = self._http.get(url, json={"action": "list", "value": value}, timeout=60).json()
            assert not page["continuation_token"]
            for entry in page["entries"] or []:
                name = entry["name"]
                (directories.append if name.endswith("/") else found.add)(name)
        return found

    def compare(self, ledgers: list[Ledger]) -> list[str]:
        """Return what differs between the bucket and what the writers know; they then know what is there."""
        differences, listed = [], self.names("")
        for ledger in ledgers:
            differences += ledger.wrong
            for shard in ledger.given_up:
                self._learn(shard, ledger)
            for path in sorted(ledger.may_be.keys() - ledger.members.keys()):
                differences += self._compare(path, ledger, path in listed)
            for shard, members in ledger.members.items():
                differences += self._compare_members(shard, members)
        known = {path for ledger in ledgers for path in [*ledger.may_be, *ledger.members]}
        strange = {name for name in listed - known if not name.endswith(KEEP)}
        return differences + [
            f"{name!r} is listed, and nobody wrote it" for name in sorted(strange)
        ]

    def _compare(self, path: str, ledger: Ledger, is_listed: bool) -> list[str]:
        try:
            content = self.get(path)
        except BrokenObject as error:
            return [f"{path!r} cannot be read: {error}"]
        states, state = ledger.states(path), ABSENT if content is None else digest(content)
        waited = ledger.waiting.get(path)
        if waited is not None and waited.may_conflict and state == waited.stored not in states:
            ledger.kept(path, "look")
            states = {state}
        if state not in states:
            found = ABSENT if content is None else f"{state}, {len(content)} bytes"
            return [f"{path!r} is {found}; expected {' or '.join(states)}"]
        if (content is not None) != is_listed:
            return [f"{path!r} is not listed as it is there: {state}"]
        if len(states) > 1:
            ledger.settle(path, state, "look")
        return []

    def _learn(self, shard: str, ledger: Ledger) -> None:
        """Take a shard for what it is."""
        ledger.members.pop(shard, None)
        content = self.get(shard)
        if content is None:
            ledger.settle(shard, ABSENT, "look")
        else:
            ledger.members[shard] = {name: {one} for name, one in members_of(content).items()}

    def _compare_members(self, shard: str, members: dict[str, set[str]]) -> list[str]:
        try:
            content = self.get(shard)
        except BrokenObject as error:
            return [f"{shard!r} cannot be read: {error}"]
        if content is None:
            return [f"{shard!r} is gone"]
        try:
            found = members_of(content)
        except tarfile.TarError as error:
            return [f"{shard!r} is no tar any more: {error}"]
        wrong = [n for n, states in members.items() if found.get(n, ABSENT) not in states]
        more = found.keys() - members.keys()
        for name in members:
            members[name] = {found.get(name, ABSENT)}
        return [
            *(f"{shard!r}: its member {name!r} is not what was written" for name in wrong),
            *(f"{shard!r}: nobody wrote its member {name!r}" for name in more),
        ]
