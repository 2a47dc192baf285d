"""Other clusters that are attached to this one: their buckets have a namespace, `@alias#` or `@uuid#`.

As AIStore does, the server keeps a copy of every object that was read or written here, and does not look
at the original again: GET and HEAD go on giving the copy after the object was changed there, while
listings show the new version, with the checksum and the size of the copy. `latest-ver=true` of a GET
renews the copy. Custom metadata is kept with the copy alone.
"""

import email.message
import json
import os
import shutil
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, BinaryIO, NoReturn
from urllib.parse import quote, urlencode, urlsplit

from aisfs.server.api.buckets import message_in
from aisfs.server.api.cluster import Redirects
from aisfs.server.api.get_batch import Batches, BatchItem, Item
from aisfs.server.api.list_objects import (
    CACHED,
    DIRECTORY,
    Fields,
    Message,
    encoded_page,
    parse,
    props_of,
)
from aisfs.server.api.objects import Objects, attributes
from aisfs.server.failures import Failure, unsupported, uri_of
from aisfs.server.messages import Counters, Reply, Request, json_reply
from aisfs.server.storage.bucket import Bucket, Found, check_key
from aisfs.server.storage.objects import STATE_DIRECTORY, Storage
from aisfs.server.storage.records import Record
from aisfs.server.storage.traps import Traps

Headers = Sequence[tuple[str, str]]
_SECONDS = 60.0
"""How long the other cluster may be silent."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply, whole but for content that went elsewhere."""

    status: int
    headers: email.message.Message
    body: bytes

    def failure(self, where: str) -> Failure:
        """Return the error that this says, as AIStore passes it on."""
        text = self.headers.get("Hdr-Error") or self.body.decode(errors="replace")
        try:
            document = json.loads(text)
            message, tcode = str(document["message"]), str(document.get("tcode", ""))
        except (ValueError, KeyError, TypeError):
            message, tcode = text[:200], ""
        return Failure(self.status, f"remote-cluster[{where}]: {message}", tcode)


class Far:
    """Requests to another cluster."""

    def __init__(self, alias: str, url: str, uuid: str = "") -> None:
        self.alias, self.url = alias, url.rstrip("/")
        self.uuid = uuid or str(self.map()["uuid"])

    def map(self) -> dict[str, Any]:
        """Return its map."""
        answer = self.ask("GET", "/v1/daemon?what=smap")
        if answer.status != 200:
            raise answer.failure(self.alias)
        found: dict[str, Any] = json.loads(answer.body)
        return found

    def ask(
        self,
        method: str,
        target: str,
        headers: Headers = (),
        body: bytes | BinaryIO | None = None,
        *,
        url: str = "",
        sink: BinaryIO | None = None,
    ) -> Answer:
        """Send a request to its proxy, or to another `url`; the content of a success goes to `sink`.

        Raises:
            Failure: 400 when it does not answer.
        """
        place = urlsplit(url or self.url)
        connection = HTTPConnection(place.hostname or "", place.port, timeout=_SECONDS)
        try:
            connection.putrequest(method, target, skip_accept_encoding=True)
            for name, value in headers:
                connection.putheader(name, value)
            connection.endheaders(body)
            reply = connection.getresponse()
            if sink is None or reply.status != 200:
                return Answer(reply.status, reply.headers, reply.read())
            shutil.copyfileobj(reply, sink)
            if sink.tell() != int(reply.headers.get("Content-Length", sink.tell())):
                raise HTTPException("unexpected EOF")
            return Answer(reply.status, reply.headers, b"")
        except (OSError, HTTPException, ValueError) as error:
            text = f"remote-cluster[{self.alias}]: dial tcp {place.netloc}: connect: {error}"
            raise Failure(400, text, "OpError") from error
        finally:
            connection.close()

    def object(
        self,
        method: str,
        bucket: str,
        key: bytes,
        query: Mapping[str, str] | None = None,
        headers: Headers = (),
        body: bytes | BinaryIO | None = None,
        sink: BinaryIO | None = None,
    ) -> Answer:
        """Send a request about an object to the target that has it."""
        path = f"/v1/objects/{quote(bucket)}/{quote(key, safe='/')}"
        asked = f"{path}?{urlencode({'provider': 'ais', **(query or {})})}"
        answer = self.ask(method, asked)
        if answer.status not in (301, 307):
            return answer
        place = urlsplit(answer.headers["Location"])
        there = f"{place.scheme}://{place.netloc}"
        return self.ask(method, f"{path}?{place.query}", headers, body, url=there, sink=sink)

    def refuse(self, answer: Answer) -> NoReturn:
        """Pass an error on."""
        raise answer.failure(f"{self.uuid}/@{self.alias}")


