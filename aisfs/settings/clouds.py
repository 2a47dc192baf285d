"""What the environment says of clouds, by the names that their own tools have for it.

obstore reads the rest itself: keys, tokens, regions, files with credentials.
"""

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from aisfs.errors import ConfigError
from aisfs.redaction import remember, remember_query, remember_url
from aisfs.settings.values import (
    drop_empty_variables,
    set_variables,
    variable,
)

_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("STORAGE_EMULATOR_HOST", "GOOGLE_BASE_URL"),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
_OTHER_URLS = {
    "s3": (
        "AWS_METADATA_ENDPOINT",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_ENDPOINT_URL_STS",
    ),
    "az": ("AZURE_AUTHORITY_HOST", "AZURE_MSI_ENDPOINT", "AZURE_IDENTITY_ENDPOINT"),
    "hf": ("HF_ENDPOINT",),
}
"""Where the libraries ask for credentials, and what they panic about."""
_PREFIXES = ("AWS_", "GOOGLE_", "AZURE_", "STORAGE_", "HF_", "HUGGING_FACE_")
_POD_IDENTITY = "AWS_CONTAINER_CREDENTIALS_FULL_URI"
_CREDENTIALS = {
    "s3": (
        "AWS_ACCESS_KEY_ID",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        _POD_IDENTITY,
    ),
    "gs": (
        "STORAGE_EMULATOR_HOST",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "GOOGLE_SERVICE_ACCOUNT",
        "GOOGLE_SERVICE_ACCOUNT_PATH",
        "GOOGLE_SERVICE_ACCOUNT_KEY",
        "GOOGLE_BEARER_TOKEN",
    ),
    "az": (
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_ACCESS_KEY",
        "AZURE_STORAGE_MASTER_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_STORAGE_SAS_KEY",
        "AZURE_STORAGE_TOKEN",
        "AZURE_CLIENT_SECRET",
        "AZURE_FEDERATED_TOKEN_FILE",
        "AZURE_USE_AZURE_CLI",
    ),
}
"""What has them, in the order in which they are looked for."""
_SECRETS = (
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "GOOGLE_BEARER_TOKEN",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCESS_KEY",
    "AZURE_STORAGE_MASTER_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_TOKEN",
    "AZURE_CLIENT_SECRET",
    "AZURE_STORAGE_CLIENT_SECRET",
)
_PROFILES = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE")
_TOKEN_FILES = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AZURE_FEDERATED_TOKEN_FILE",
)
"""Have the token of a workload; read again whenever credentials are asked for."""
_IDENTITIES = (
    "AWS_ROLE_ARN",
    "AZURE_CLIENT_ID",
    "AZURE_STORAGE_CLIENT_ID",
    "AZURE_TENANT_ID",
    "AZURE_STORAGE_TENANT_ID",
    "AZURE_AUTHORITY_ID",
    "AZURE_STORAGE_AUTHORITY_ID",
)
"""What such a token is for."""
_SECRET_FILES = (
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
)
_IN_JSON = ("private_key", "refresh_token", "client_secret")
"""What is secret in Google's files."""
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


def prepare_environment(store: str) -> None:
    """Make the variables of a cloud fit to be read by its libraries.

    Raises:
        ConfigError: one has no URL where there must be one.
    """
    drop_empty_variables(_PREFIXES)
    for name in _OTHER_URLS.get(store, ()):
        if url := variable(name):
            checked_url(name, url)


def endpoint_of(store: str) -> str:
    """Return the URL of a cloud; empty for the cloud's own.

    Raises:
        ConfigError: the variable has no such URL.
    """
    names = _ENDPOINTS.get(store, ())
    url = variable(*names)
    if not url:
        return ""
    # STORAGE_EMULATOR_HOST is written without a scheme.
    whole = url if "://" in url or url.startswith("/") else f"http://{url}"
    return checked_url(next(name for name in names if variable(name)), whole)


def checked_url(name: str, url: str) -> str:
    """Return the URL that a variable or a file has for an endpoint.

    Raises:
        ConfigError: it is none. The libraries would panic, or ask another host.
    """
    try:
        parts = urlsplit(url)
        usable = parts.scheme.lower() in ("http", "https") and parts.hostname and parts.port != 0
        (parts.hostname or "").encode("idna")
    except ValueError:
        usable = False
    if not usable or re.search(r"\s", url):
        place = url.rpartition("@")[2].partition("?")[0]  # the rest may be secret
        raise ConfigError(f"{name}: {place} is no URL such as http://host:9000")
    return url


def place_of(store: str) -> str:
    """Return what distinguishes a cloud from another with the same bucket names; empty for the usual one."""
    endpoint = endpoint_of(store)
    if store == "s3" and not endpoint and has_aws_profile():  # which may name an endpoint
        return f"profile {variable('AWS_PROFILE', 'AWS_DEFAULT_PROFILE') or 'default'}"
    return endpoint


def is_gcs_emulator() -> bool:
    """Return whether an emulator stands for Google's cloud."""
    return bool(variable("STORAGE_EMULATOR_HOST"))


