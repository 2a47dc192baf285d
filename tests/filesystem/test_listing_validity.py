"""The kernel never keeps a listing longer than it may: played with a kernel that obeys its own rules."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from aisfs.filesystem.inodes import ListingValidity

TTL = 10.0
TICK = 1e-6
"""What the clock moves by between two messages at least."""
INO = 5


@dataclass
class Server:
    """A daemon that lists anew when its listing is too old, or was dropped."""

    now: float = 0.0
    expires: float | None = None
    number: int = 0

    def listing(self) -> float | None:
        return self.expires if self.expires is not None and self.now < self.expires else None

    def list(self) -> tuple[int, float]:
        if self.listing() is None:
            self.expires = self.now + TTL
            self.number += 1
        assert self.expires is not None
        return self.number, self.expires


@dataclass
class Kernel:
    """What fuse_readdir_cached does: ask for attributes that are too old, compare the mtime."""

    attr_until: float = -1.0
    mtime: float | None = None
    cached: tuple[float | None, int, float] | None = None
    """mtime at the listing, which listing, and until when it may be believed."""

    def readdir(self, server: Server, beliefs: ListingValidity) -> float:
        self.stat(server, beliefs)
        if self.cached is not None and self.cached[0] != self.mtime:
            self.cached = None
        if self.cached is None:
            number, expires = server.list()
            beliefs.listed(INO, expires)
            self.cached = (self.mtime, number, expires)
        return self.cached[2]

    def stat(self, server: Server, beliefs: ListingValidity) -> None:
        if server.now >= self.attr_until:
            self.mtime, timeout = beliefs.of(INO, server.listing())
            self.attr_until = server.now + timeout


STEPS = st.tuples(
    st.sampled_from(["readdir", "readdir", "stat", "lookup", "drop", "forget"]),
    st.sampled_from([0.0, 0.5, 1.0, 5.0, 9.5, 10.0]),
)
"""What happens, and how long after what happened before."""


@given(st.lists(STEPS, max_size=60))
@settings(max_examples=500, deadline=None)
def test_a_listing_is_never_kept_for_too_long(steps: list[tuple[str, float]]):
    server, kernel = Server(), Kernel()
    beliefs = ListingValidity(lambda: server.now, TTL)
    for step, seconds in steps:
        server.now += seconds + TICK
        match step:
            case "readdir":
                assert server.now < kernel.readdir(server, beliefs)
            case "stat":
                kernel.stat(server, beliefs)
            case "lookup":
                server.list()
            case "drop":  # and the kernel is told
                server.expires = None
                beliefs.dropped(INO)
                kernel.cached, kernel.attr_until = None, -1.0
            case "forget":
                beliefs.forgotten(INO)
                kernel = Kernel()


def test_a_listing_is_kept_as_long_as_it_may():
    server, kernel = Server(), Kernel()
    beliefs = ListingValidity(lambda: server.now, TTL)
    kernel.readdir(server, beliefs)
    for _ in range(9):
        server.now += 1.0
        kernel.readdir(server, beliefs)
    assert server.number == 1
    server.now += 2.0
    kernel.readdir(server, beliefs)
    assert server.number == 2


@given(st.lists(STEPS, max_size=60))
@settings(max_examples=500, deadline=None)
def test_a_kernel_that_asks_at_each_open_never_keeps_a_listing_for_too_long(
    steps: list[tuple[str, float]],
):
    """In a mount that can be written, where the mtime says nothing of listings."""
    server = Server()
    beliefs = ListingValidity(lambda: server.now, TTL)
    held: float | None = None
    for step, seconds in steps:
        server.now += seconds + TICK
        match step:
            case "readdir":
                if beliefs.take_expired(INO):
                    held = None
                assert not beliefs.take_expired(INO), "it would drop what it lists now"
                if held is None:
                    _, held = server.list()
                    beliefs.listed(INO, held)
                assert server.now < held
            case "lookup":
                server.list()
            case "drop":  # and the kernel may not have been told yet
                server.expires = None
                beliefs.dropped(INO)
            case "forget":
                beliefs.forgotten(INO)
                held = None
