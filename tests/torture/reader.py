"""The other client: the objects of a bucket by plain HTTP, without a line of aisfs."""

import io
import tarfile
import time
from urllib.parse import quote, urlsplit

import requests

from tests.torture.ledger import ABSENT, Ledger, digest

NO_RECURSION = 2048
PAGE = 9_000
"""More than any directory here has: what fits one page loses no name."""


class BrokenObject(Exception):
    """The cluster has an object and cannot give it."""


class Reader:
    """Reads one bucket."""

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
        path = quote(f"/v1/objects/{self._bucket}/{key}")
        first = self._http.get(self._endpoint + path, allow_redirects=False, timeout=60)
        if first.is_redirect:
            # Its path may be another object's: line breaks became spaces.
            to = urlsplit(first.headers["Location"])
            url = f"{to.scheme}://{to.netloc}{path}?{to.query}"
            first = self._http.get(url, allow_redirects=False, timeout=60)
        if first.status_code == 200:
            return first.content
        # A directory that outlives its objects is a 500 of its own kind.
        if first.status_code == 404 or b"ErrLmetaNotFound" in first.content:
            return None
        raise BrokenObject(f"{first.status_code} {first.text[:300]}")

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

    def compare(self, below: str, ledger: Ledger) -> list[str]:
        """Return what differs between the bucket and what a writer was told."""
        differences = []
        listed = self.names(below)
        for path, states in ledger.may_be.items():
            try:
                content = self.get(below + path)
            except BrokenObject as error:
                differences.append(f"{below}{path!r} cannot be read: {error}")
                continue
            state = ABSENT if content is None else digest(content)
            if state not in states:
                found = ABSENT if content is None else f"{state}, {len(content)} bytes"
                differences.append(f"{below}{path!r} is {found}; expected {' or '.join(states)}")
            elif (state != ABSENT) != (below + path in listed):
                differences.append(f"{below}{path!r} is not listed as it is there: {state}")
            else:
                ledger.settle(path, state)
        for shard, members in ledger.members.items():
            differences += self._compare_members(below + shard, members)
        known = {*ledger.may_be, *ledger.members, *ledger.given_up}
        known = {below + path for path in known}
        differences += [f"{name!r} is listed, and nobody wrote it" for name in listed - known]
        return differences

    def _compare_members(self, shard: str, members: dict[str, set[str]]) -> list[str]:
        try:
            content = self.get(shard)
        except BrokenObject as error:
            return [f"{shard!r} cannot be read: {error}"]
        if content is None:
            return [f"{shard!r} is gone"]
        found = {}
        try:
            with tarfile.open(fileobj=io.BytesIO(content)) as tar:
                for info in tar:
                    if info.isreg():
                        member = tar.extractfile(info)
                        assert member is not None
                        found[info.name] = digest(member.read())
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