ONLY_REMOTE = 1024
"""Flag of a listing: entries are what the other cluster says, without what the copy is."""
VERSION_CHANGED = 1024
"""Flag of an entry: the copy is of another version."""
_KNOWN = "clusters.json"
_PASSED_ON = ("Ais-Checksum-Type", "Ais-Checksum-Value")


class _Copies(Storage):
    """The copies of the objects of another cluster."""

    def __init__(self, root: Path, far: Far) -> None:
        root.mkdir(parents=True, exist_ok=True)
        super().__init__(root, Traps(root / STATE_DIRECTORY / "disks"))
        self._far = far

    def bucket(self, name: str) -> Bucket:
        """Return a bucket, of which nothing has to be copied yet."""
        if name not in self.names():
            answer = self._far.ask("HEAD", f"/v1/buckets/{quote(name)}?provider=ais")
            if answer.status != 200:
                self._far.refuse(answer)
            (self.root / name).mkdir(exist_ok=True)
        return super().bucket(name)


class _FarObjects(Objects):
    """GET, HEAD, PUT, DELETE and PATCH of objects of another cluster, and copies to it."""

    def __init__(self, storage: Storage, node_id: str, far: Far) -> None:
        super().__init__(storage, node_id)
        self._far = far

    def get(self, request: Request, bucket: Bucket, key: bytes) -> Reply:
        """Return the copy of an object, which is made, or renewed, if need be."""
        self.pull(bucket, key, latest=request.query.get("latest-ver") == "true")
        return super().get(request, bucket, key)

    def head(self, request: Request, bucket: Bucket, key: bytes) -> Reply:
        """Describe the copy, or the original if there is none."""
        found = bucket.find(key)
        query = {"props": request.query["props"]} if "props" in request.query else {}
        latest = request.query.get("latest-ver") == "true"
        if found is None:
            answer = self._head(bucket, key, query, latest=latest)
            hidden = ("ais-atime", "ais-location", "ais-present")
            kept = [
                (name, value)
                for name, value in answer.headers.items()
                if (name.lower().startswith("ais-") or name == "Content-Length")
                and name.lower() not in hidden
            ]
            return Reply(headers=[("Ais-Present", "false"), *kept])
        if latest:
            self._compare(bucket, key, found)
        return super().head(request, bucket, key)

    def put(self, request: Request, bucket: Bucket, key: bytes) -> Reply:
        """Store an object there, and a copy here; of neither with custom metadata."""
        headers = [(name, text) for name in _PASSED_ON if (text := request.header(name))]
        with self._storage.work_file() as work:
            with work.open("xb") as file:
                for piece in request.pieces():
                    file.write(piece)
            found = self.store(bucket, key, work, headers)
        return Reply(headers=attributes(found))

    def store(self, bucket: Bucket, key: bytes, work: Path, headers: Headers) -> Found:
        """Store the content of a file there, and move it here."""
        size = ("Content-Length", str(work.stat().st_size))
        with work.open("rb") as file:
            answer = self._far.object("PUT", bucket.name, key, None, [*headers, size], file)
        if answer.status != 200:
            self._far.refuse(answer)
        return self._commit(bucket, key, work, self._head(bucket, key))

    def delete(self, request: Request, bucket: Bucket, key: bytes) -> Reply:
        """Remove an object there and here."""
        request.drain()
        answer = self._far.object("DELETE", bucket.name, key)
        if answer.status in (200, 404):
            self._storage.delete(bucket, key)
        if answer.status != 200:
            self._far.refuse(answer)
        return Reply()

    def rename(self, bucket: Bucket, key: bytes, name: str) -> Reply:
        """Refuse, as AIStore does."""
        raise unsupported("rename-obj of a remote bucket")

    def open(self, bucket: Bucket, key: bytes, held: ExitStack) -> tuple[int, Found]:
        """Return a descriptor of the copy of an object."""
        self.pull(bucket, key)
        return super().open(bucket, key, held)

    def pull(self, bucket: Bucket, key: bytes, *, latest: bool = False) -> None:
        """Make sure that there is a copy of an object, and that it is the latest version if asked for."""
        found = bucket.find(key)
        if found is not None and not latest:
            return
        if found is not None and _is_of(found, self._head(bucket, key)):
            return
        with self._storage.work_file() as work:
            with work.open("xb") as file:
                answer = self._far.object("GET", bucket.name, key, sink=file)
            if answer.status != 200:
                self._far.refuse(answer)
            self._commit(bucket, key, work, answer)

    def _head(
        self,
        bucket: Bucket,
        key: bytes,
        query: Mapping[str, str] | None = None,
        *,
        latest: bool = False,
    ) -> Answer:
        answer = self._far.object("HEAD", bucket.name, key, query)
        if latest and answer.status == 404:
            answer = Answer(410, answer.headers, answer.body)
        if answer.status != 200:
            self._far.refuse(answer)
        return answer

    def _compare(self, bucket: Bucket, key: bytes, found: Found) -> None:
        answer = self._head(bucket, key, latest=True)
        if not _is_of(found, answer):
            size = int(answer.headers.get("Content-Length", 0))
            text = f"{uri_of(bucket.name, key)}: size {found.size} != {size} remote"
            raise Failure(409, text, "ErrRemoteMetadataMismatch")

    def _commit(self, bucket: Bucket, key: bytes, work: Path, answer: Answer) -> Found:
        with self._storage.locks.writing((bucket.name, key)):
            return self._storage.commit(bucket, key, work, _record(answer), bucket.find(key))


