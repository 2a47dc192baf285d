"""Clients of obstore for the buckets of one cloud, set up from the environment as its own tools are.

obstore's errors, as `aisfs.errors`.

obstore has few kinds of them; the status and the code that the cloud gave stand in the text only. What
a user sees is made of these, and never has the query of a URL, where a signature may be.

obstore's futures, awaited by trio.

obstore asks asyncio for the running loop: for its futures, and for a way to complete them from a
thread of its own. That is all there is to this loop; trio runs everything. So a call costs no thread
of ours, and cancelling it ends the request at once, which a blocking call would not.

Objects as obstore describes them.

A version is the ETag: all three clouds give it in listings, too, and all take it in `If-Match`. It has no
quotes, since Azure's listings leave them out.

Must not know: what they are used for, trio.
"""

import asyncio
import importlib.util
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import trio
from msgspec import structs
from obstore import exceptions as obs
from obstore.store import AzureStore, GCSStore, S3Store

from aisfs.errors import (
    AccessDenied,
    AisfsError,
    AlreadyExists,
    Archived,
    BucketNotFound,
    ConfigError,
    InvalidName,
    IsADirectory,
    NotFound,
    OutOfSpace,
    ProtocolError,
    Stale,
    Unavailable,
    Unsupported,
)
from aisfs.http.exchange import PROXY_PASSWORD, check_authorities, through_proxy
from aisfs.http.token_exchange import exchange, impersonate
from aisfs.model import Bucket, ObjectInfo, Provider
from aisfs.redaction import remember, remember_url, shown
from aisfs.settings import ClusterSettings, clouds
from aisfs.system.forks import bind

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<\n]*)")
_QUERY = re.compile(r"(https?://[^\s?)]+)\?[^\s)]*")
_URL = re.compile(r"https?://\S+")
_METADATA = "//169.254."
"""Where machines in a cloud ask for credentials."""
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(\w+)")
"""Stands nowhere else than in `_DEBUG`."""
_NO_TLS = "InvalidContentType"
"""Stands there, and not in a URL, if a server that is spoken to with TLS answers without."""
_WANTS_TLS = re.compile(r"plain HTTP|HTTP request to an HTTPS server")
"""What nginx, Apache and Go answer to a request without TLS."""
_CONNECTING = "kind: Connect,"
"""Stands there if no connection was made."""
_WANTS_PASSWORD = "ProxyAuthRequired"
_CAUSE = re.compile(r'(?:message|error): "([^"\\]+)"')
"""Why, as the system says it."""
_HOST = re.compile(r"(https?://)(?:[^\s/?@]*@)?([^\s/?]+)")
"""Without the name and password that an endpoint may have."""
_DEBUG = "\n\nDebug source"
"""What follows repeats it all, with more of the request."""
_SHOWN = 300
"""Characters of a text that has no code: the reason is at its beginning."""
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "no bucket named", "ContainerBeingDeleted")
_CREDENTIALS = ("credential", "token request", "metadata", "Received None from session")
"""Words of errors that asking for credentials gave, and not the cloud."""
_OURS = {kind.__name__: kind for kind in (AccessDenied, ConfigError, ProtocolError, Unavailable)}
_OF_OURS = re.compile(rf"credential provider:\s+({'|'.join(_OURS)}): (.+)")
"""What asking for credentials in this process gave."""
_REGION = ("PermanentRedirect", "AuthorizationHeaderMalformed", "redirect without LOCATION")
_ARCHIVED = ("InvalidObjectState", "BlobArchived", "BlobBeingRehydrated")
_PASSING = (408, 425, 429, 500, 502, 503, 504)
_CONFLICTS = ("OperationAborted", "ConditionalRequestConflict", "PendingCopyOperation")
"""Of two writers at once, one of which is to try again."""
_REDIRECTS = (307, 308)
"""Of a request with a body, which obstore does not send twice."""
_OF_AISTORE: dict[str, type[AisfsError]] = {
    "ErrLmetaNotFound": NotFound,
    "ErrNotFound": NotFound,
    "ErrMv": IsADirectory,
}
"""Codes of AIStore's `/s3` that mean something else than their status: 400, or 500 where it keeps a
directory of that name."""

_NO_UPLOAD = "NoSuchUpload"
"""Of an upload in parts that is over: it was completed, and the answer was lost. So it is sent anew."""

