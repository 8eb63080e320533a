"""Where weights are while programs are timed."""

import pytest

from retune.compiler.measure.options import network_options

CACHE = 32 << 20


@pytest.mark.parametrize(
    ("megabytes", "weights", "pool"),
    [
        (14, "auto", 0),
        (46, "auto", 46),
        (400, "auto", 64),
        (14, "memory", 64),
        (46, "memory", 46),
        (46, "cached", 0),
    ],
)
def test_weights_come_from_memory_when_the_networks_exceed_the_cache(megabytes: int, weights: str, pool: int) -> None:
    options = network_options(2, megabytes << 20, weights, CACHE)
    assert (options.threads, options.rotate_bytes) == (2, pool << 20)
