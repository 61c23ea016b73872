"""How much a hint helps in an environment: the gap of two arms on the same instances."""

from __future__ import annotations

import math
from collections.abc import Sequence

from spade_jax.types import Episode, Regret


def paired_regret(plain: Sequence[Episode], hinted: Sequence[Episode]) -> Regret:
    """Mean over paired seeds of hinted minus plain return, unfloored (arXiv 2608.19197).

    mean = sum(d) / n and stderr = sqrt(sum((d - mean)^2) / (n - 1) / n) over the n valid pairs'
    differences d. A pair is one play's number and seed in both arms; what only one arm played
    makes none. A pair with a failed arm, without a hint, or whose hint holds the answer, is
    dropped. No valid pair: the mean is None, which is not 0.
    """
    plain_by_play, hinted_by_play = _by_play(plain), _by_play(hinted)
    differences = [
        episode.episode_return - plain_by_play[key].episode_return
        for key, episode in hinted_by_play.items()
        if key in plain_by_play
        and episode.episode_return is not None
        and plain_by_play[key].episode_return is not None
        and episode.hint is not None
        and not episode.hint_leaks
    ]
    n = len(differences)
    if n == 0:
        return Regret(mean=None, stderr=None, pairs=0)
    mean = math.fsum(differences) / n
    if n == 1:
        return Regret(mean=mean, stderr=None, pairs=1)
    variance = math.fsum((d - mean) ** 2 for d in differences) / (n - 1)
    return Regret(mean=mean, stderr=math.sqrt(variance / n), pairs=n)


def pool_regrets(regrets: Sequence[Regret]) -> Regret:
    """The regret of all environments' pairs taken as one sample.

    mean = sum(n_i m_i) / n, and the standard error that of all n differences, recovered from
    each environment's mean m_i, standard error and number of pairs n_i.
    """
    known = [r for r in regrets if r.mean is not None]
    pairs = sum(r.pairs for r in known)
    if not pairs:
        return Regret(mean=None, stderr=None, pairs=0)
    mean = math.fsum(r.pairs * r.mean for r in known) / pairs
    squares = math.fsum(
        r.pairs * (r.mean - mean) ** 2 + (r.stderr or 0.0) ** 2 * r.pairs * (r.pairs - 1)
        for r in known
    )
    stderr = math.sqrt(squares / (pairs - 1) / pairs) if pairs > 1 else None
    return Regret(mean=mean, stderr=stderr, pairs=pairs)


def _by_play(episodes: Sequence[Episode]) -> dict[tuple[int, int], Episode]:
    """Episodes of one environment and arm by number and instance seed, which must not repeat.

    Seeds alone may: they are hashes, and a long run meets two that are equal.
    """
    by_play = {(episode.play, episode.seed): episode for episode in episodes}
    if len(by_play) != len(episodes):
        raise ValueError("a play is there twice in one arm; pairs need each play once")
    return by_play