PANIC = "obstore, which aisfs asks clouds with, failed in itself: check the variables of the cloud"
_NO_ANSWER = "Unable to extract metadata from headers"
"""Of an answer without what each answer of a cloud has, such as an ETag: something else gave it."""


@contextmanager
def cloud_errors(subject: str) -> Iterator[None]:
    """Turn obstore's errors into ours. Nothing of ours is called in the block."""
    try:
        yield
    except AisfsError:
        raise
    except (obs.BaseError, OSError, ValueError, NotImplementedError) as error:
        raise error_of(subject, error) from None  # its text may have a signature
    except BaseException as error:
        if not is_panic(error):
            raise
        raise ProtocolError(f"{subject}: {PANIC}") from None


def is_panic(error: BaseException) -> bool:
    """Return whether obstore met a bug of its own; these classes of pyo3 cannot be imported."""
    return type(error).__name__ in ("PanicException", "RustPanic")


def error_of(subject: str, error: Exception) -> AisfsError:
    """Return an error of obstore as one of ours."""
    text, _, debug = str(error).partition(_DEBUG)
    if found := _OF_OURS.search(text):
        return _OURS[found[1]](f"{subject}: {found[2]}")
    status = int(found[1]) if (found := _STATUS.search(text)) else 0
    code = found[1] if (found := _CODE.search(text)) else ""
    # The URL has the key, which may have any of the words that tell errors apart.
    words, debug = _URL.sub("", text), _URL.sub("", debug)
    if not status and (found := _CERTIFICATE.search(debug)):
        why = f"the certificate is not trusted ({found[1]}): name its CA in AIS_CLIENT_CA"
        return ConfigError(f"{subject}: {why}")
    if not status and _NO_TLS in debug:
        return ConfigError(f"{subject}: the server does not speak TLS: use http:// in the endpoint")
    if status == 400 and _WANTS_TLS.search(words):
        return ConfigError(f"{subject}: the server speaks TLS: use https:// in the endpoint")
    if code in _ARCHIVED:
        return Archived(
            f"{subject}: archived in the cloud: restore it first (HTTP {status} {code})"
        )
    kind = AccessDenied if _METADATA in text else _kind(error, words, status, code)
    if status == 407 or (kind is Unavailable and _CONNECTING in debug):
        found_url = _HOST.search(text)
        place = "".join(found_url.groups()) if found_url else ""
        cause = _CAUSE.search(debug)
        through = through_proxy(place) if place else ""
        if status == 407 or _WANTS_PASSWORD in debug:
            proxy = through.removeprefix(" through ") or "the proxy"
            return AccessDenied(f"{subject}: {proxy} {PROXY_PASSWORD}")
        if cause or through:
            why = shown(cause[1]) if cause else "it makes no tunnel"
            return Unavailable(
                f"{subject}: no connection to {place or 'the cloud'}{through}: {why}"
            )
    if kind is Archived:
        return Archived(
            f"{subject}: archived in the cloud: restore it first (HTTP {status} {code})"
        )
    return kind(f"{subject}: {_reason(text, words, status, code)}")


def error_of_status(subject: str, status: int, code: str) -> AisfsError:
    """Return an error that boto3 has told of."""
    if code in _NO_BUCKET:
        return BucketNotFound(f"{subject}: {code}")
    return _kind_of_status(code, status, code)(f"{subject}: HTTP {status} {code}")


def _kind(error: Exception, text: str, status: int, code: str) -> type[AisfsError]:
    if code == _NO_UPLOAD or code in _CONFLICTS or _NO_ANSWER in text:
        return Unavailable
    if any(word in text for word in _NO_BUCKET):
        return BucketNotFound
    if isinstance(error, obs.PreconditionError):
        return Stale
    if isinstance(error, obs.AlreadyExistsError):
        return AlreadyExists
    if isinstance(error, obs.PermissionDeniedError | obs.UnauthenticatedError):
        return AccessDenied
    if isinstance(error, obs.InvalidPathError):
        return ProtocolError
    if isinstance(error, obs.NotSupportedError | NotImplementedError):
        return Unsupported
    if isinstance(error, FileNotFoundError | obs.NotFoundError):
        return NotFound
    if isinstance(error, ValueError):
        return InvalidName if "path" in text else ProtocolError
    return _kind_of_status(text, status, code)


