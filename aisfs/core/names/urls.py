"""URLs of buckets: scheme, bucket and the beginning of the key, for every place that can be mounted.

ais://BUCKET/KEY  s3://BUCKET/KEY …       as AIStore serves them; ais://@uuid#ns/BUCKET/KEY
s3+direct://BUCKET/KEY  gs+direct://…     the cloud itself
az+direct://ACCOUNT/CONTAINER/KEY
https://HOST[:PORT]/KEY  http://…
hf://datasets/OWNER/NAME[@REVISION]/KEY   also spaces/OWNER/NAME, and OWNER/NAME for a model
SCHEME://HOST/KEY                         whatever else fsspec knows
"""

import os
import re
from functools import lru_cache
from urllib.parse import quote_from_bytes, unquote_to_bytes

from aisfs.core.names.listing import is_bucket_name, parse_bucket_name
from aisfs.errors import ConfigError
from aisfs.model import Bucket, Provider

_SCHEME = re.compile(r"[a-z][a-z0-9.+-]*")
_HEAD = re.compile(r"(.*?)://", re.DOTALL)
_HF_KINDS = ("datasets", "spaces")
"""Before OWNER/NAME; a model has none."""
_HF_PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_HF = re.compile(
    rf"(?:(?:{'|'.join(_HF_KINDS)})/{_HF_PART}|(?!(?:{'|'.join(_HF_KINDS)})/){_HF_PART})/{_HF_PART}(?:@[A-Za-z0-9_.%-]+)?"
)
_AZ = re.compile(r"[a-z0-9]{3,24}/[$a-z0-9][a-z0-9-]{1,62}")
"""Account and container, as Azure names them; `$web` and `$root` are containers, too."""
_CLOUD = re.compile(r"[A-Za-z0-9_.-]+")
_NAMES = {Provider.HF: _HF, Provider.AZ: _AZ}
_HOST = re.compile(r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_PLAIN = "/~!$&'()*+,;=:@"
"""What the path of a URL has as it is, besides letters, digits, `-`, `.` and `_`."""
_QUERY = re.compile(r"\?[^/?]*=|#")


def place_end(text: str) -> int:
    """Return where the key begins, after scheme, bucket and slash; 0 in a text without scheme."""
    head = _HEAD.match(text)
    if head is None:
        return 0
    at = head.end()
    for _ in range(_parts(head[1], text[at:])):
        slash = text.find("/", at)
        if slash < 0:
            return len(text)
        at = slash + 1
    return at


def _parts(scheme: str, rest: str) -> int:
    """Return how many parts of a path a bucket's name takes."""
    match provider_of(scheme):
        case Provider.AZ:
            return 2
        case Provider.HF:
            return 3 if rest.partition("/")[0] in _HF_KINDS else 2
        case Provider.AIS | Provider.AWS | Provider.GCP | Provider.AZURE | Provider.OCI:
            return (
                2 if rest[:1] in ("@", "#") else 1
            )  # as the ais CLI writes it: ais://@uuid#ns/bucket
    return 1


@lru_cache(maxsize=64)  # the braces of one argument may make a million URLs
def provider_of(scheme: str) -> Provider:
    """Return what serves a scheme; `Provider.FSSPEC` for one that is not known here."""
    try:
        return Provider.parse(scheme)
    except ValueError:
        return Provider.FSSPEC


def split_url(text: str) -> tuple[Bucket, str]:
    """Return the bucket that a URL names, and what comes after it, as typed; see `decoded`.

    Raises:
        ConfigError: it names none, or one that cannot exist. No secret of the URL is repeated.
    """
    scheme = text.partition("://")[0]
    if _SCHEME.fullmatch(scheme) is None:
        raise ConfigError(f"{scheme}://: unknown provider {scheme!r}")
    provider, end = provider_of(scheme), place_end(text)
    name, key = text[len(scheme) + 3 : end].removesuffix("/"), text[end:]
    if not name:
        raise ConfigError(f"{text}: no bucket; write {_how(provider, scheme)}")
    if not provider.is_direct:
        return _served(text, provider, name), key
    if provider.is_web:
        name = _host(scheme, name)
    elif provider is Provider.FSSPEC:
        name = _authority(scheme, name)
    elif _NAMES.get(provider, _CLOUD).fullmatch(name) is None:
        raise ConfigError(f"{text}: {name!r} is no such place; write {_how(provider, scheme)}")
    return Bucket(name, provider), key


def _served(text: str, provider: Provider, name: str) -> Bucket:
    if name[:1] in ("@", "#"):
        space, _, name = name.partition("/")
        name = name and name + space
    if not name:
        raise ConfigError(f"{text}: no bucket; write {_how(provider, provider.scheme)}")
    if not is_bucket_name(os.fsencode(name)):
        raise ConfigError(f"{text}: a bucket's name has only letters, digits, `.`, `-` and `_`")
    return parse_bucket_name(provider, os.fsencode(name))


def _how(provider: Provider, scheme: str) -> str:
    match provider:
        case Provider.AZ:
            return f"{scheme}://ACCOUNT/CONTAINER or {scheme}://ACCOUNT/CONTAINER/PREFIX/"
        case Provider.HF:
            return (
                f"{scheme}://datasets/OWNER/NAME or {scheme}://datasets/OWNER/NAME@REVISION/PREFIX/"
            )
        case Provider.HTTP | Provider.HTTPS | Provider.FSSPEC:
            return f"{scheme}://HOST/PATH"
    return f"{scheme}://BUCKET or {scheme}://BUCKET/PREFIX/"


def _host(scheme: str, name: str) -> str:
    if "@" in name:
        raise ConfigError(
            f"{scheme}://{name.rpartition('@')[2]}: no user or password in a URL: it would show in"
            " the list of processes"
        )
    if _HOST.fullmatch(name) is None:
        raise ConfigError(f"{scheme}://{name}: {name!r} is no host")
    return name.lower()


def _authority(scheme: str, name: str) -> str:
    """Return the name of a bucket of fsspec, which has the scheme in it."""
    scheme = "oci" if scheme == "oc+direct" else scheme.removesuffix("+direct")
    user, at, host = name.rpartition("@")
    if ":" in user:
        raise ConfigError(
            f"{scheme}://{host}: no password in a URL: it would show in the list of processes"
        )
    return f"{scheme}://{user}{at}{host}"


def check_path(text: str) -> None:
    """Refuse the URL of a web server that has more than a path.

    Raises:
        ConfigError: it has; that part, which may be a signature, is not repeated.
    """
    scheme, separator, _ = text.partition("://")
    if separator and provider_of(scheme).is_web and (found := _QUERY.search(text)):
        before = text[: found.start()]
        raise ConfigError(f"{before}: a URL with `?…=` or `#` names no file: give its path only")


def decoded(bucket: Bucket, path: str) -> str:
    """Return the key that a path in a URL means: on the web, `%20` is a space."""
    if not bucket.provider.is_web:
        return path
    return os.fsdecode(unquote_to_bytes(os.fsencode(path)))


def has_no_path(prefix: str) -> bool:
    """Return whether nothing below a directory has a path of its own: an empty part, or one of dots."""
    return not {"", ".", ".."}.isdisjoint(prefix.split("/")[:-1])


def url_of(bucket: Bucket, key: str) -> str:
    """Return the URL that names a key, as `split_url` and `decoded` read it."""
    if not bucket.provider.is_web:
        return f"{bucket}/{key}"
    return f"{bucket}/{quote_from_bytes(os.fsencode(key), safe=_PLAIN)}"


def itself(bucket: Bucket, azure_account: str = "") -> Bucket:
    """Return the bucket of a cloud as that cloud serves it, without AIStore; others as they are.

    Args:
        bucket: As an AIStore would serve it.
        azure_account: Whose containers are meant.

    Raises:
        ConfigError: there is no such way to it.
    """
    match bucket.provider:
        case Provider.AWS:
            return Bucket(bucket.name, Provider.S3)
        case Provider.GCP:
            return Bucket(bucket.name, Provider.GS)
        case Provider.AZURE:
            if not azure_account:
                raise ConfigError(
                    f"{bucket}: in which account? Set AZURE_STORAGE_ACCOUNT_NAME, or write"
                    f" az+direct://ACCOUNT/{bucket.name}"
                )
            return Bucket(f"{azure_account}/{bucket.name}", Provider.AZ)
        case Provider.OCI:
            return Bucket(f"oci://{bucket.name}{bucket.namespace}", Provider.FSSPEC)
    return bucket
