"""A directory beside an object of its name: AIStore's listings of it leave out what is there."""

import json

from aisfs.model import Bucket
from aisfs.settings import ClusterSettings
from aisfs.stores.ais.client import AISClient
from tests.stores.ais.scripted_server import MiniCluster, Seen, reply, scripted_server
from tests.support.for_each import for_each

B = Bucket("b")


class Disks(MiniCluster):
    """AIStore on two disks, with an object on the one and what is below its name on the other."""

    def listing(self, seen: Seen) -> bytes:
        asked = json.loads(seen.body)["value"]
        prefix, token = asked["prefix"], asked["continuation_token"]
        above = {prefix[:at] for at, character in enumerate(prefix) if character == "/"}
        found = [k for k in sorted(self.objects) if k.startswith(prefix) and k > token]
        entries = [{"name": key} for key in found[: asked["pagesize"]]]
        if above & self.objects.keys():
            entries = []
        body = json.dumps({"uuid": "", "continuation_token": "", "entries": entries}).encode()
        return reply(200, {"Content-Type": "application/json; charset=utf-8"}, body)


@for_each("prefix", ["d/", "d/sub/"])
async def test_what_is_there_is_found(prefix):
    cluster = Disks(dict.fromkeys(["d", "d-2", "d.tar", "d/sub/x", "d0", "e/x"], b"1"))
    with scripted_server(cluster) as server:
        client = AISClient(ClusterSettings(endpoint=server.endpoint))
        assert (await client.first_keys(B, prefix, 1)).found == []
        assert (await client.first_keys(B, prefix, 1, sure=True)).found == ["d/sub/x"]
        for other in ("d/other/", "d/sub/x/", "d0/", "f/"):
            assert (await client.first_keys(B, other, 1, sure=True)).found == []
        await client.aclose()
