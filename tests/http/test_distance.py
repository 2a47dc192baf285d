"""How far a peer is, by its address."""

from aisfs.http.exchange import Distance, distance
from tests.support.for_each import for_each

OWN = "10.0.0.5"


@for_each(
    "peer, found",
    [
        ("127.0.0.1", Distance.MACHINE),
        ("127.8.8.8", Distance.MACHINE),
        ("0.0.0.0", Distance.MACHINE),
        ("::1", Distance.MACHINE),
        ("::", Distance.MACHINE),
        ("::ffff:127.0.0.1", Distance.MACHINE),
        ("169.254.169.254", Distance.MACHINE),
        ("::ffff:169.254.169.254", Distance.MACHINE),
        ("fe80::1%eth0", Distance.MACHINE),
        (OWN, Distance.MACHINE),
        ("10.0.0.6", Distance.NETWORK),
        ("172.16.0.1", Distance.NETWORK),
        ("192.168.1.1", Distance.NETWORK),
        ("::ffff:192.168.1.1", Distance.NETWORK),
        ("100.100.100.200", Distance.NETWORK),
        ("fd00:ec2::254", Distance.NETWORK),
        ("8.8.8.8", Distance.WORLD),
        ("172.32.0.1", Distance.WORLD),
        ("2606:4700::1111", Distance.WORLD),
    ],
)
def test_addresses(peer: str, found: Distance):
    assert distance(peer, OWN) is found