def google_project() -> str:
    """Return the project of Google that pays for requests.

    Raises:
        ConfigError: none is named.
    """
    project = variable("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT")
    if not project:
        raise ConfigError("--requester-pays: set GOOGLE_CLOUD_PROJECT to the project that pays")
    return project


class TokenFile(msgspec.Struct):
    """Where the token of a workload is; only a file is read, though Google's own libraries ask other places, too."""

    file: str
    format: dict[str, str] = {}


class Federation(msgspec.Struct, tag_field="type", tag="external_account"):
    """How Google knows a workload by the token of another issuer: a file as `gcloud iam workload-identity-pools` writes it."""

    audience: str
    token_url: str
    credential_source: TokenFile
    subject_token_type: str = "urn:ietf:params:oauth:token-type:jwt"
    service_account_impersonation_url: str = ""
    """Of the service account that the workload acts as; empty if buckets know the workload itself."""

    def token(self) -> str:
        """Return the token of the workload as it is now."""
        text = Path(self.credential_source.file).read_text().strip()
        field = self.credential_source.format.get("subject_token_field_name", "")
        return str(json.loads(text)[field]) if field else text


def google_federation() -> Federation | None:
    """Return how Google knows this process by the token of another issuer; None if it does not.

    Raises:
        ConfigError: the file that says it is of no use.
    """
    path = variable("GOOGLE_APPLICATION_CREDENTIALS")
    try:
        text = Path(path).read_bytes() if path else b""
    except OSError:
        return None  # obstore says so
    if not path or b"external_account" not in text:
        return None
    try:
        found = msgspec.json.decode(text, type=Federation)
        for url in (found.token_url, found.service_account_impersonation_url or found.token_url):
            checked_url("a URL in GOOGLE_APPLICATION_CREDENTIALS", url)
        return found
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"GOOGLE_APPLICATION_CREDENTIALS {path}: of external_account only the kind with a token in a file is read: {error}"
        ) from None


def google_services() -> tuple[str, str]:
    """Return the URLs of Google's services that exchange tokens, and that act as service accounts."""
    names = "CLOUDSDK_API_ENDPOINT_OVERRIDES_STS", "CLOUDSDK_API_ENDPOINT_OVERRIDES_IAMCREDENTIALS"
    usual = "https://sts.googleapis.com", "https://iamcredentials.googleapis.com"
    sts, iam = (variable(name) or url for name, url in zip(names, usual, strict=True))
    return sts.rstrip("/"), iam.rstrip("/")


def azure_account() -> str:
    """Return the storage account of containers that are named without one."""
    return variable("AZURE_STORAGE_ACCOUNT_NAME")


def has_aws_profile() -> bool:
    """Return whether AWS's own files say how to reach S3: a profile was chosen, or no keys are set."""
    if variable(*_PROFILES):
        return True
    if variable("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        return False
    home = Path(os.path.expanduser("~")) / ".aws"
    places = (
        variable("AWS_SHARED_CREDENTIALS_FILE") or home / "credentials",
        variable("AWS_CONFIG_FILE") or home / "config",
    )
    return any(os.path.exists(place) for place in places)


def aws_region() -> str:
    """Return the region of AWS that the environment names; boto3 itself knows only the second name."""
    return variable("AWS_REGION", "AWS_DEFAULT_REGION")


def credentials_of(store: str) -> str:
    """Return where the credentials for a cloud come from; empty if nothing here has any."""
    if store == "s3" and has_aws_profile():
        profile = variable(*_PROFILES) or "default"
        return f"the profile {profile} of AWS"
    return next((name for name in _CREDENTIALS.get(store, ()) if variable(name)), "")


def use_identity(variables: Mapping[str, str], token_file: str) -> None:
    """Let clouds know this process by a token in a file, and by none of the credentials of the environment.

    Args:
        variables: What else is to be set, such as the role that the token is for.
        token_file: That file; empty to go on with the credentials that there are.
    """
    if not token_file:
        set_variables(variables, ())
        return
    others = {*chain.from_iterable(_CREDENTIALS.values()), *_SECRETS, *_PROFILES, *_IDENTITIES}
    if _POD_IDENTITY in variables and (url := variable(_POD_IDENTITY)):
        variables = {**variables, _POD_IDENTITY: url}  # the operator's own
    set_variables({**variables, **dict.fromkeys(_TOKEN_FILES, token_file)}, others)


def remember_secrets() -> None:
    """Strike the secrets of the environment out of whatever is shown from now on."""
    for name in _SECRETS:
        if secret := variable(name):
            remember(secret)
            _remember_json(secret)
            remember_query(secret)  # a SAS token is several values
    for name in _SECRET_FILES:
        with suppress(OSError, UnicodeDecodeError):
            _remember_json(Path(variable(name) or os.devnull).read_text())
    for name in (*chain.from_iterable(_ENDPOINTS.values()), *_PROXIES):
        remember_url(variable(name, name.lower()))


def _remember_json(text: str) -> None:
    with suppress(ValueError, AttributeError):
        said = json.loads(text)
        for name in _IN_JSON:
            if secret := said.get(name):
                remember(str(secret))