def _kind_of_status(text: str, status: int, code: str) -> type[AisfsError]:
    if any(word in text for word in _CREDENTIALS):
        return AccessDenied
    if any(word in text for word in _REGION):
        return Unsupported
    if code in _OF_AISTORE:
        return _OF_AISTORE[code]
    if status in _REDIRECTS:
        return Unsupported
    if not status or status in _PASSING or code in _CONFLICTS:
        return Unavailable
    kinds: dict[int, type[AisfsError]] = {
        401: AccessDenied,
        403: AccessDenied,
        404: NotFound,
        412: Stale,
        416: Stale,  # the object is shorter than it was
        501: Unsupported,
        507: OutOfSpace,
    }
    return kinds.get(status, Unavailable if status > 500 else ProtocolError)


def _reason(text: str, words: str, status: int, code: str) -> str:
    if any(word in words for word in _REGION):
        return "the bucket is in another region: set AWS_REGION"
    if status and _METADATA in text:
        return (
            "no credentials are set, and this machine gives none; --anonymous reads public buckets"
        )
    if status in _REDIRECTS:
        return (
            f"HTTP {status}: uploads are redirected, as by /s3 of AIStore: mount that by "
            "--endpoint and ais://BUCKET instead"
        )
    if status:
        message = found[1].strip() if (found := _MESSAGE.search(text)) else ""
        return f"HTTP {status} {code}{': ' if code and message else ''}{message}".strip()
    line = " ".join(_HOST.sub(r"\1\2", _QUERY.sub(r"\1", text)).split())
    return line[:_SHOWN]


Client = S3Store | GCSStore | AzureStore

_RETRIES_OF_PARTS = 3
"""Of one part of an upload, without which all of it would be sent again; `aisfs.stores.pipeline` retries
whole calls, so no other request is repeated here."""
_GENERIC = re.compile(r"^Generic \w+ error: ")
_OF_CREDENTIALS = re.compile(r"credential|key|token|SAS", re.I)
"""What obstore begins texts with that it has no kind of error for."""
_GOOGLE_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
"""What a token may be for; what its owner may do, the bucket says."""
_ONE_SEND = timedelta(hours=1)
"""Longest request; the caller's deadline is shorter, but an upload's moves on with what was sent."""


@dataclass(frozen=True, slots=True)
class Clients:
    """Two ways to one bucket."""

    reads: Client
    writes: Client
    """Repeats parts that failed, and waits as long as a request sends anything."""


def make_clients(bucket: Bucket, settings: ClusterSettings) -> Clients:
    """Return the clients of a bucket; nothing is sent.

    Raises:
        ConfigError: the environment makes no sense.
        AccessDenied: there are no credentials, as far as that can be told now.
    """
    make = {Provider.S3: _s3, Provider.GS: _gcs, Provider.AZ: _azure}[bucket.provider]
    try:
        build, endpoint = make(bucket, settings)
        pays = settings.requester_pays and bucket.provider is Provider.GS
        options = _options(endpoint, settings, clouds.google_project() if pays else "")
        writing = {"client_options": options, "retry_config": {"max_retries": _RETRIES_OF_PARTS}}
        # A listing goes on for longer than the deadline of a call: silence has to end it in any case.
        silence = settings.read_timeout or settings.io_timeout
        options = {**options, "read_timeout": timedelta(seconds=silence)}
        reading = {"client_options": options, "retry_config": {"max_retries": 0}}
        return Clients(build(**reading), build(**writing))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{bucket}: {error}") from error
    except Exception as error:
        if type(error).__module__.startswith("obstore"):
            text = _GENERIC.sub("", str(error).partition("\n\nDebug")[0])
            found = clouds.credentials_of(bucket.store)
            whose = f" (credentials: {found})" if found and _OF_CREDENTIALS.search(text) else ""
            raise ConfigError(f"{bucket}: {text}{whose}") from None
        raise
    except BaseException as error:
        if not is_panic(error):
            raise
        raise ConfigError(f"{bucket}: {PANIC}") from None


