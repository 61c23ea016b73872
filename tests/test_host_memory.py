"""Host memory: what is allocated shows."""

import numpy as np

from spade_jax import host_memory


def test_what_is_allocated_counts_and_its_peak_stays() -> None:
    before = host_memory.resident()
    block = np.ones(2**26, np.uint8)
    held, peak = host_memory.resident(), host_memory.peak()
    assert 60 * 2**20 < held - before < 80 * 2**20
    assert peak >= held - 2**20
    del block
    assert host_memory.resident() < held - 60 * 2**20
    assert host_memory.peak() >= peak
