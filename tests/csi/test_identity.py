"""Volumes that AIStore and clouds know by the service account of their pod."""

import json
import os
import re
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs

import grpc
import pytest

from aisfs.csi.permitted import Permitted
from aisfs.csi.volumes import parse_volume
from aisfs.errors import ConfigError
from tests.csi.conftest import MODES, Kubelet, running_kubelet
from tests.csi.test_driver import refusal
from tests.support.for_each import for_each
from tests.support.issuer import LIST, READ, WRITE, Issuer, token_endpoint
from tests.support.mounts import eventually
from tests.support.web_servers import make_certificate

pytestmark = pytest.mark.mount
ALL = [{"id": "", "perm": str(READ | WRITE | LIST)}]
AUDIENCE = ("--token-audience", "aistore")
LIFE, AGE = 15, 6
"""Seconds for which tokens are valid, and after which Kubernetes makes a new one: as it does, long before the end."""


@contextmanager
def cluster_of_pods(
    tmp_path: Path, *driver: str, **mounter: str
) -> Iterator[tuple[Kubelet, Issuer]]:
    """A node whose AIStore takes tokens of an issuer; none of them may be seen in any log, argument, variable or file."""
    issuer = Issuer(tmp_path / "jwks.json")
    with running_kubelet(jwks=issuer.jwks, audience="aistore") as kubelet:
        for name in ("driver", "mounter"):
            kubelet.end(name)
        kubelet.start("mounter", "--log-level", "debug", **mounter)
        kubelet.start("driver", "--log-level", "debug", *driver)
        yield kubelet, issuer
        seen = [kubelet.log(), kubelet.server.log()]
        pids = (*kubelet.daemons(), *(each.pid for each in kubelet.processes.values()))
        places = [Path(f"/proc/{pid}/{name}") for pid in pids for name in ("cmdline", "environ")]
        places += [path for path in kubelet.place.rglob("*") if "pods" not in path.parts]
        for path in places:
            with suppress(OSError):  # a directory, or gone by now
                seen.append(path.read_text(errors="replace"))
        for token in issuer.issued:
            assert token.split(".")[2][:40] not in "".join(seen)


def test_a_volume_goes_on_while_tokens_of_its_pod_end(tmp_path: Path):
    with cluster_of_pods(tmp_path, *AUDIENCE) as (kubelet, issuer):
        target = kubelet.place / "pods" / "v"
        begun, made, rounds = time.monotonic(), -float(AGE), 0

        def publish() -> None:
            """Publish it, as kubelet does again and again, with the newest token."""
            nonlocal made
            if time.monotonic() - begun >= made + AGE:
                made = time.monotonic() - begun
                issuer.token(LIFE, clusters=ALL)
            token = issuer.issued[-1]
            kubelet.publish(
                target, tokens={"aistore": token, "other": "x.y.z"}, writable="true",
                mode=MODES.SINGLE_NODE_WRITER, attr_ttl=0, list_ttl=0,
            )  # fmt: skip

        publish()
        daemon = kubelet.daemon()
        with open(target / "long.txt", "w") as opened:
            while time.monotonic() < begun + 2 * LIFE:  # two that it has used have ended
                publish()
                (target / f"{rounds}.txt").write_text(str(rounds))
                assert (target / f"{rounds}.txt").read_text() == str(rounds)
                assert "a.txt" in os.listdir(target)
                opened.write("x")
                opened.flush()
                rounds += 1
                time.sleep(1)
        assert kubelet.daemon() == daemon
        stored = kubelet.place / "store" / "b"
        assert (stored / "long.txt").read_text() == "x" * rounds
        assert all((stored / f"{n}.txt").read_text() == str(n) for n in range(rounds))
        with pytest.raises(PermissionError):  # nobody brings a new one
            _until_refused(target, time.monotonic() + LIFE)
        kubelet.unpublish(target)


def _until_refused(target: Path, end: float) -> None:
    while time.monotonic() < end + 20:
        os.listdir(target)
        time.sleep(1)


