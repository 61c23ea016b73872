"""How much programs resemble one another, and what is refused for resembling an earlier one.

The resemblance of two programs is the Jaccard index of the sets of runs of five words in their
syntax trees, in which names and literals have lost what tells them apart; it is estimated with
MinHash (Broder, "On the resemblance and containment of documents", 1997). Exact repetition is
caught elsewhere, by fingerprint and behaviour (`envs.validation`).
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Sequence

import numpy as np

from spade_jax.envs import fingerprint
from spade_jax.types import Design, MemoryRecord, Reason, Verdict

RUN = 5  # words of a run
PERMUTATIONS = 128  # the standard error of a resemblance r is sqrt(r (1 - r) / 128)

_OWN_NAME = re.compile(r"(?:^|(?<=^def ))([av])\d+$")
_NUMBER = re.compile(r"^(int|float|complex) .*")
_MESSAGE = (
    "The environment resembles {nearest} in {share:.0%} of its code, and no more than {quota} such "
    "near-duplicates are taken at a time; write one with another task or other rules."
)


def refuse_near_duplicates(
    designs: Sequence[Design],
    verdicts: Sequence[Verdict],
    memory: Sequence[MemoryRecord],
    *,
    threshold: float,
    quota: int,
) -> list[Verdict]:
    """Verdicts with what every accepted design resembles most, those beyond the quota rejected.

    It is compared with the environments remembered and with those accepted before it. From
    `threshold` on it is a near-duplicate, of which the first `quota` are accepted; a threshold of 1
    refuses none.
    """
    names = [record.environment_id for record in memory]
    known = [signature(record.code) for record in memory]
    judged, near = [], 0
    for design, verdict in zip(designs, verdicts, strict=True):
        if verdict.accepted:
            own = signature(design.code)
            if known:
                shares = resemblances(own, known)
                i = int(shares.argmax())
                verdict = dataclasses.replace(verdict, resemblance=float(shares[i]))
                if threshold <= shares[i] and threshold < 1:
                    verdict = dataclasses.replace(verdict, resembles=names[i])
                    near += 1
            if verdict.resembles and near > quota:
                message = _MESSAGE.format(
                    nearest=verdict.resembles, share=verdict.resemblance, quota=quota
                )
                verdict = dataclasses.replace(
                    verdict, reason=Reason.NEW, message=message, phase="pool"
                )
            else:
                names.append(design.task.environment_id)
                known.append(own)
        judged.append(verdict)
    return judged


def diversity(codes: Sequence[str]) -> float | None:
    """Mean over all pairs of 1 - resemblance; None with fewer than two programs."""
    if len(codes) < 2:
        return None
    signatures = np.stack([signature(code) for code in codes])
    n = len(signatures)
    shared = sum(resemblances(own, signatures).sum() for own in signatures) - n
    return 1.0 - float(shared) / (n * (n - 1))


def resemblances(own: np.ndarray, others: Sequence[np.ndarray]) -> np.ndarray:
    """Of one signature to each of the others, from 0 to 1."""
    return (np.stack(others) == own).mean(axis=1)


@functools.lru_cache(maxsize=2048)
def signature(code: str) -> np.ndarray:
    """PERMUTATIONS numbers; two programs have as large a share of them in common as of runs.

    The same in every process. SyntaxError for code that cannot be read.
    """
    from datasketch import MinHash  # here, since it loads scipy: half a second

    words = [plain for word in fingerprint.words(code) if (plain := _plain(word)) not in (";", ")")]
    runs = {" ".join(words[i : i + RUN]) for i in range(max(1, len(words) - RUN + 1))}
    sketch = MinHash(num_perm=PERMUTATIONS, seed=1, scheme="affine32")
    sketch.update_batch([run.encode("utf-8", "replace") for run in sorted(runs)])
    values = sketch.digest()
    values.setflags(write=False)
    return values


def _plain(word: str) -> str:
    """The word without which of the program's names, or what number, it is."""
    return _NUMBER.sub(r"\1", _OWN_NAME.sub(r"\1", word))
