"""AIStore's own shard index, which can spare the scan of a shard: bytes in, a member index out.

`ais bucket shard-index build` (AIStore 4.5 and later) leaves one object for each plain tar in the
system bucket `.sys-shardidx`; reading it takes an administrator's token where AuthN is on. Layout:

    0       layout version: 1 (4.5 to 5.0) or 2 (5.1), which sorts entries by name
    1, 2    format of the shard, 0 for tar; type of the checksum, 1 for xxhash64
    3…10    xxhash64 of all that follows, big-endian
    11…     as uvarints, texts with their length before them: type and value of the shard's checksum,
            its size, the number of entries; of each entry name, offset and size

The offset is that of the header block right before the data, not of the pax or long-name headers
that come first, so data starts 512 bytes after it.

The index lies on the target of its shard, and not where its own name would have it: nobody finds it by
its name on most clusters of several targets. So the target of the shard is asked first (`stores.ais.requests`),
without the proxy. Where that is not allowed, most of these indexes cannot be read.

What a scan of ours knows and this index does not:
- mtimes and execute bits: members get the shard's time and 0444;
- directories, links, sparse and contiguous members, and all but the first of members with one name,
  while in our trees the last one wins;
- sizes of pax sparse members, which it states as if their holes were stored;
- damage, of which it has no word.
The first point cannot be helped: with this index trees differ in times and modes, so it is used where
the view is not about them, or the user says so. The others leave gaps or overlaps, since members lie end to end in a tar. So
an index is only taken when the gap before every member is the same, none or that of one pax header,
but for names that need more room, and when what follows the last member can be an end mark. What
could still be missed then is a few small members in the padding of the last record, up to 10 KiB, or
one kilobyte of them before every single member; who has such shards should not allow this index.

Must not know: sockets, sessions, tokens.
"""

from operator import itemgetter

from xxhash import xxh64_intdigest

from aisfs.core.index.builder import MemberIndexBuilder
from aisfs.core.index.member_index import MAX_LEAD, MemberIndex
from aisfs.model import ObjectInfo

MAX_BYTES = 256 << 20
"""Longest index worth fetching: AIStore's most entries with names of 240 bytes."""

HEAD_BYTES = 256
"""Bytes that hold what an index says of its shard; the longest checksum has 128 digits."""

_MAX_ENTRIES = 1 << 20  # AIStore's own limit
_PREAMBLE = 11
_FORMAT_TAR = 0
_CHECKSUM_XXHASH = 1
_SEED = 1103515245
"""AIStore's usual one, its MLCG32 constant."""

_BLOCK = 512
_PAX = 2 * _BLOCK
"""A pax header with a short payload, or the same for a long name."""
_NAME_FIELD = 100
_OTHER_RECORDS = 128
"""Room for what else a pax header of a long name usually says: times, owners."""
_END_MARK = 2 * _BLOCK
_RECORD = 20 * _BLOCK

_Entry = tuple[int, int, bytes]
"""Offset of the header, size, name."""


def parse_indexed_version(data: bytes) -> tuple[str, int] | None:
    """Return checksum and size of the shard that an index was built from; None if it makes no sense.

    The first `HEAD_BYTES` bytes of the index are enough. They are not checked against damage.
    """
    try:
        _, at = _text(data, _PREAMBLE)
        checksum, at = _text(data, at)
        size, _ = _uvarint(data, at)
    except (_Nonsense, IndexError):
        return None
    return checksum.decode(errors="replace"), size


def decode_shard_index(data: bytes, expected: ObjectInfo) -> MemberIndex | None:
    """Return the members of exactly this version of a shard, in the order of the tar.

    None when the index is damaged, belongs to another version (both must know a checksum), or when
    the shard has, or may have, members that the index leaves out: then the shard is to be scanned.
    """
    payload = _payload(data)
    if payload is None:
        return None
    try:
        entries = _entries(payload, expected)
    except (_Nonsense, IndexError):
        return None
    entries.sort(key=itemgetter(0))
    leads = _leads(entries, expected.size)
    if not leads:
        return None
    rows = MemberIndexBuilder(expected.size)
    rows.extend(
        [name for _, _, name in entries],
        [header + _BLOCK for header, _, _ in entries],
        leads,
        [size for _, size, _ in entries],
        [expected.mtime_ns] * len(entries),
        bytes(len(entries)),
    )
    return rows.build().stripped()