def test_pods_have_the_rights_of_their_own_tokens(tmp_path: Path):
    with cluster_of_pods(tmp_path, *AUDIENCE) as (kubelet, issuer):
        (kubelet.place / "store" / "other").mkdir()
        target = kubelet.place / "pods" / "v"
        only_read = [{"bck": {"name": "b"}, "perm": str(READ | LIST)}]
        mine = {"aistore": issuer.token(buckets=only_read)}
        kubelet.publish(target, tokens=mine, writable="true", mode=MODES.SINGLE_NODE_WRITER)
        assert (target / "a.txt").read_bytes() == b"a"
        with pytest.raises(PermissionError):
            (target / "new.txt").write_text("new")
        kubelet.unpublish(target)
        code, said = refusal(kubelet.publish, target, "ais://other", tokens=mine)
        assert (code, "do not permit" in said) == (grpc.StatusCode.PERMISSION_DENIED, True)
        assert "token of the pod's service account" in said
        # A secret of the volume counts more.
        kubelet.publish(
            target, tokens={"aistore": "x.y.z"}, secrets={"token": issuer.token(clusters=ALL)}
        )
        kubelet.unpublish(target)
        code, said = refusal(kubelet.publish, target, tokens={"another": "x.y.z"})
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "no token of the pod for the audience aistore: name it in the tokenRequests" in said


@pytest.mark.parametrize(
    ("head", "claims"),
    [
        ({"alg": "none", "kid": "1"}, {}),
        ({"alg": "RS256", "kid": "other"}, {}),
        ({"alg": "RS256", "kid": "1"}, {"aud": "another"}),
        ({"alg": "RS256", "kid": "1"}, {"sub": ""}),
        ({"alg": "RS256", "kid": "1"}, {"exp": None}),
        ({"alg": "RS256", "kid": "1"}, {"exp": 1}),
    ],
)
def test_the_embedded_server_takes_no_other_token(
    tmp_path: Path, head: dict[str, object], claims: dict[str, object]
):
    from aisfs.server.failures import Failure
    from tests.support.token_checks import Issuer as Checks

    issuer = Issuer(tmp_path / "jwks.json")
    checks = Checks(issuer.jwks, audience="aistore")
    good = {"sub": "s", "exp": time.time() + 600, "aud": "aistore", "clusters": ALL}
    usual = {"alg": "RS256", "kid": "1"}
    checks.check(issuer.sign(usual, good), "uuid", "b", "objects", "PUT")
    with pytest.raises(Failure) as caught:
        checks.check(issuer.sign(head, good | claims), "uuid", "b", "objects", "GET")
    assert caught.value.status == 401
    other = Issuer(tmp_path / "other.json")
    for token in ("", "x.y.z", "é.y.z", "a", other.sign(usual, good)):
        with pytest.raises(Failure) as caught:
            checks.check(token, "uuid", "b", "objects", "GET")
        assert caught.value.status == 401
    for right, root, method in (
        ("b", "buckets", "DELETE"),
        ("", "buckets", "GET"),
        ("", "daemon", "GET"),
    ):
        with pytest.raises(Failure) as caught:
            checks.check(issuer.sign(usual, good), "uuid", right, root, method)
        assert caught.value.status == 403


