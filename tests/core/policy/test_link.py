"""What requests show of their link."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aisfs.core.policy.link import LARGE, SAMPLES, SMALL, LinkEstimate


def carry(link: LinkEstimate, lengths: list[int], latency: float, rate: float) -> None:
    """Send requests one after the other over a link without any others."""
    for length in lengths:
        link.observe(length, latency + length / rate, link.arrived)


def test_nothing_is_known_of_a_link_that_carried_nothing():
    link = LinkEstimate()
    assert (link.latency, link.rate) == (None, None)
    carry(link, [SMALL], 0.01, 1e9)
    assert link.rate is None
    carry(link, [LARGE], 0.01, 1e9)
    assert link.rate is not None


@given(
    latency=st.floats(0.0001, 0.5),
    rate=st.floats(1e6, 2e9),
    lengths=st.lists(st.sampled_from([512, 16 << 10, LARGE, 8 << 20]), min_size=1, max_size=40),
)
def test_requests_one_by_one_show_latency_and_rate(latency, rate, lengths):
    link = LinkEstimate()
    carry(link, [512, *lengths, 8 << 20], latency, rate)
    assert link.latency == pytest.approx(latency, abs=SMALL / rate)
    # Of a large request that is mostly latency, a quarter at least counts as transfer.
    assert link.rate is not None
    assert link.rate <= rate * 1.5 + LARGE / latency


@given(st.integers(2, 16), st.floats(1e6, 1e9))
def test_rate_is_that_of_all_requests_together(at_once, rate):
    """Requests that share a link land together; each lasts as long as all their bytes."""
    link = LinkEstimate()
    for _ in range(SAMPLES):
        before = link.arrived
        for _ in range(at_once):
            link.observe(8 << 20, at_once * (8 << 20) / rate, before)
    assert rate / at_once <= link.rate <= rate * 1.01
    assert link.rate > rate / 2.1


def test_link_that_became_slower_is_noticed():
    link = LinkEstimate()
    carry(link, [512, 8 << 20] * SAMPLES, 0.001, 1e9)
    carry(link, [512, 8 << 20] * SAMPLES, 0.1, 1e7)
    assert link.latency == pytest.approx(0.1, rel=0.01)
    assert link.rate == pytest.approx(1e7, rel=0.2)
