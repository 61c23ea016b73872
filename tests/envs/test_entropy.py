"""Clocks and randomness follow from the seed, in every process and under every hash salt."""

import ctypes

import pytest

from spade_jax.envs.sandbox import Reset, Sandbox, Step
from spade_jax.types import Kind
from tests.envs.programs import game

READ = """
import datetime, os, random, secrets, time, uuid
import numpy as np

def read():
    values = [time.time(), time.monotonic_ns(), time.perf_counter(), time.strftime('%c')]
    values += [datetime.datetime.now(), datetime.date.today(), datetime.datetime.utcnow()]
    values += [os.urandom(4), uuid.uuid4(), secrets.token_hex(4), random.SystemRandom().random()]
    values += [random.random(), random.Random().random(), np.random.rand()]
    values += [np.random.default_rng().random(), os.getpid(), os.times()]
    return repr(values)
"""


def test_the_same_seed_shows_the_same_world() -> None:
    with Sandbox() as box:
        code = game(top=READ, step="observation = read()")
        instances = [box.open(code, Kind.GAME, salt) for salt in (0, 0, 1)]
        box.exchange([(instance, Reset(3)) for instance in instances])
        first, second, salted = box.exchange([(one, Step("x")) for one in instances])
        assert first == second == salted
        box.exchange([(instances[0], Reset(4)), (instances[1], Reset(3))])
        other, again = box.exchange([(one, Step("x")) for one in instances[:2]])
        assert again == first
        assert other != first


def test_clocks_go_on_and_dates_stay_dates() -> None:
    code = game(
        top="import datetime, time",
        step="a = time.time(); b = time.time(); now = datetime.datetime.now(); "
        "observation = f'{b - a:.3f} {2019 < now.year < 2026} {isinstance(now, datetime.date)} "
        "{datetime.datetime(2020, 1, 2)!r} {now - now}'",
    )
    with Sandbox() as box:
        one = box.open(code, Kind.GAME)
        box.exchange([(one, Reset(1))])
        [answer] = box.exchange([(one, Step("x"))])
    assert answer.observation == "0.001 True True datetime.datetime(2020, 1, 2, 0, 0) 0:00:00"


def test_addresses_are_the_same_in_fresh_processes_but_under_another_salt() -> None:
    """Another salt is how the validator finds out what must not be shown."""
    before = ctypes.CDLL(None).personality(0xFFFFFFFF)
    if ctypes.CDLL(None).personality(before | 0x0040000) < 0:
        pytest.skip("this container does not let addresses be fixed")
    ctypes.CDLL(None).personality(before)
    code = game(
        top="class Thing:\n    pass",
        step="things = {Thing() for _ in action}\n"
        "observation = f'{object()!r} {Thing()!r} {[id(thing) for thing in things]}'",
    )
    shown = []
    for salt in (0, 0, 1, 1):
        with Sandbox() as box:
            one = box.open(code, Kind.GAME, salt)
            box.exchange([(one, Reset(3))])
            [answer] = box.exchange([(one, Step("x" * 30))])
            shown.append(answer.observation)
    assert shown[0] == shown[1]
    assert len(set(shown)) == 3