def test_tokens_are_exchanged_where_the_operator_says(tmp_path: Path):
    issuer = Issuer(tmp_path / "idp.json")
    with token_endpoint(issuer, refuses="refused.by.it", seconds=LIFE, clusters=ALL) as endpoint:
        url = f"{endpoint.url}?client_id=aisfs&client_secret=a-client-secret&audience=aistore"
        with running_kubelet(jwks=issuer.jwks, audience="aistore") as kubelet:
            for name in ("driver", "mounter"):
                kubelet.end(name)
            kubelet.start("mounter", AISFS_TOKEN_EXCHANGE=url)
            kubelet.start("driver", *AUDIENCE)
            target = kubelet.place / "pods" / "v"
            of_pod = "eyJhbGciOiJSUzI1NiJ9.of.kubernetes"
            kubelet.publish(target, tokens={"aistore": of_pod}, attr_ttl=0, list_ttl=0)
            assert (target / "a.txt").read_bytes() == b"a"
            assert endpoint.asked[-1] == {
                "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
                "subject_token": of_pod,
                "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
                "client_id": "aisfs",
                "client_secret": "a-client-secret",
                "audience": "aistore",
            }
            # A refusal leaves the volume what it has.
            kubelet.publish(target, tokens={"aistore": "refused.by.it"})
            assert "is refused" in kubelet.log()
            begun = time.monotonic()
            while time.monotonic() < begun + LIFE + 2:
                kubelet.publish(target, tokens={"aistore": of_pod})
                assert "a.txt" in os.listdir(target)
                time.sleep(1)
            kubelet.unpublish(target)
            code, said = refusal(kubelet.publish, target, tokens={"aistore": "refused.by.it"})
            assert code is grpc.StatusCode.PERMISSION_DENIED
            assert "token exchange at http://127.0.0.1" in said
            seen = kubelet.log() + said
            assert not any(token in seen for token in (of_pod, "a-client-secret", *issuer.issued))


REFUSED = "eyJhbGciOiJSUzI1NiJ9.refused.signature"
WHEN = "2025-07-01T10:00:00.000Z"


class Cloud(BaseHTTPRequestHandler):
    """A cloud with one bucket and one file, which knows pods by their tokens."""

    shown: list[str]
    """The tokens of pods that its login service got."""
    came: list[str]
    """The authorizations of requests."""

    def answer(self, text: str, kind: str = "application/xml") -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def show(self, token: str) -> bool:
        """Take the token of a pod; answer that it is refused, if it is."""
        self.shown.append(token)
        if token == REFUSED:
            self.send_response(403)
            self.send_header("Content-Length", "0")
            self.end_headers()
        return token != REFUSED

    def form(self) -> dict[str, str]:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        query = parse_qs(f"{self.path.partition('?')[2]}&{body}")
        return {name: values[0] for name, values in query.items()}

    def log_message(self, *_: object) -> None:
        pass


class Azure(Cloud):
    def do_POST(self) -> None:
        form = self.form()
        assert (self.path, form["client_id"]) == ("/tenant-1/oauth2/v2.0/token", "client-1")
        if not self.show(form["client_assertion"]):
            return
        said = {"access_token": f"azure-{len(self.shown)}", "expires_in": 1, "token_type": "Bearer"}
        self.answer(json.dumps(said), "application/json")

    def do_GET(self) -> None:
        self.came.append(self.headers["Authorization"])
        self.answer(
            "<EnumerationResults><Blobs><Blob><Name>a.txt</Name><Properties><Last-Modified>Tue, 01 Jul 2025 10:00:00"
            " GMT</Last-Modified><Etag>0x1</Etag><Content-Length>1</Content-Length><Content-Type>text/plain"
            "</Content-Type></Properties></Blob></Blobs><NextMarker/></EnumerationResults>"
        )