class _FarBatches(Batches):
    """GetBatch of objects of another cluster."""

    def __init__(
        self, storage: Storage, redirects: Redirects, counters: Counters, objects: _FarObjects
    ) -> None:
        super().__init__(storage, redirects, counters)
        self._objects = objects

    def _read(self, bucket: Bucket, item: Item) -> BatchItem:
        key = os.fsencode(item.objname)
        check_key(key)
        self._objects.pull(bucket, key)
        return super()._read(bucket, item)


class AttachedCluster:
    """What this cluster answers about the buckets of another one."""

    def __init__(
        self, far: Far, state: Path, node_id: str, redirects: Redirects, counters: Counters
    ) -> None:
        self.far = far
        self._counters = counters
        self.copies = _Copies(state / far.uuid, far)
        self.objects = _FarObjects(self.copies, node_id, far)
        self.batches = _FarBatches(self.copies, redirects, counters, self.objects)

    def serve(self, request: Request, name: str) -> Reply:
        """Answer a request below `/v1/buckets`."""
        if request.method == "HEAD":
            self._counters.add("head_bucket")
            answer = self.far.ask("HEAD", f"/v1/buckets/{quote(name)}?provider=ais")
            if answer.status != 200:
                self.far.refuse(answer)
            return Reply(headers=[("Ais-Bucket-Props", answer.headers["Ais-Bucket-Props"])])
        message = message_in(request, name)
        if request.method != "GET" or message.get("action") != "list":
            raise unsupported(f"{request.method} {request.path} of a remote bucket")
        headers = [("Content-Type", "application/json")]
        self._counters.add("list_page" if name else "list_buckets")
        if not name:
            body = json.dumps({"action": "list"}).encode()
            found = json.loads(self._list("/v1/buckets", headers, body))
            cluster = request.query["namespace"].removeprefix("@").partition("#")[0]
            place = {"provider": "ais", "namespace": {"uuid": cluster, "name": ""}}
            return json_reply([{"name": each["name"], **place} for each in found])
        return self._page(request, name, message)

    def in_use(self) -> list[dict[str, Any]]:
        """Return the buckets of which something may have been copied."""
        place = {"provider": "ais", "namespace": {"uuid": self.far.uuid, "name": ""}}
        return [{"name": name, **place} for name in self.copies.names()]

    def _page(self, request: Request, name: str, message: dict[str, Any]) -> Reply:
        asked = parse(message.get("value"), name)
        if asked.start_after:
            raise Failure(400, "start_after is not yet supported for remote buckets")
        value = {**message["value"], "uuid": ""}
        # Names may be any bytes.
        body = json.dumps({"action": "list", "value": value}, ensure_ascii=False)
        headers = [("Content-Type", "application/json")]
        text = self._list(
            f"/v1/buckets/{quote(name)}", headers, body.encode("utf-8", "surrogateescape")
        )
        page = json.loads(text.decode("utf-8", "surrogateescape"))
        bucket = self.copies.bucket(name)
        entries = [self._entry(bucket, entry, asked) for entry in page["entries"] or []]
        token = os.fsencode(page["continuation_token"])
        packed = "msgpack" in request.header("Accept")
        return encoded_page(asked.uuid or page["uuid"], token, entries, packed, int(page["flags"]))

    def _list(self, path: str, headers: Headers, body: bytes) -> bytes:
        length = ("Content-Length", str(len(body)))
        answer = self.far.ask("GET", f"{path}?provider=ais", [*headers, length], body)
        if answer.status != 200:
            self.far.refuse(answer)
        return answer.body

    @staticmethod
    def _entry(bucket: Bucket, entry: dict[str, Any], asked: Message) -> Fields:
        """Return an entry of its listing, with what this cluster mixes in from its copy."""
        key, size, flags = os.fsencode(entry["name"]), int(entry.get("size", 0)), entry["flags"]
        fields: Fields = {**entry, "name": key, **({"size": size} if size else {})}
        if int(asked.flags) & ONLY_REMOTE:
            return fields
        found = None if flags & DIRECTORY else bucket.find(key)
        if found is None:
            return {**fields, "flags": flags & ~CACHED}
        props = props_of(asked)
        if props & {"version", "checksum", "custom"}:
            if "size" in props and size != found.size:
                fields |= {"size": found.size, "flags": flags | VERSION_CHANGED}
            if "checksum" in props:
                fields["checksum"] = found.record.checksum
            if "custom" in props and "custom-md" not in entry:
                custom = " ".join(f"{k}:{v}" for k, v in found.record.custom.items())
                fields["custom-md"] = f"[{custom}]"
        return fields


