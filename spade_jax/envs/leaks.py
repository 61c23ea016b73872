"""Whether text gives an answer away, by comparing normal forms as spans of whole tokens."""

from __future__ import annotations

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
    not in the first observation, or the whole sequence appears in a row.
    """
    if not solution:
        return False
    said, answer = tokens(hint), final_answer(solution)
    if len(solution) == 1:
        return contains(said, answer)
    if contains(said, answer) and not contains(tokens(observation), answer):
        return True
    return contains(said, [token for action in solution for token in tokens(action)])


def labelled_answer(observation: str, solution: Sequence[str]) -> bool:
    """Whether a label such as `answer:` in the observation is followed by the answer."""
    answer = final_answer(solution)
    return any(
        tokens(observation[match.end() :])[: len(answer)] == answer
        for match in _LABEL.finditer(observation)
        if answer
    )


def copied_share(observations: Sequence[str], solutions: Sequence[Sequence[str]]) -> float:
    """Win share of the best policy that reads the answer off one fixed place of the observation.

    A place is a token's index from the front or from the back. Answers among options the task
    states stand in a place that changes from instance to instance, so they do not count.
    """
    hits: dict[int, int] = {}
    for observation, solution in zip(observations, solutions, strict=True):
        seen, answer = tokens(observation), final_answer(solution)
        n = len(answer)
        if not 0 < n <= _MAX_SPAN:
            continue
        places: set[int] = set()
        for i in range(len(seen) - n + 1):
            if seen[i : i + n] == answer:
                places |= {i, i - len(seen)}
        for place in places:
            hits[place] = hits.get(place, 0) + 1
    return max(hits.values(), default=0) / max(1, len(observations))
