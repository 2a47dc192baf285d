import contextlib
import shutil
import socket
import ssl
import subprocess
import threading
import time
import warnings

import pytest
import trio

from aisfs.errors import AccessDenied, ConfigError
from aisfs.model import Bucket
from aisfs.settings import ClusterSettings
from aisfs.stores.ais.client import AISClient
from aisfs.stores.port import BytesContent, Upload
from tests.stores.ais.scripted_server import PROPS, MiniCluster, reply, scripted_server

B = Bucket("b")
DATA = bytes(range(256)) * 4096

pytestmark = pytest.mark.skipif(not shutil.which("openssl"), reason="openssl is not installed")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    key, crt = folder / "key.pem", folder / "crt.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", "/CN=aisfs test"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", crt]
    subprocess.run(command, check=True, capture_output=True)
    return key, crt


@contextlib.asynccontextmanager
async def connected(certificate, cluster, **options):
    key, crt = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(crt, key)
    with scripted_server(cluster, context) as server:
        client = AISClient(ClusterSettings(endpoint=server.endpoint, **options))
        try:
            yield client, server
        finally:
            await client.aclose()


async def test_named_authority(certificate):
    cluster = MiniCluster({"k": DATA}, "https")
    async with connected(certificate, cluster, client_ca=certificate[1]) as (client, _):
        info = await client.head(B, "k")
        buffer = bytearray(len(DATA))
        await client.read_range(B, info, 0, memoryview(buffer))
        assert buffer == DATA


async def test_unknown_authority_is_a_matter_of_settings(certificate):
    async with connected(certificate, MiniCluster({}, "https")) as (client, _):
        with pytest.raises(ConfigError, match="AIS_CLIENT_CA"):
            await client.head(B, "k")


async def test_the_certificate_of_another_host_is_told(certificate):
    cluster = MiniCluster({}, "https")
    async with connected(certificate, cluster) as (_, server):
        endpoint = server.endpoint.replace("127.0.0.1", "localhost")
        client = AISClient(ClusterSettings(endpoint=endpoint, client_ca=certificate[1]))
        # The two ways to connect.
        with pytest.raises(ConfigError, match=r"is for 127\.0\.0\.1, not localhost"):
            await client.head(B, "k")
        with pytest.raises(ConfigError, match=r"is for 127\.0\.0\.1, not localhost"):
            await client.upload(Upload(B, "k", BytesContent(b"x")))
        await client.aclose()


async def test_no_tls_where_it_was_asked_for_is_told():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse():
            with listener.accept()[0] as connection:
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=refuse)
        thread.start()
        endpoint = f"https://127.0.0.1:{listener.getsockname()[1]}"
        client = AISClient(ClusterSettings(endpoint=endpoint))
        with pytest.raises(ConfigError, match="does not speak TLS: use http://"):
            await client.head(B, "k")
        await client.aclose()
        thread.join()


def test_a_client_certificate_needs_its_key(certificate, tmp_path):
    key, crt = certificate
    with pytest.raises(ConfigError, match="name the key in AIS_CRT_KEY"):
        AISClient(ClusterSettings(endpoint="https://h", client_cert=crt))
    other = tmp_path / "other.pem"
    other.write_bytes(crt.read_bytes())
    with pytest.raises(ConfigError, match="no certificate and its key"):
        AISClient(ClusterSettings(endpoint="https://h", client_cert=crt, client_key=other))
    both = tmp_path / "both.pem"
    both.write_bytes(crt.read_bytes() + key.read_bytes())
    AISClient(ClusterSettings(endpoint="https://h", client_cert=both))
    AISClient(ClusterSettings(endpoint="https://h", client_cert=crt, client_key=key))


async def test_unverified_without_a_word(certificate):
    cluster = MiniCluster({"k": DATA}, "https")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with connected(certificate, cluster, skip_verify_crt=True) as (client, _):
            assert (await client.head(B, "k")).size == len(DATA)


async def test_token_of_an_upload_is_gone_after_a_plain_hop(certificate):
    """From https by way of http back to https: whoever saw the hop could have named the target."""

    def refuses(seen, connection):
        connection.sendall(reply(403))

    def to(endpoint, marks=""):
        def handler(seen, connection):
            if seen.path == "/v1/buckets/b":
                connection.sendall(reply(200, {"Ais-Bucket-Props": PROPS}))
            else:
                connection.sendall(reply(307, {"Location": endpoint + seen.target + marks}))

        return handler

    key, crt = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(crt, key)
    with (
        scripted_server(refuses, context) as target,
        scripted_server(to(target.endpoint, "&pid=p&utm=x")) as plain,
    ):
        options = {"client_ca": crt, "token": "t"}
        async with connected(certificate, to(plain.endpoint), **options) as (client, proxy):
            with pytest.raises(AccessDenied):
                await client.upload(Upload(B, "k", BytesContent(b"12345")))
        assert proxy.seen[0].headers["authorization"] == "Bearer t"
        assert "authorization" not in plain.seen[0].headers
        assert "authorization" not in target.seen[0].headers


async def test_cancelled_call_ends_at_once(certificate):
    cluster = MiniCluster({"k": DATA}, "https")
    options = {"client_ca": certificate[1], "read_timeout": 0}
    async with connected(certificate, cluster, **options) as (client, server):
        info = await client.head(B, "k")

        def before(seen, connection):
            if "range" not in seen.headers or "pid" not in seen.query:
                return None
            connection.sendall(cluster.answer(seen)[:20_000])
            return server.stall(connection)

        cluster.before = before
        started = time.monotonic()
        with trio.move_on_after(0.3) as scope:
            await client.read_range(B, info, 0, memoryview(bytearray(100_000)))
        assert scope.cancelled_caught
        assert time.monotonic() - started < 1.3
        cluster.before = None
        await client.read_range(B, info, 0, memoryview(bytearray(10)))


async def test_cancelled_during_the_handshake():
    # The system accepts the connection, and nobody ever answers.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"https://127.0.0.1:{listener.getsockname()[1]}"
        settings = ClusterSettings(endpoint=endpoint, connect_timeout=0, read_timeout=0)
        client = AISClient(settings)
        started = time.monotonic()
        with trio.move_on_after(0.3) as scope:
            await client.list_buckets()
        assert scope.cancelled_caught
        assert time.monotonic() - started < 1.3
        await client.aclose()
