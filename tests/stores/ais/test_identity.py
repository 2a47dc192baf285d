"""What answers at an endpoint, told from the replies of real clusters and of others."""

from aisfs.http.exchange import Reply
from aisfs.stores.ais.replies import identify
from tests.support.for_each import for_each

NOTHING = Reply(404, {})
UPTIME = {"ais-cluster-uptime": "1234567", "ais-node-uptime": "1234567"}
MAP = Reply(
    200, {}, b'{"pmap": {"p1": {}}, "tmap": {"t1": {}, "t2": {}}, "uuid": "x", "version": "6"}'
)
REFUSED = Reply(
    401, {}, b'{"tcode": "", "message": "token required", "url_path": "/v1/daemon", "status": 401}'
)
NOW = (1_700_000_000.0, 1_700_000_000.5)


def test_a_cluster():
    found = identify(Reply(200, UPTIME), MAP, Reply(200, {}, b"5.0.rc1\n"), NOW)
    assert (found.is_aistore, found.targets, found.version) == (True, 2, "5.0.rc1")
    assert found.clock_ahead is None


def test_a_cluster_that_wants_a_token_for_the_rest():
    found = identify(Reply(200, UPTIME), REFUSED, REFUSED, NOW)
    assert (found.is_aistore, found.targets, found.version) == (True, None, "")
    assert found.map_status == 401


def test_a_cluster_of_which_only_a_refusal_is_known():
    assert identify(NOTHING, REFUSED, NOTHING, NOW).is_aistore


@for_each(
    "reply",
    [
        Reply(200, {"content-type": "text/html"}, b"<html>welcome</html>"),
        Reply(200, {"content-type": "application/json"}, b"{}"),
        Reply(200, {}, b'{"pmap": 1}'),
        Reply(200, {}, b'{"pmap": \xff}'),
        Reply(404, {"server": "nginx"}, b'{"message": "Not Found"}'),
        Reply(403, {"content-type": "application/xml"}, b"<Error/>"),
        Reply(302, {}),
    ],
)
def test_something_else(reply: Reply):
    found = identify(reply, reply, reply, NOW)
    assert found.is_aistore is False
    assert found.version == ""
    assert f"HTTP {reply.status}" in found.seen


@for_each("status", [401, 407, 500, 503])
def test_what_cannot_be_told(status: int):
    assert identify(Reply(status, {}), Reply(status, {}), Reply(status, {}), NOW).is_aistore is None


@for_each(
    "date, ahead",
    [
        ("Tue, 14 Nov 2023 22:13:20 GMT", 0.0),
        ("Tue, 14 Nov 2023 22:13:19 GMT", 0.0),
        ("Tue, 14 Nov 2023 23:13:20 GMT", 3599.5),
        ("Tue, 14 Nov 2023 21:13:20 GMT", -3600.0),
        ("yesterday", None),
    ],
)
def test_the_clock(date: str, ahead: float | None):
    found = identify(Reply(200, {**UPTIME, "date": date}), MAP, NOTHING, NOW)
    assert found.clock_ahead == ahead
