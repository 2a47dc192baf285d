"""Whole objects into AIStore: in one request, or in parts (`aisfs.ais.multipart`).

Nothing is reported done that the cluster has not confirmed: by the checksum in the reply to a PUT,
or by a HEAD where the reply was lost or says nothing, and after the parts were put together.

Must not know: HTTP, requests, errnos.
"""

import logging
from dataclasses import replace

from cachetools import LRUCache

from aisfs.ais.absence import changing
from aisfs.ais.client_port import Session
from aisfs.ais.multipart import BegunUpload, Parts
from aisfs.ais.protocol import write_requests
from aisfs.ais.protocol.requests import Request
from aisfs.ais.sending import Upload, check_condition, checksum_for, send_content
from aisfs.errors import NotFound, Unavailable
from aisfs.http.connections import ConnectionSet
from aisfs.http.exchange import SMALL, BodyDelivered, Reply
from aisfs.model import Bucket, ObjectInfo, Provider
from aisfs.store.content import in_memory
from aisfs.store.custom import encode_custom, stamp_of
from aisfs.store.port import Content

log = logging.getLogger(__name__)

SENT_MAX = 1000
"""Objects of which the last upload is remembered, some 1 KB each."""


class Uploads:
    """Writes whole objects."""

    def __init__(self, session: Session, parts: Parts) -> None:
        """Write as a part of the client `session`; what is large by `parts`."""
        self._session = session
        self._parts = parts
        self._sent: LRUCache[tuple[Bucket, str], tuple[str, ObjectInfo]] = LRUCache(SENT_MAX)
        """What was last sent on a condition, and `Upload.only_new` of it."""

    async def upload(self, upload: Upload, begun: BegunUpload | None = None) -> ObjectInfo:
        """Write one object; its custom metadata may still be that of before.

        Args:
            upload: What to write.
            begun: What of it is in the cluster already.

        Raises:
            AlreadyExists, Stale: another client has made or changed it.
        """
        mark, sent = self._sent.get((upload.bucket, upload.key), ("", None))
        if sent is not None and mark == upload.only_new:
            upload = replace(upload, earlier=sent)
        info = await self._upload(upload, begun)
        self._note(upload, info)
        return info

    def _note(self, upload: Upload, sent: ObjectInfo) -> None:
        if upload.only_new or upload.replaces is not None:
            self._sent[upload.bucket, upload.key] = upload.only_new, sent

    async def _upload(self, upload: Upload, begun: BegunUpload | None) -> ObjectInfo:
        size = upload.content.size
        if begun is not None and not begun.over:
            if begun.fits(size) and (begun.bucket, begun.key) == (upload.bucket, upload.key):
                return await self._parts.finish(upload, begun)
            await begun.abandon()
        if size > self._parts.above:
            begun = await self._parts.begin(upload.bucket, upload.key, ahead=False)
            if begun is not None:
                upload.announce(begun.name)
                return await self._parts.finish(upload, begun)
        return await self._whole(upload)

    async def _whole(self, upload: Upload) -> ObjectInfo:
        await check_condition(self._session, upload)
        meant = ObjectInfo(upload.key, upload.content.size)

        def work(connections: ConnectionSet) -> tuple[ObjectInfo | None, str]:
            facts = self._session.facts_of(connections, upload.bucket)
            content = in_memory(upload.content) if upload.content.size <= SMALL else upload.content
            checksum, custom = checksum_for(facts, content, connections), ""
            nonlocal meant
            meant = ObjectInfo(upload.key, upload.content.size, checksum=checksum)
            if upload.custom and checksum:
                custom = encode_custom(upload.custom, stamp_of(meant))
            request = write_requests.put_object(
                upload.bucket, upload.key, checksum=checksum, custom=custom
            )
            place = upload.bucket, upload.key
            with changing(self._session.transport, connections, place) as change:
                reply = self._sent_whole(connections, request, content, upload, checksum)
                written = None
                if reply is not None:
                    size = upload.content.size
                    written = write_requests.parse_written(reply, *place, size, facts)
                if upload.bucket.is_local:
                    change.wrote(written, upload.replaces, is_new=bool(upload.only_new))
            return written, checksum

        try:
            info, checksum = await self._session.run(str(upload), work, upload.bucket)
        except BaseException:
            self._note(upload, meant)
            raise
        if info is None or upload.bucket.provider is not Provider.AIS:
            info = await self._confirmed(upload)
        wanted = ObjectInfo(upload.key, upload.content.size, checksum=checksum)
        if not info.same_bytes(wanted):
            raise Unavailable(f"{upload}: what the cluster has is not what was sent")
        return info

    def _sent_whole(
        self,
        connections: ConnectionSet,
        request: Request,
        content: Content,
        upload: Upload,
        checksum: str,
    ) -> Reply | None:
        """Send all of an upload; return None if no answer came, and a HEAD can tell whether it was written."""
        try:
            with self._session.transport.readiness.undisturbed(str(upload)):
                return send_content(self._session, connections, request, content, upload.progress)
        except BodyDelivered as error:
            log.info("%s: asking whether it was written: %s", upload, error)
            # On other connections: this one is of no more use.
            if not checksum:
                raise
            return None

    async def _confirmed(self, upload: Upload) -> ObjectInfo:
        try:
            return await self._session.head(upload.bucket, upload.key)
        except NotFound as error:
            raise Unavailable(f"{upload}: the cluster did not keep what was sent") from error
