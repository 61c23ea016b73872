"""Whether text gives an answer away, by comparing normal forms as spans of whole tokens."""

from __future__ import annotations

import collections
import re
from collections.abc import Sequence

from spade_jax.envs import parsers

_TOKEN = re.compile(r"\d+(?:,\d{3})+(?:\.\d+)?|\d+\.\d+|\d+|[^\W\d_]+")
_MINUS = re.compile(r"(?:^|[^\w)])-$")
_LABEL = re.compile(
    r"\b(?:answer|solution|secret|password|expected|hidden)(?:[ _]\w+)?\s*(?:is|are|was|=|:)\s*",
    re.IGNORECASE,
)
_WRAPPERS = re.compile(r"\\boxed\s*\{|\\fbox\s*\{|</?(?:answer|tool_call)>")
_MAX_SPAN = 3  # tokens of an answer that a copying policy reads off


def tokens(text: str) -> tuple[str, ...]:
    """The normal form of a text: words case-folded, numbers canonical, the rest dropped.

    A minus sign directly before a number and after no word or number belongs to it.
    """
    text = _WRAPPERS.sub(" ", text).casefold()
    found = []
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token[0].isdecimal():
            number = float(token.replace(",", ""))
            negative = _MINUS.search(text[max(0, match.start() - 2) : match.start()])
            token = f"{-number if negative else number:.15g}"
        found.append(token)
    return tuple(found)


def contains(text: Sequence[str], span: Sequence[str]) -> bool:
    """Whether `span` occurs in `text` as neighbouring tokens; an empty span never does."""
    n = len(span)
    return n > 0 and any(tuple(text[i : i + n]) == tuple(span) for i in range(len(text) - n + 1))


def final_answer(solution: Sequence[str]) -> tuple[str, ...]:
    """Normal form of a solution's last action: of its `<answer>` where it has one."""
    last = solution[-1]
    return tokens(parsers.answer(last) or last)


def hint_leaks(hint: str, solution: Sequence[str], observation: str) -> bool:
    """Whether the hint holds the answer.

    One action: its normal form appears in the hint. Several: the last one appears in the hint and
    not in the first observation, or the whole sequence appears, other words aside, in a row.
    """
    if not solution:
        return False
    said, answer = tokens(hint), final_answer(solution)
    if len(solution) == 1:
        return contains(said, answer)
    if contains(said, answer) and not contains(tokens(observation), answer):
        return True
    sequence = [token for action in solution for token in tokens(action)]
    known = set(sequence)
    return contains([token for token in said if token in known], sequence)


def labelled_answer(observation: str, solution: Sequence[str]) -> bool:
    """Whether a label such as `answer:` in the observation is followed by the answer."""
    answer = final_answer(solution)
    return any(
        tokens(observation[match.end() :])[: len(answer)] == answer
        for match in _LABEL.finditer(observation)
        if answer
    )


def copied_share(observations: Sequence[str], solutions: Sequence[Sequence[str]]) -> float:
    """How much a policy wins by reading the answer off one fixed place of the observation.

    A place is a token's index from the front or from the back; the best place counts. Answers
    among options the task states do not add up: either their place changes from instance to
    instance, or the text at the place is always the same, and then the most common one, which a
    constant policy would play as well, is taken off.
    """
    hits: dict[int, collections.Counter[tuple[str, ...]]] = collections.defaultdict(
        collections.Counter
    )
    for observation, solution in zip(observations, solutions, strict=True):
        seen, answer = tokens(observation), final_answer(solution)
        n = len(answer)
        if not 0 < n <= _MAX_SPAN:
            continue
        found = [i for i in range(len(seen) - n + 1) if seen[i : i + n] == answer]
        for place in {place for i in found for place in (i, i - len(seen))}:
            hits[place][answer] += 1
    beyond_constant = (place.total() - max(place.values()) for place in hits.values())
    return max(beyond_constant, default=0) / max(1, len(observations))
