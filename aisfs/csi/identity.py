"""Who a pod is: the tokens of its service account, as AIStore and the clouds take them.

Kubernetes hands them to the driver with each call that publishes, new ones long before the old ones end. Each becomes
a secret of the volume, and so is rotated as secrets are.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import msgspec

from aisfs.errors import ConfigError
from aisfs.http.token_exchange import exchange
from aisfs.settings import token_exchange
from aisfs.settings.clouds import Federation, TokenFile, google_services

TOKENS = "csi.storage.k8s.io/serviceAccount.tokens"
"""What Kubernetes calls them, among the attributes or, from 1.35 on if the CSIDriver says so, the secrets."""
POD_TOKEN = "pod_token"
"""The secret of a volume that AIStore, or what exchanges it, gets."""
CLOUD_TOKEN = "cloud_token"
"""The secret of a volume that a cloud gets."""
_AWS, _EKS = "sts.amazonaws.com", "pods.eks.amazonaws.com"
_AZURE = "api://AzureADTokenExchange"
_GOOGLE = "https://iam.googleapis.com/"
"""With the name of the provider behind it, as its audience is by default."""
_GOOGLE_PROVIDER, _GOOGLE_ACCOUNT = "GOOGLE_PROVIDER", "GOOGLE_SERVICE_ACCOUNT_EMAIL"
"""No variables that a library knows: what they say goes into the file that Google's variable names."""
EKS_AGENT = "http://169.254.170.23/v1/credentials"
"""Where EKS Pod Identity gives credentials on every node, unless the operator names another place."""
_WORD = re.compile(r"[A-Za-z0-9-]{1,64}")
ATTRIBUTES: Mapping[str, tuple[str, re.Pattern[str], str]] = {
    "region": ("AWS_REGION", _WORD, ""),
    "aws_role_arn": (
        "AWS_ROLE_ARN",
        re.compile(r"arn:aws[a-z-]*:iam::\d+:role/[\w+=,.@/-]+"),
        _AWS,
    ),
    "aws_pod_identity": (
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        re.compile(r"true|on|yes|1", re.IGNORECASE),
        _EKS,
    ),
    "azure_client_id": ("AZURE_CLIENT_ID", _WORD, _AZURE),
    "azure_tenant_id": ("AZURE_TENANT_ID", re.compile(r"[A-Za-z0-9.-]{1,253}"), _AZURE),
    "google_provider": (
        _GOOGLE_PROVIDER,
        re.compile(
            r"projects/\d+/locations/global/workloadIdentityPools/[a-z0-9-]+/providers/[a-z0-9-]+"
        ),
        _GOOGLE,
    ),
    "google_service_account": (
        _GOOGLE_ACCOUNT,
        re.compile(r"[a-z0-9-]+@[a-z0-9.-]+\.gserviceaccount\.com"),
        _GOOGLE,
    ),
}
"""Attributes that are about a cloud: its variable, what may be said (both a region and a tenant become a part of a URL
that the token is sent to), and the audience of the token that it takes."""


class _Token(msgspec.Struct):
    token: str


@dataclass(frozen=True, slots=True)
class Cloud:
    """What a volume says of its cloud."""

    variables: dict[str, str] = field(default_factory=dict)
    audience: str = ""
    """Of the token by which the cloud knows the pod; empty where the mounter's credentials count."""

    def variables_for(self, token_file: str) -> dict[str, str]:
        """Return what the libraries of the cloud want to be set, if the token is in a file."""
        found = dict(self.variables)
        account = found.pop(_GOOGLE_ACCOUNT, "")
        if provider := found.pop(_GOOGLE_PROVIDER, ""):
            sts, iam = google_services()
            acting = f"{iam}/v1/projects/-/serviceAccounts/{account}:generateAccessToken"
            federation = Federation(
                audience=f"//iam.googleapis.com/{provider}",
                token_url=f"{sts}/v1/token",
                credential_source=TokenFile(token_file),
                service_account_impersonation_url=acting if account else "",
            )
            fd = os.memfd_create("aisfs identity")
            os.write(fd, msgspec.json.encode(federation))
            found["GOOGLE_APPLICATION_CREDENTIALS"] = f"/proc/self/fd/{fd}"
        return found


NO_CLOUD = Cloud()


def parse_cloud(given: Mapping[str, str]) -> Cloud:
    """Return what attributes, by their names, say of a cloud.

    Raises:
        ConfigError: one makes no sense, or they are of two clouds.
    """
    cloud, audiences = {}, set()
    for name, value in given.items():
        variable, pattern, audience = ATTRIBUTES[name]
        if not pattern.fullmatch(value):
            raise ConfigError(f"{name.replace('_', '-')}: {value!r} is none")
        cloud[variable] = EKS_AGENT if audience == _EKS else value
        audiences |= {audience} - {""}
    if len(audiences) > 1:
        raise ConfigError(
            "aws-role-arn, aws-pod-identity, azure-client-id and google-provider: a volume has one identity"
        )
    if _GOOGLE in audiences:
        if _GOOGLE_PROVIDER not in cloud:
            raise ConfigError("google-service-account needs google-provider")
        audiences = {f"{_GOOGLE}{cloud[_GOOGLE_PROVIDER]}"}
    if _AZURE in audiences and not {"AZURE_CLIENT_ID", "AZURE_TENANT_ID"} <= cloud.keys():
        raise ConfigError("azure-client-id and azure-tenant-id belong together")
    return Cloud(cloud, next(iter(audiences), ""))


def tokens_of_pod(text: str) -> dict[str, str]:
    """Return the tokens that Kubernetes hands over, by audience.

    Raises:
        ConfigError: it is not what Kubernetes writes. The text is not repeated.
    """
    try:
        found = msgspec.json.decode(text or "{}", type=dict[str, _Token])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise ConfigError(f"{TOKENS}: not of the form that Kubernetes has") from None
    # Not remembered as secrets: what has the form of a token is struck out anyway, and the driver sees new ones for ever.
    return {audience: each.token for audience, each in found.items()}


def secrets_of_pod(tokens: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """Return the tokens that a volume needs.

    Args:
        tokens: Those of the pod, by audience.
        wanted: The audience of each, by name of the secret; an empty one is not needed.

    Raises:
        ConfigError: Kubernetes did not hand one over.
    """
    found = {}
    for name, audience in wanted.items():
        if audience and audience not in tokens:
            raise ConfigError(
                f"Kubernetes gives no token of the pod for the audience {audience}: name it in the"
                " tokenRequests of the CSIDriver csi.aisfs (chart: tokenRequests)"
            )
        if audience:
            found[name] = tokens[audience]
    return found


def check_exchange() -> None:
    """Check where tokens are exchanged.

    Raises:
        ConfigError: it is no such place.
    """
    if (url := token_exchange()) and urlsplit(url).scheme not in ("http", "https"):
        raise ConfigError("AISFS_TOKEN_EXCHANGE: expected the URL of a token endpoint")


def for_aistore(token: str) -> str:
    """Return what AIStore gets for the token of a pod: that, or what the operator has it exchanged for.

    Raises:
        AisfsError: it cannot be exchanged.
    """
    url = token_exchange()
    return exchange(token, url).text if url else token
