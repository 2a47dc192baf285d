"""Clients of obstore for the buckets of one cloud, set up from the environment as its own tools are.

Must not know: what they are used for, trio.
"""

import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from obstore.store import AzureStore, GCSStore, S3Store

from aisfs.errors import AccessDenied, ConfigError
from aisfs.http.exchange import check_authorities
from aisfs.model import Bucket, Provider
from aisfs.redaction import remember, remember_url
from aisfs.settings import ClusterSettings, fields
from aisfs.store.cloud.errors import PANIC, is_panic

Client = S3Store | GCSStore | AzureStore

_RETRIES_OF_PARTS = 3
"""Of one part of an upload, without which all of it would be sent again; `aisfs.store.pipeline` retries
whole calls, so no other request is repeated here."""
_GENERIC = re.compile(r"^Generic \w+ error: ")
_OF_CREDENTIALS = re.compile(r"credential|key|token|SAS", re.I)
"""What obstore begins texts with that it has no kind of error for."""
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
        options = _options(endpoint, settings, fields.google_project() if pays else "")
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
            found = fields.credentials_of(bucket.store)
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
    provider, endpoint = None, fields.endpoint_of("s3")
    if settings.anonymous:
        config["skip_signature"] = True
    elif fields.has_aws_profile():
        session, provider = _aws_session(bucket)
        if not endpoint and (endpoint := session.get("endpoint_url", "")):
            remember_url(endpoint)
            fields.checked_url("endpoint_url of the profile of AWS", endpoint)
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
        session = boto3.Session(region_name=fields.aws_region() or None)
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
    if endpoint := fields.endpoint_of("gs"):
        config["base_url"] = endpoint
        if fields.is_gcs_emulator() and not settings.anonymous:
            config["bearer_token"] = "emulator"

    def build(**more: Any) -> Client:  # noqa: ANN401
        return GCSStore(bucket.name, config=config, **more)

    return build, endpoint


def _azure(bucket: Bucket, settings: ClusterSettings) -> tuple[_Build, str]:
    account, _, container = bucket.name.partition("/")
    config: Any = {"account_name": account}
    if settings.anonymous:
        config["skip_signature"] = True
    if endpoint := fields.endpoint_of("az"):
        config["endpoint"] = endpoint

    def build(**more: Any) -> Client:  # noqa: ANN401
        return AzureStore(container, config=config, **more)

    return build, endpoint