# Reading -------------------------------------------------------------------------------------


class _Nonsense(Exception):
    """The payload ends too soon, or is of another shard."""


def _payload(data: bytes) -> bytes | None:
    """Return what follows the preamble, if that is one we know and the checksum holds."""
    if not _PREAMBLE < len(data) <= MAX_BYTES or data[0] not in (1, 2):
        return None
    if (data[1], data[2]) != (_FORMAT_TAR, _CHECKSUM_XXHASH):
        return None
    seed = _SEED
    if data[0] == 2:  # since then the checksum covers the bytes before it, too
        seed |= data[0] << 32 | data[1] << 40 | data[2] << 48
    payload = data[_PREAMBLE:]
    stated = int.from_bytes(data[3:_PREAMBLE], "big")
    return payload if xxh64_intdigest(payload, seed) == stated else None


def _entries(payload: bytes, expected: ObjectInfo) -> list[_Entry]:
    """Decode the payload.

    Raises:
        _Nonsense: it is damaged, or of another version of the shard.
        IndexError: it ends inside a number.
    """
    kind, at = _text(payload, 0)
    checksum, at = _text(payload, at)
    size, at = _uvarint(payload, at)
    known = expected.checksum.partition(":")[2]
    # The type is not compared: listings cannot tell the one of objects older than a change of it.
    if not kind or kind == b"none" or not known or checksum != known.encode(errors="replace"):
        raise _Nonsense
    if size != expected.size:
        raise _Nonsense
    count, at = _uvarint(payload, at)
    if count > _MAX_ENTRIES or count * 3 > len(payload) - at:
        raise _Nonsense
    entries: list[_Entry] = []
    for _ in range(count):
        name, at = _text(payload, at)
        header, at = _uvarint(payload, at)
        length, at = _uvarint(payload, at)
        entries.append((header, length, name))
    if at != len(payload):
        raise _Nonsense
    return entries


def _text(payload: bytes, at: int) -> tuple[bytes, int]:
    length = payload[at]
    at += 1
    if length > 127:
        length, at = _uvarint(payload, at - 1)
    stop = at + length
    if stop > len(payload):
        raise _Nonsense
    return payload[at:stop], stop


def _uvarint(payload: bytes, at: int) -> tuple[int, int]:
    value = payload[at]
    if value < 128:
        return value, at + 1
    value &= 127
    for place in range(1, 9):  # nine times seven bits: what fits an int64
        byte = payload[at + place]
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value, at + place + 1
    raise _Nonsense


# Judging -------------------------------------------------------------------------------------


def _leads(entries: list[_Entry], object_size: int) -> list[int]:
    """Return each member's header blocks; nothing when something is, or may be, left out."""
    leads: list[int] = []
    usual: int | None = None
    end = 0
    for header, size, name in entries:
        gap = header - end
        if len(name) <= _NAME_FIELD:
            if usual is None:
                usual = gap
            if gap != usual or gap not in (0, _PAX):
                return []
        elif gap and not _long_name_gap(len(name)) <= gap <= _long_name_gap(
            len(name) + _OTHER_RECORDS
        ):
            return []
        if gap % _BLOCK or gap // _BLOCK >= MAX_LEAD:
            return []
        leads.append(gap // _BLOCK + 1)
        end = header + _BLOCK + _padded(size)
    rest = object_size - end
    recorded = object_size % _RECORD == 0 and _END_MARK <= rest < _END_MARK + _RECORD
    return leads if rest == _END_MARK or recorded else []


def _long_name_gap(length: int) -> int:
    """Return the space of a header whose payload has that length and a bit."""
    return _BLOCK + _padded(length + 1)


def _padded(size: int) -> int:
    return (size + _BLOCK - 1) & -_BLOCK