class Attached:
    """The clusters that are attached to this one; they are remembered over restarts."""

    def __init__(
        self, state: Path | None, node_id: str, redirects: Redirects, counters: Counters
    ) -> None:
        """Keep the copies in the directory `state`; None allows no other cluster."""
        self._state = state
        self._of_node = (node_id, redirects, counters)
        self._lock = threading.Lock()
        self._clusters: dict[str, AttachedCluster] = {}
        self._version = 0
        if state is not None and (state / _KNOWN).exists():
            for alias, (url, uuid) in json.loads((state / _KNOWN).read_text()).items():
                self._add(Far(alias, url, uuid), state)

    def _add(self, far: Far, state: Path) -> None:
        self._clusters[far.alias] = AttachedCluster(far, state, *self._of_node)
        self._version += 1

    def change(self, request: Request, action: str) -> Reply:
        """Attach or detach a cluster."""
        if self._state is None:
            raise unsupported(f"PUT {request.path}")
        alias, url = request.header("Ais-Remote-Ais-Alias"), request.header("Ais-Remote-Ais-Url")
        with self._lock:
            if action == "attach":
                if not alias or not url:
                    raise Failure(400, "attach: the alias or the URL is missing")
                self._add(Far(alias, url), self._state)
            elif self._clusters.pop(alias, None) is None:
                raise Failure(404, f"remote cluster {alias} does not exist", "ErrNotFound")
            known = {name: (c.far.url, c.far.uuid) for name, c in self._clusters.items()}
            (self._state / _KNOWN).write_text(json.dumps(known))
        return Reply()

    def listed(self) -> Reply:
        """Return all of them, with their maps, if they answer."""
        clusters = []
        for cluster in list(self._clusters.values()):
            far = cluster.far
            with suppress(Failure):
                place = {"url": far.url, "alias": far.alias, "uuid": far.uuid}
                clusters.append({"smap": far.map(), **place})
        return json_reply({"a": clusters or None, "ver": self._version})

    def in_use(self) -> list[dict[str, Any]]:
        """Return the buckets of other clusters that were used."""
        return [each for cluster in self._clusters.values() for each in cluster.in_use()]

    def named_in(self, request: Request) -> AttachedCluster | None:
        """Return the cluster that a request is about, which then has its uuid for a name.

        None if that is this one.
        """
        space, _, rest = request.query.get("namespace", "").removeprefix("@").partition("#")
        if not space or rest:
            return None
        found = self._clusters.get(space) or self._by_uuid(space)
        if found is not None:
            query = {**request.query, "namespace": f"@{found.far.uuid}#"}
            request.environ["QUERY_STRING"] = urlencode(query, errors="surrogateescape")
        return found

    def _by_uuid(self, uuid: str) -> AttachedCluster | None:
        return next((c for c in self._clusters.values() if c.far.uuid == uuid), None)

    def copy(self, source: Objects, bucket: Bucket, key: bytes, to: str) -> Reply:
        """Copy an object to `ais/@uuid#/bucket/name`; AIStore takes no alias there."""
        parts = to.split("/", 3)
        space = parts[1].removeprefix("@").removesuffix("#") if len(parts) == 4 else ""
        cluster = self._by_uuid(space)
        if cluster is None:
            text = f'remote bucket "ais://@{space}/{parts[-2]}" does not exist'
            raise Failure(404, text, "ErrRemoteBckNotFound")
        new_key = os.fsencode(parts[3])
        check_key(new_key)
        with cluster.copies.work_file() as work:
            with ExitStack() as held:
                fd, found = source.open(bucket, key, held)
                with os.fdopen(os.dup(fd), "rb") as file, work.open("xb") as target:
                    shutil.copyfileobj(file, target)
            custom = [("Ais-Custom-Md", f"{k}={v}") for k, v in found.record.custom.items()]
            cluster.objects.store(cluster.copies.bucket(parts[2]), new_key, work, custom)
        return Reply()


def _is_of(found: Found, answer: Answer) -> bool:
    theirs, ours = _record(answer), found.record
    size = int(answer.headers.get("Content-Length", 0))
    return (theirs.version, theirs.checksum, size) == (ours.version, ours.checksum, found.size)


def _record(answer: Answer) -> Record:
    """Return what a reply says of an object, as the record of its copy."""
    headers = answer.headers
    lines = [str(line).partition("=") for line in headers.get_all("Ais-Custom-Md", [])]
    return Record(
        headers.get("Ais-Version", ""),
        headers.get("Ais-Checksum-Type", ""),
        headers.get("Ais-Checksum-Value", ""),
        {"source": "ais", **{name: value for name, _, value in lines}},
    )