class Amazon(Cloud):
    def do_POST(self) -> None:
        form = self.form()
        assert (form["Action"], form["RoleArn"]) == ("AssumeRoleWithWebIdentity", ROLE)
        if not self.show(form["WebIdentityToken"]):
            return
        end = (datetime.now(UTC) + timedelta(seconds=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        result = "AssumeRoleWithWebIdentityResult"
        self.answer(
            f"<AssumeRoleWithWebIdentityResponse><{result}><Credentials><AccessKeyId>ROLE</AccessKeyId>"
            f"<SecretAccessKey>S</SecretAccessKey><SessionToken>T</SessionToken><Expiration>{end}</Expiration>"
            f"</Credentials></{result}></AssumeRoleWithWebIdentityResponse>"
        )

    def do_GET(self) -> None:
        self.came.append(self.headers["Authorization"])
        self.answer(
            "<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>a.txt</Key><LastModified>"
            f"{WHEN}</LastModified><ETag>1</ETag><Size>1</Size></Contents></ListBucketResult>"
        )


class PodIdentity(Amazon):
    """Amazon with the agent of EKS Pod Identity, which takes the bare token and speaks plain HTTP."""

    def do_GET(self) -> None:
        if self.path != "/v1/credentials":
            super().do_GET()
            return
        if not self.show(self.headers["Authorization"]):
            return
        end = (datetime.now(UTC) + timedelta(seconds=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        said = {"AccessKeyId": "ROLE", "SecretAccessKey": "S", "Token": "T", "Expiration": end}
        self.answer(json.dumps(said), "application/json")


class Google(Cloud):
    """Its services that exchange tokens and act as service accounts, and its storage."""

    def do_POST(self) -> None:
        if self.path == "/v1/token":
            form = self.form()
            if not self.show(form.pop("subject_token")):
                return
            assert form == {
                "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
                "audience": f"//iam.googleapis.com/{PROVIDER}",
                "scope": "https://www.googleapis.com/auth/cloud-platform",
                "requested_token_type": "urn:ietf:params:oauth:token-type:access_token",
                "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            }
            said = {"access_token": f"federated-{len(self.shown)}", "expires_in": 1}
            kind = "urn:ietf:params:oauth:token-type:access_token"
            self.answer(json.dumps({**said, "issued_token_type": kind, "token_type": "Bearer"}))
            return
        assert self.path == f"/v1/projects/-/serviceAccounts/{ACCOUNT}:generateAccessToken"
        assert self.headers["Authorization"] == f"Bearer federated-{len(self.shown)}"
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert asked["scope"] == ["https://www.googleapis.com/auth/cloud-platform"]
        end = (datetime.now(UTC) + timedelta(seconds=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.answer(json.dumps({"accessToken": f"account-{len(self.shown)}", "expireTime": end}))

    do_GET = Amazon.do_GET  # Google's storage speaks this XML, too


@contextmanager
def running_cloud(kind: type[Cloud], certificate: tuple[Path, Path]) -> Iterator[str]:
    """Run a cloud, with TLS where libraries demand it for what is secret; yield its URL."""
    kind.shown, kind.came = [], []
    scheme = "http"
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        if kind is not PodIdentity:
            scheme = "https"
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"{scheme}://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


ROLE = "arn:aws:iam::123456789012:role/pets"
PROVIDER = "projects/123/locations/global/workloadIdentityPools/pool/providers/kubernetes"
ACCOUNT = "pets@project.iam.gserviceaccount.com"
_OF_GOOGLE = (
    {"GOOGLE_BASE_URL": "", **dict.fromkeys((f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{name}" for name in ("STS", "IAMCREDENTIALS")), "/")},
    {"GOOGLE_SERVICE_ACCOUNT_KEY": "of-the-node", "STORAGE_EMULATOR_HOST": "http://127.0.0.1:1"},
)  # fmt: skip
CLOUDS = {
    "azure": (
        Azure, "az+direct://account/container", "api://AzureADTokenExchange", r"Bearer azure-\d+",
        {"azure-client-id": "client-1", "azure-tenant-id": "tenant-1"},
        {"AZURE_AUTHORITY_HOST": "", "AZURE_STORAGE_ENDPOINT": ""},
        {
            "AZURE_STORAGE_MASTER_KEY": "bm9kZQ==", "AZURE_CLIENT_SECRET": "of-the-node",
            "AZURE_STORAGE_CLIENT_ID": "of-the-node",
        },
    ),
    "amazon": (
        Amazon, "s3+direct://pets", "sts.amazonaws.com", r"AWS4-HMAC-SHA256 Credential=ROLE/\d+/eu-west-1/s3/.*",
        {"aws-role-arn": ROLE, "region": "eu-west-1"},
        {"AWS_ENDPOINT_URL": "", "AWS_ENDPOINT_URL_STS": ""},
        {"AWS_ACCESS_KEY_ID": "NODE", "AWS_SECRET_ACCESS_KEY": "of-the-node", "AWS_PROFILE": "node"},
    ),
    "google": (
        Google, "gs+direct://pets", f"https://iam.googleapis.com/{PROVIDER}", r"Bearer federated-\d+",
        {"google-provider": PROVIDER}, *_OF_GOOGLE,
    ),
    "google's service account": (
        Google, "gs+direct://pets", f"https://iam.googleapis.com/{PROVIDER}", r"Bearer account-\d+",
        {"google-provider": PROVIDER, "google-service-account": ACCOUNT}, *_OF_GOOGLE,
    ),
    "pod identity": (
        PodIdentity, "s3+direct://pets", "pods.eks.amazonaws.com", r"AWS4-HMAC-SHA256 Credential=ROLE/.*",
        {"aws-pod-identity": "true", "region": "eu-west-1"},
        {"AWS_ENDPOINT_URL": "", "AWS_CONTAINER_CREDENTIALS_FULL_URI": "/v1/credentials"},
        {"AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/node", "AWS_WEB_IDENTITY_TOKEN_FILE": "/dev/null"},
    ),
}  # fmt: skip
"""Of each: its source, the audience, whose requests are, what a volume says, where the mounter finds the cloud, and as whom it
would itself."""


@pytest.mark.parametrize("name", CLOUDS)
def test_a_cloud_knows_the_pod_and_not_the_mounter(tmp_path: Path, name: str):
    cloud, source, audience, whose, who, urls, own = CLOUDS[name]
    crt, key = make_certificate(tmp_path)
    with running_cloud(cloud, (crt, key)) as url, running_kubelet() as kubelet:
        for process in ("driver", "mounter"):
            kubelet.end(process)
        urls = {variable: f"{url}{path}" for variable, path in urls.items()}
        kubelet.start("mounter", AIS_CLIENT_CA=str(crt), **urls, **own)
        kubelet.start("driver", "--allow-scheme", source.partition(":")[0])
        target = kubelet.place / "pods" / "v"
        tokens = [
            f"eyJhbGciOiJSUzI1NiJ9.{word}.signature" for word in ("first-and-longer", "second")
        ]
        who = {**who, "attr_ttl": 0, "list_ttl": 0}
        kubelet.publish(target, source, tokens={audience: tokens[0]}, **who)
        daemon = kubelet.daemon()
        assert os.listdir(target) == ["a.txt"]
        assert set(cloud.shown) == {tokens[0]}
        assert all(re.fullmatch(whose, each) for each in cloud.came)
        kubelet.publish(target, source, tokens={audience: tokens[1]}, **who)

        def asked_with_the_other() -> bool:
            assert os.listdir(target) == ["a.txt"]
            return cloud.shown[-1] == tokens[1]

        assert eventually(asked_with_the_other, 30)  # as soon as what the cloud gave has ended
        assert kubelet.daemon() == daemon
        kubelet.unpublish(target)
        code, said = refusal(kubelet.publish, target, source, **who)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert f"no token of the pod for the audience {audience}" in said
        code, said = refusal(kubelet.publish, target, source, tokens={audience: REFUSED}, **who)
        assert code is grpc.StatusCode.PERMISSION_DENIED, said
        assert "the cloud gives the service account of the pod no access" in said
        assert not any(token in kubelet.log() for token in (*tokens, REFUSED))


def test_a_token_service_that_is_away_is_no_refusal():
    with running_kubelet() as kubelet:
        for process in ("driver", "mounter"):
            kubelet.end(process)
        kubelet.start("mounter", CLOUDSDK_API_ENDPOINT_OVERRIDES_STS="http://127.0.0.1:1")
        kubelet.start("driver", "--allow-scheme", "gs+direct")
        tokens = {f"https://iam.googleapis.com/{PROVIDER}": "x.y.z"}
        who = {"google-provider": PROVIDER, "io-timeout": 2}
        target = kubelet.place / "pods" / "v"
        code, said = refusal(kubelet.publish, target, "gs+direct://pets", tokens=tokens, **who)
        assert code is grpc.StatusCode.UNAVAILABLE
        assert "token exchange at http://127.0.0.1:1/v1/token: " in said


AWS = {"sts.amazonaws.com": "x.y.z"}


def volume(tokens: dict[str, str] | str, secrets: dict[str, str] | None = None, **attributes: str):
    if not isinstance(tokens, str):
        tokens = json.dumps({audience: {"token": token} for audience, token in tokens.items()})
    given = {"source": "ais://b", "csi.storage.k8s.io/serviceAccount.tokens": tokens}
    permitted = Permitted(audience="aistore")
    named = {name.replace("_", "-"): value for name, value in attributes.items()}
    return parse_volume(given | named, secrets=secrets, read_only=True, permitted=permitted)


def test_what_a_volume_gets_of_the_tokens_of_its_pod():
    tokens = {"aistore": "a.b.c", **AWS}
    found = volume(tokens)
    assert found.secrets == {"pod_token": "a.b.c"}
    found = volume(tokens, {"token": "t"}, aws_role_arn=ROLE, region="eu-west-1")
    assert found.secrets == {"token": "t", "cloud_token": "x.y.z"}
    assert found.cloud.variables == {"AWS_ROLE_ARN": ROLE, "AWS_REGION": "eu-west-1"}
    found = volume({**tokens, "pods.eks.amazonaws.com": "p.o.d"}, aws_pod_identity="True")
    assert found.secrets["cloud_token"] == "p.o.d"
    agent = "http://169.254.170.23/v1/credentials"
    assert found.cloud.variables == {"AWS_CONTAINER_CREDENTIALS_FULL_URI": agent}
    # Kubernetes 1.35 hands them over as secrets, if the CSIDriver says so.
    text = json.dumps(
        {"aistore": {"token": "a.b.c", "expirationTimestamp": "2126-01-01T00:00:00Z"}}
    )
    found = volume("", {"csi.storage.k8s.io/serviceAccount.tokens": text})
    assert found.secrets == {"pod_token": "a.b.c"}


@for_each(
    "attributes, said",
    [
        ({"region": "eu.evil.example/"}, "region: "),
        ({"region": ""}, "region: "),
        ({"aws_role_arn": "role/pets"}, "aws-role-arn: "),
        ({"azure_client_id": "c"}, "belong together"),
        ({"azure_client_id": "c", "azure_tenant_id": "a/../b"}, "azure-tenant-id: "),
        ({"azure_client_id": "c", "azure_tenant_id": "t", "aws_role_arn": ROLE}, "one identity"),
        ({"aws_pod_identity": "http://evil.example/"}, "aws-pod-identity: "),
        ({"google_provider": "pool/providers/x"}, "google-provider: "),
        ({"google_service_account": ACCOUNT}, "needs google-provider"),
        (
            {"google_provider": PROVIDER, "google_service_account": "x/../y"},
            "google-service-account: ",
        ),
        (
            {"google_provider": PROVIDER},
            "for the audience https://iam.googleapis.com/projects/123/",
        ),
        ({"aws_pod_identity": "true", "aws_role_arn": ROLE}, "one identity"),
        ({"aws_pod_identity": "true"}, "for the audience pods.eks.amazonaws.com"),
        ({"aws_role_arn": ROLE}, "for the audience sts.amazonaws.com"),
    ],
)
def test_what_makes_no_identity(attributes: dict[str, str], said: str):
    with pytest.raises(ConfigError, match=said):
        volume({"aistore": "a.b.c"}, **attributes)


@pytest.mark.parametrize("rest", ["", ': {"x": ' + "[" * 9999])
def test_tokens_that_are_not_of_the_form_are_not_repeated(rest: str):
    with pytest.raises(ConfigError, match="not of the form") as caught:
        volume(f'{{"a-secret-one"{rest}')
    assert "a-secret-one" not in str(caught.value)
