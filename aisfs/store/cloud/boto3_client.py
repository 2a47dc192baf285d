"""boto3's client of S3, for what obstore does not do; its calls block.

Must not know: trio.
"""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aisfs.config import ClusterSettings, clouds
from aisfs.errors import ProtocolError, Unavailable
from aisfs.redaction import shown
from aisfs.store.cloud.errors import error_of_status


def has_boto3() -> bool:
    """Return whether boto3 is installed."""
    return importlib.util.find_spec("boto3") is not None


def make_client(settings: ClusterSettings, silence: float = 0) -> Any:  # noqa: ANN401 - boto3 has no types
    """Return a client that waits so many seconds for a reply, else as long as the settings say."""
    import boto3
    import botocore
    from botocore.config import Config

    endpoint = clouds.endpoint_of("s3") or None
    config = Config(
        # urllib3 has this for sending, too.
        connect_timeout=silence or settings.connect_timeout or None,
        read_timeout=silence or settings.read_timeout or settings.io_timeout,
        retries={"total_max_attempts": 1},
        max_pool_connections=settings.max_connections,
        s3={"addressing_style": "path"} if endpoint else None,
        signature_version=botocore.UNSIGNED if settings.anonymous else None,
    )
    return boto3.Session(region_name=clouds.aws_region() or None).client(
        "s3",
        endpoint_url=endpoint,
        config=config,
        verify=False
        if settings.skip_verify_crt
        else settings.client_ca and str(settings.client_ca),
    )


@contextmanager
def boto3_errors(subject: str) -> Iterator[None]:
    """Turn boto3's errors into ours."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        told = error.response
        code = str(told.get("Error", {}).get("Code", ""))
        raise error_of_status(subject, told["ResponseMetadata"]["HTTPStatusCode"], code) from error
    except (BotoCoreError, OSError) as error:
        raise Unavailable(f"{subject}: {shown(str(error))}") from None
    except ValueError as error:
        raise ProtocolError(f"{subject}: {shown(str(error))}") from None
