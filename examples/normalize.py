"""Shrink and normalise the pictures of a shard: a tar on standard input, a tar on standard output.

    aisfs serve /srv/buckets --etl 'registry/normalize:1=python examples/normalize.py'
    aisfs mount --transform 'python examples/normalize.py' ais://pets /mnt/pets

An ETL of AIStore calls the same function from its server: `transform(data, path, args)` of the SDK's FastAPIServer.
"""

import sys
import tarfile
from io import BytesIO

from PIL import Image, ImageOps

SIDE = 16


def smaller(name: str, data: bytes) -> bytes:
    """Return a picture with all its contrast in a square of `SIDE` pixels, and anything else as it is."""
    if not name.endswith((".jpg", ".jpeg")):
        return data
    picture = ImageOps.autocontrast(Image.open(BytesIO(data)).convert("RGB"))
    result = BytesIO()
    picture.resize((SIDE, SIDE)).save(result, "PNG")
    return result.getvalue()


def normalize(shard: bytes) -> bytes:
    """Return a shard with its pictures changed."""
    result = BytesIO()
    with tarfile.open(fileobj=BytesIO(shard)) as old, tarfile.open(fileobj=result, mode="w") as new:
        for member in old:
            file = old.extractfile(member)
            data = smaller(member.name, file.read() if file is not None else b"")
            member.size = len(data)
            new.addfile(member, BytesIO(data))
    return result.getvalue()


if __name__ == "__main__":
    sys.stdout.buffer.write(normalize(sys.stdin.buffer.read()))