def _options(endpoint: str, settings: ClusterSettings, project: str) -> dict[str, Any]:
    options: dict[str, Any] = {
        "timeout": _ONE_SEND,
        "user_agent": "aisfs",
        "allow_http": endpoint.lower().startswith("http://"),
    }
    if settings.skip_verify_crt:
        options["allow_invalid_certificates"] = True
    elif settings.client_ca:
        check_authorities(settings.client_ca)
        try:
            options["root_certificate"] = settings.client_ca.read_bytes()
        except OSError as error:
            raise ConfigError(f"AIS_CLIENT_CA {settings.client_ca}: {error.strerror}") from error
    if project:
        options["default_headers"] = {"x-goog-user-project": project}
    if settings.connect_timeout:
        options["connect_timeout"] = timedelta(seconds=settings.connect_timeout)
    return options


_Build = Callable[..., Client]
"""Makes a client of the options that are the same for all clouds."""


def _s3(bucket: Bucket, settings: ClusterSettings) -> tuple[_Build, str]:
    config: Any = {"disable_bulk_delete": True}  # not every S3 has it
    if settings.requester_pays:
        config["request_payer"] = True
    provider, endpoint = None, clouds.endpoint_of("s3")
    if settings.anonymous:
        config["skip_signature"] = True
    elif clouds.has_aws_profile():
        session, provider = _aws_session(bucket)
        if not endpoint and (endpoint := session.get("endpoint_url", "")):
            remember_url(endpoint)
            clouds.checked_url("endpoint_url of the profile of AWS", endpoint)
    if endpoint:
        config["endpoint"] = endpoint

    def build(**more: Any) -> Client:  # noqa: ANN401
        return S3Store(bucket.name, config=config, credential_provider=provider, **more)

    return build, endpoint


def _aws_session(bucket: Bucket) -> tuple[dict[str, Any], Any]:
    """Return AWS's configuration of the profile, and what gives its credentials."""
    if importlib.util.find_spec("boto3") is None:
        raise ConfigError(
            f"{bucket}: AWS's profiles need boto3; in a clone of aisfs: pip install '.[cloud]'"
        )
    import boto3
    import botocore.exceptions
    from obstore.auth.boto3 import Boto3CredentialProvider

    class Remembering(Boto3CredentialProvider):
        """Has each key that it gives, those of roles change, struck out of whatever is shown."""

        def __call__(self) -> Any:  # noqa: ANN401
            credential = super().__call__()
            for secret in (credential["secret_access_key"], credential["token"]):
                remember(secret or "")
            return credential

    try:
        session = boto3.Session(region_name=clouds.aws_region() or None)
        provider = Remembering(session)
        scoped: dict[str, Any] = session._session.get_scoped_config()
    except botocore.exceptions.BotoCoreError as error:
        raise ConfigError(f"{bucket}: {error}") from error
    except ValueError:
        raise AccessDenied(
            f"{bucket}: the profile of AWS has no credentials; aws configure, or aws sso login"
        ) from None
    return scoped, provider


def _gcs(bucket: Bucket, settings: ClusterSettings) -> tuple[_Build, str]:
    config: Any = {}
    if settings.anonymous:
        config["skip_signature"] = True
    if endpoint := clouds.endpoint_of("gs"):
        config["base_url"] = endpoint
        if clouds.is_gcs_emulator() and not settings.anonymous:
            config["bearer_token"] = "emulator"
    provider: Any = None
    if not settings.anonymous and not clouds.is_gcs_emulator():
        provider = _google_federation()

    def build(**more: Any) -> Client:  # noqa: ANN401
        return GCSStore(bucket.name, config=config, credential_provider=provider, **more)

    return build, endpoint


def _google_federation() -> Callable[[], dict[str, Any]] | None:
    """Return what gives credentials for the token of another issuer, which obstore itself cannot exchange."""
    named = clouds.google_federation()
    if named is None:
        return None

    def credentials() -> dict[str, Any]:
        form = {
            "audience": named.audience,
            "scope": _GOOGLE_SCOPE,
            "requested_token_type": "urn:ietf:params:oauth:token-type:access_token",
        }
        found = exchange(named.token(), named.token_url, named.subject_token_type, form)
        if url := named.service_account_impersonation_url:
            found = impersonate(found.text, url, _GOOGLE_SCOPE)
        return {"token": found.text, "expires_at": datetime.fromtimestamp(found.ends, UTC)}

    return credentials


