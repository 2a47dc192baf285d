"""Finding out what answers at an endpoint."""

import time

from aisfs.ais.client_port import Session
from aisfs.ais.protocol.identity import CLUSTER_MAP, HEALTH, VERSION, Identity, identify
from aisfs.ais.protocol.requests import Request
from aisfs.errors import ProtocolError, Unavailable
from aisfs.http.connections import ConnectionSet
from aisfs.http.exchange import Reply, environment_proxy, other_scheme


async def check_answers(session: Session) -> None:
    """Check that the endpoint answers, with one request that needs no token and no target.

    Raises:
        Unavailable: nothing answers, or only an error of the server does.
        ConfigError: the TLS settings do not fit.
    """
    transport = session.transport

    def work(connections: ConnectionSet) -> Reply:
        return transport.ask(connections, HEALTH)

    reply = await session.run(transport.endpoint, work)
    if reply.status >= 500:
        raise Unavailable(f"{transport.endpoint}: HTTP {reply.status} to {HEALTH.path}")


async def identify_endpoint(session: Session) -> Identity:
    """Ask what answers at the endpoint; replies of any kind will do.

    Raises:
        Unavailable: nothing answers.
        ConfigError: the TLS settings do not fit.
    """
    transport = session.transport

    def ask(connections: ConnectionSet, request: Request) -> Reply:
        try:
            return transport.ask(connections, request)
        except ProtocolError:  # redirected to a login page, for example
            return Reply(302, {})

    def work(connections: ConnectionSet) -> Identity:
        before = time.time()
        health = ask(connections, HEALTH)
        clock = before, time.time()
        return identify(health, ask(connections, CLUSTER_MAP), ask(connections, VERSION), clock)

    return await session.run(transport.endpoint, work)


def wrong_scheme(url: str, *, is_aistore: bool = True) -> str | None:
    """Return what is wrong with the scheme of a URL whose host gave no answer; None if that is not why.

    Others than AIStore may be behind a proxy of the environment, which is all that can be asked then.
    """
    if not is_aistore and environment_proxy(url) is not None:
        return None
    return other_scheme(url)
