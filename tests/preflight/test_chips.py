"""Slices by name: published facts, and sentences where there is none."""

import pytest

from spade_jax.preflight import chips
from spade_jax.types import UsageError


def test_a_device_has_its_share_of_a_chip() -> None:
    """Ironwood shows two devices a chip, v4 one of two cores."""
    two, one = chips.device("tpu7x:2x2x1"), chips.device("v4:2x2x1")
    assert (two.hbm, two.flops) == (96 * 2**30, 2307e12 / 2)
    assert (one.hbm, one.flops, one.bandwidth) == (32 * 2**30, 275e12, 1228e9)


def test_programs_get_no_more_than_there_is_but_for_a_percent() -> None:
    """Of v5p the page says 95 GiB and the compiler 95.73."""
    for kind, chip in chips.CHIPS.items():
        assert 0.9 < chip.granted / chip.hbm < 1.01, kind


@pytest.mark.parametrize(
    "name", ["v9:2x2", "v5p", "v5p:", "v5e:2", "v5e:0x2", "V5E:2x2", "v5e:2x2x"]
)
def test_an_unknown_topology_lists_those_there_are(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        chips.device(name)
    told = str(caught.value)
    assert f"no topology {name!r}" in told and "\n" not in told
    assert all(f"{kind}:" in told for kind in ("v4", "v5e", "v5p", "v6e", "tpu7x"))
    assert "16x16" in told and "4x4x4" in told


@pytest.mark.parametrize(
    ("name", "hosts", "part"),
    [
        ("v5p:4x4x4", 1, "v5p:2x2x1"),
        ("v5p:4x4x4", 2, "v5p:2x2x2"),
        ("v6e:8x8", 1, "v6e:2x2"),
        ("v6e:8x8", 2, "v6e:2x4"),
        ("v5e:16x16", 4, "v5e:4x4"),
        ("v5e:1x1", 1, "v5e:1x1"),
    ],
)
def test_some_hosts_of_a_slice(name: str, hosts: int, part: str) -> None:
    assert chips.part(name, hosts) == part


def test_so_many_hosts_are_no_slice() -> None:
    with pytest.raises(UsageError, match="per_replica is 3, but no slice of v5e"):
        chips.part("v5e:16x16", 3)


def test_the_compiler_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chips.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"libtpu.*pip install 'spade_jax\[tpu\]'"):
        chips.check_compiler()