def _azure(bucket: Bucket, settings: ClusterSettings) -> tuple[_Build, str]:
    account, _, container = bucket.name.partition("/")
    config: Any = {"account_name": account}
    if settings.anonymous:
        config["skip_signature"] = True
    if endpoint := clouds.endpoint_of("az"):
        config["endpoint"] = endpoint

    def build(**more: Any) -> Client:  # noqa: ANN401
        return AzureStore(container, config=config, **more)

    return build, endpoint


T = TypeVar("T")


class _Loop(asyncio.AbstractEventLoop):
    """What obstore needs of an event loop."""

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()

    def get_debug(self) -> bool:
        return False

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> None:
        """Call back at once: in trio's thread nothing else can be under way."""
        if context is None:
            callback(*args)
        else:
            context.run(callback, *args)

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> None:
        with suppress(trio.RunFinishedError):  # then nobody waits for it any more
            self._token.run_sync_soon(lambda: self.call_soon(callback, *args, context=context))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Ignore failures of calls that were cancelled: nobody waits for them."""


class Futures:
    """Waits for futures of obstore. Of one run of trio, and only in its thread."""

    def __init__(self) -> None:
        self._loop: _Loop | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Whose futures these are."""
        if self._loop is None:
            self._loop = _Loop()  # type: ignore[abstract]  # most of a loop is never asked for
        return self._loop

    async def wait(self, call: Callable[..., Awaitable[T]], *args: object, **kwargs: object) -> T:
        """Make a call of obstore and wait for its result; a cancellation drops the call.

        Raises:
            Exception: what the call raises.
        """
        future = self.begin(call, *args, **kwargs)
        await settled(future)
        return future.result()

    def begin(
        self, call: Callable[..., Awaitable[T]], *args: object, **kwargs: object
    ) -> "asyncio.Future[T]":
        """Make a call of obstore and return its future.

        Raises:
            Unsupported: this process was forked from one that had used obstore.
        """
        if not bind():
            raise Unsupported(
                "this process was forked from one that had read a cloud, and cannot read any: start it by spawn"
                " (DataLoader: multiprocessing_context='spawn')"
            )
        asyncio._set_running_loop(self.loop)
        try:
            future = call(*args, **kwargs)
        finally:
            asyncio._set_running_loop(None)
        assert isinstance(future, asyncio.Future), "obstore's own functions return futures"
        return future


async def settled(future: "asyncio.Future[Any]", *, keep: bool = False) -> None:
    """Wait until a future is done; a cancellation cancels it too, unless it is to be kept."""
    task = trio.lowlevel.current_task()
    waiting = True

    def wake(_: object) -> None:
        if waiting:
            trio.lowlevel.reschedule(task)

    def abort(_: object) -> trio.lowlevel.Abort:
        nonlocal waiting
        waiting = False
        future.remove_done_callback(wake)
        if not keep:
            future.cancel()
        return trio.lowlevel.Abort.SUCCEEDED

    if future.done():
        await trio.lowlevel.checkpoint()
        return
    future.add_done_callback(wake)
    await trio.lowlevel.wait_task_rescheduled(abort)


_WEAK = "W/"
REFUSED = re.compile(r"(^|/)\.{0,2}(/|$)|[\x00-\x1f\x7f]")
"""What obstore refuses in a key, or takes for another key."""


def described(meta: Any) -> ObjectInfo:  # noqa: ANN401 - a dictionary of obstore
    """Return what a listing or a HEAD told of an object."""
    # HEAD tells the second, so a listing must not tell more.
    mtime = int(meta["last_modified"].timestamp()) * 1_000_000_000
    return ObjectInfo(meta["path"], meta["size"], version_of(meta["e_tag"]), mtime_ns=mtime)


def version_of(etag: str | None) -> str:
    """Return the version that an ETag means; empty for none."""
    return (etag or "").strip('"')


def condition(info: ObjectInfo) -> dict[str, str]:
    """Return what makes a GET fail if the object is another version by now."""
    if not info.version or info.version.startswith(_WEAK):
        return {}
    return {"if_match": f'"{info.version}"'}


def check_version(subject: str, expected: ObjectInfo, meta: Any) -> None:  # noqa: ANN401
    """Compare what a GET says of an object with the version that was asked for.

    Raises:
        Stale: it is another one.
    """
    found = structs.replace(described(meta), key=expected.key)
    if expected.version and not found.version:
        raise Unavailable(f"{subject}: the answer does not say which version it has")
    if not expected.same_content(found):
        raise Stale(f"{subject}: the object changed")
