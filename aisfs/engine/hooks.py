"""What the services report to the mount, which is built on top of them."""

from collections.abc import Callable
from dataclasses import dataclass

from aisfs.model import Bucket, ObjectInfo

ListingChanged = Callable[[Bucket, str, list[bytes]], None]


@dataclass(slots=True)
class Hooks:
    """Made before the services and filled in after them; none of the calls may wait."""

    landed: Callable[[], None] = lambda: None
    """Bytes are here that were not before."""
    content_was_wrong: Callable[[Bucket, ObjectInfo], None] = lambda bucket, info: None
    """Readers got wrong bytes of an object."""
    listing_changed: ListingChanged = lambda bucket, prefix, names: None
    """These names changed in a directory whose previous listing had not expired."""
