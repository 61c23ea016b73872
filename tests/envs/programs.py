"""Programs that tests run in the sandbox: a good one of each kind, and ways to make bad ones."""

import textwrap

SUM = """
import random


class SumEnv:
    def reset(self, seed=None):
        rng = random.Random(seed)
        self.a = rng.randint(11, 99)
        self.b = rng.randint(11, 99)
        self.answer = str(self.a + self.b)
        return f"Bees: add {self.a} and {self.b}.", {}

    def step(self, action):
        return "Done.", float(action.strip() == self.answer), True, False, {}

    def hint(self):
        return f"The tens make {self.a // 10 * 10 + self.b // 10 * 10}."

    def solution(self):
        return [self.answer]
"""

SEARCH = """
import random


class SearchEnv:
    def reset(self, seed=None):
        self.answer = random.Random(seed).randint(1, 100)
        self.left = 7
        return "Find the number from 1 to 100.", {}

    def step(self, action):
        self.left -= 1
        guess = int(action) if action.isdecimal() else 0
        if guess == self.answer or self.left == 0:
            return "Done.", float(guess == self.answer), True, False, {}
        return "Higher." if guess < self.answer else "Lower.", 0.0, False, False, {}

    def hint(self):
        low = self.answer // 20 * 20
        return f"It lies in twenty {low // 20 + 1} of five."

    def solution(self):
        low, high, guesses = 1, 100, []
        while True:
            guess = (low + high) // 2
            guesses.append(str(guess))
            if guess == self.answer:
                return guesses
            low, high = (guess + 1, high) if guess < self.answer else (low, guess - 1)
"""

CHAIN = """
import random


class ChainEnv(ToolUseBaseEnv):
    max_turns = 4

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.people = rng.sample(["ann", "bob", "cid", "dee", "eli", "fay", "gus", "hal"], 8)
        self.cities = rng.sample(["oslo", "rome", "lima", "cairo", "paris", "delhi", "quito"], 7)
        self.who = self.people[0]
        self.boss = self.people[1]
        self._expected_answer = self.cities[0] + str(rng.randint(10, 99))
        return f"Tools: boss(name), city(name). Where does the boss of {self.who} live?", {}

    def tool_boss(self, name):
        return self.boss if name == self.who else "unknown"

    def tool_city(self, name):
        return self._expected_answer if name == self.boss else "unknown"

    def hint(self):
        return f"The boss is {self.boss}."

    def solution(self):
        return [
            '<tool_call>{"name": "boss", "arguments": {"name": "%s"}}</tool_call>' % self.who,
            '<tool_call>{"name": "city", "arguments": {"name": "%s"}}</tool_call>' % self.boss,
            f"<answer>{self._expected_answer}</answer>",
        ]
"""


def game(*, top: str = "", init: str = "pass", reset: str = "pass", step: str = "pass") -> str:
    """A game with statements put in at import, in the constructor, in reset or in step."""
    init, reset, step = (textwrap.indent(text, " " * 8).lstrip() for text in (init, reset, step))
    return f"""
import random
{top}
class BadEnv:
    def __init__(self):
        {init}
    def reset(self, seed=None):
        self.n = 0
        self.r = random.Random(seed).randint(0, 10**9)
        {reset}
        return "go", {{}}
    def step(self, action):
        reward = 0.0
        observation = f"got {{action}}"
        {step}
        self.n += 1
        return observation, reward, False, False, {{}}
"""
