"""The nouns of the method, in the order in which an iteration meets them.

Standard library only: environments, parsers and the sandbox import this module and must never load
jax. Device arrays live in `policy` and `learn`. Everything is frozen; a change is a new value.

Letters for array dimensions, used as suffixes everywhere (`tokens_BT`):
B sequence, T token, D model, H query head, K key/value head, C head size, F feed-forward,
V vocabulary, L layer, S cache slot, X expert, P expert picked by a token, E environment, G play in
a group; N and M are tokens and picks of all sequences in one axis.
"""

from __future__ import annotations

import dataclasses
import enum
import re

dataclass = dataclasses.dataclass(frozen=True, kw_only=True)


# -- who and what -----------------------------------------------------------------------------


class UsageError(ValueError):
    """A mistake the user can mend: one sentence that says what is wrong and what to do.

    Programs print it and exit with code 2.
    """


class Kind(enum.StrEnum):
    """What an environment is: a reasoning game, or a conversation with tools."""

    GAME = "game"
    TOOL_USE = "tool_use"


class Role(enum.StrEnum):
    """The two roles one set of weights plays."""

    DESIGNER = "designer"
    AGENT = "agent"


class Arm(enum.StrEnum):
    """Whether an episode's first observation carries the environment's hint."""

    PLAIN = "plain"
    HINTED = "hinted"


# -- what the policy reads and writes ---------------------------------------------------------


@dataclass
class Message:
    """One message of a conversation; `role` is system, user, assistant or tool."""

    role: str
    content: str


class StopReason(enum.StrEnum):
    """Why a generation ended: the model's stop token, or the token budget."""

    STOP = "stop"
    LENGTH = "length"


@dataclass
class TokenRecord:
    """The ids of one conversation, append-only: what is trained is what was sampled.

    `action[t]` is true where the policy itself sampled `ids[t]` (its stop token included). There
    `logp[t]` is the log-probability at the sampling temperature, and `behaviour[t]` the one it was
    sampled with, which differs where top-p, top-k or min-p left tokens out. Elsewhere both are 0.
    """

    ids: tuple[int, ...] = ()
    action: tuple[bool, ...] = ()
    logp: tuple[float, ...] = ()
    behaviour: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.action) == len(self.logp) == len(self.behaviour):
            raise ValueError(
                f"a TokenRecord needs equal lengths, got {len(self.ids)} ids, "
                f"{len(self.action)} action flags, {len(self.logp)} and {len(self.behaviour)} "
                "log-probabilities"
            )

    def read(self, ids: tuple[int, ...]) -> TokenRecord:
        """Append tokens the policy did not write."""
        n = len(ids)
        return TokenRecord(
            ids=self.ids + tuple(ids),
            action=self.action + (False,) * n,
            logp=self.logp + (0.0,) * n,
            behaviour=self.behaviour + (0.0,) * n,
        )

    def wrote(
        self,
        ids: tuple[int, ...],
        logp: tuple[float, ...],
        behaviour: tuple[float, ...] | None = None,
    ) -> TokenRecord:
        """Append tokens the policy sampled; without `behaviour` all tokens could be sampled."""
        return TokenRecord(
            ids=self.ids + tuple(ids),
            action=self.action + (True,) * len(ids),
            logp=self.logp + tuple(logp),
            behaviour=self.behaviour + tuple(logp if behaviour is None else behaviour),
        )


@dataclass
class Generation:
    """One reply of the policy: `ids` end with the stop token when `stop` is STOP.

    Where the ids are not known, `tokens` is how many whoever replied says they are.
    """

    ids: tuple[int, ...]
    logp: tuple[float, ...]
    text: str
    stop: StopReason
    tokens: int | None = dataclasses.field(default=None, compare=False)


# -- designing --------------------------------------------------------------------------------


@dataclass
class Document:
    """A grounding document. `id` is unique and stable within its corpus."""

    id: str
    text: str


@dataclass
class MemoryRecord:
    """What is remembered of one environment. Win rate and regret are None while unknown.

    `seeds` are the ids of the good examples its designer was shown, and `document` that of what it
    read.
    """

    environment_id: str
    skill: str
    code: str
    fingerprint: str
    iteration: int
    win_rate: float | None = None
    regret: float | None = None
    seeds: tuple[str, ...] = ()
    document: str | None = None


@dataclass
class DesignTask:
    """What one design prompt is made from. Tasks of equal `prompt` share theirs."""

    iteration: int
    slot: int
    skill: str
    kind: Kind
    document: Document | None
    positives: tuple[MemoryRecord, ...] = ()
    negatives: tuple[MemoryRecord, ...] = ()
    prompt: str = ""

    @property
    def environment_id(self) -> str:
        return f"{self.iteration:06d}-{self.slot:03d}"


_CLASS = re.compile(r"\bclass[ \t]+(\w*Env)\b")


def class_name(code: str) -> str:
    """What a program calls its environment: its last class ...Env; "" where there is none."""
    return (_CLASS.findall(code) or [""])[-1]


CUT_OFF = ""  # in place of a program that was begun and not finished


@dataclass
class Design:
    """The designer's reply. `code` is None where it held no program, or CUT_OFF.

    `hint` is the one written beside the program, where that was asked for. After `repairs` repair
    turns code and hint are those of `mended`, the last reply, and `first` is the reason for which
    the first one was rejected; reply, stop and record stay the first one's.
    """

    task: DesignTask
    reply: str
    stop: StopReason
    record: TokenRecord
    code: str | None
    hint: str | None = None
    repairs: int = 0
    mended: str = ""
    first: Reason | None = None


class Reason(enum.StrEnum):
    """Verdicts of validation, cheapest check first; ACCEPTED is the only success."""

    ACCEPTED = "accepted"
    EXTRACT = "extract"
    PARSE = "parse"
    IMPORTS = "imports"
    CONSTRUCT = "construct"
    RESET = "reset"
    STEP = "step"
    LIMITS = "limits"
    SEEDS = "seeds"
    INTERACTIVE = "interactive"
    SOLVABLE = "solvable"
    TRIVIAL = "trivial"
    LEAK = "leak"
    NEW = "new"
    JUDGE = "judge"


@dataclass
class Measures:
    """What plays of a design showed: shares of instances, over all that were tried.

    `null` and `constant` are won by an empty action and by the best of the other constant ones,
    `random` by actions drawn from other instances' solutions, `solution` by the design's own.
    `changes`: different actions were answered by different observations. What the two processes
    cost differs from run to run, so it counts in no comparison and enters no record.
    """

    null: float
    constant: float
    random: float
    solution: float
    changes: float
    cpu_seconds: float | None = dataclasses.field(default=None, compare=False)
    memory_mb: float | None = dataclasses.field(default=None, compare=False)


@dataclass
class Verdict:
    """Outcome of validation. `message` says how to mend a rejected design.

    `phase` is where a rejected one failed: source (nothing ran), construct, reset, step, hint,
    solution or rollout (it broke there), plays (judged by how they went), pool (it is not new).
    `fingerprint` identifies the normalised syntax tree and `behaviour` the transcripts on fixed
    seeds; both are empty, and `measures` is None, where validation ended before they were known.
    `resemblance` is that to the most alike of earlier environments, from 0 to 1; None where there
    is none, or an earlier check rejected the design. `resembles` names it for a near-duplicate.
    `judge` is what the judge said, where one was asked: yes, no, or unknown, which counts as yes.
    """

    reason: Reason
    message: str = ""
    phase: str = ""
    fingerprint: str = ""
    behaviour: str = ""
    measures: Measures | None = None
    resemblance: float | None = None
    resembles: str = ""
    judge: str = ""

    @property
    def accepted(self) -> bool:
        return self.reason is Reason.ACCEPTED


@dataclass
class Environment:
    """An accepted program, ready to be played.

    A procedural one has the `task` and `level` it was made for. `modules` are installed packages it
    needs; None: what it names of numpy, sympy and math_verify.
    `hint` is one text for all instances; None where the program itself hints, or no text is known.
    """

    id: str
    kind: Kind
    skill: str
    code: str
    iteration: int
    fingerprint: str = ""
    task: str = ""
    level: int = 0
    modules: tuple[str, ...] | None = None
    seeds: tuple[str, ...] = ()  # as in MemoryRecord
    document: str | None = None
    hint: str | None = None


# -- playing ----------------------------------------------------------------------------------


class FailureKind(enum.StrEnum):
    """How an environment broke, or that the speaker failed; none of these is ever a success."""

    TIMEOUT = "timeout"
    MEMORY = "memory"
    ERROR = "error"
    CONTRACT = "contract"
    CRASH = "crash"
    PROTOCOL = "protocol"
    SPEAKER = "speaker"


@dataclass
class Failure:
    """An environment that broke: in which phase (construct, reset, step, ...), how, and why;
    in phase reply the speaker that failed instead.

    `cpu_seconds` is what its process had used up to then, where that is known: a time-out with
    little of it waited, or had no core to run on. It is no part of what makes two failures equal.
    """

    phase: str
    kind: FailureKind
    message: str
    cpu_seconds: float | None = dataclasses.field(default=None, compare=False)


@dataclass
class StepResult:
    """What `reset` or `step` of an environment answered; after a reset `reward` is 0."""

    observation: str
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False


class EpisodeEnd(enum.StrEnum):
    """TERMINATED: the environment ended it. TURNS and TOKENS: a budget did, or the environment
    said truncated. FAILED: the environment broke, or the speaker failed."""

    TERMINATED = "terminated"
    TURNS = "turns"
    TOKENS = "tokens"
    FAILED = "failed"


@dataclass
class Turn:
    """What the agent saw, what it replied, the action read from the reply, and what that earned.

    `action` is None where the reply held none; then the environment was not stepped.
    """

    observation: str
    reply: str
    action: str | None
    reward: float


@dataclass
class Episode:
    """One play of one instance. `seed` fixes the instance; both arms of a pair share it.

    `episode_return` is None for a failed episode, which enters no statistic and no loss.
    `hint_leaks` is true where the hint of the hinted arm held the answer. `records` are the rows it
    is trained in: one, or one a turn where the chat template drops earlier thinking; none where
    the policy said nothing.
    """

    environment_id: str
    arm: Arm
    play: int
    seed: int
    turns: tuple[Turn, ...]
    end: EpisodeEnd
    records: tuple[TokenRecord, ...]
    episode_return: float | None
    hint: str | None = None
    hint_leaks: bool = False
    failure: Failure | None = None

    @property
    def truncated(self) -> bool:
        return self.end in (EpisodeEnd.TURNS, EpisodeEnd.TOKENS)

    @property
    def tokens_sampled(self) -> int:
        """Tokens the policy wrote."""
        return sum(sum(record.action) for record in self.records)


# -- scoring and learning ---------------------------------------------------------------------


@dataclass
class Regret:
    """Mean of hinted minus plain return over valid pairs; None where there was no valid pair.

    `stderr` is None with fewer than two pairs.
    """

    mean: float | None
    stderr: float | None
    pairs: int


@dataclass
class Sample:
    """One conversation to learn from, in as many rows as its `records`.

    `version` is the learner's step at which it was sampled.
    """

    role: Role
    records: tuple[TokenRecord, ...]
    advantage: float
    version: int


# -- state of the host ------------------------------------------------------------------------


@dataclass
class PoolEntry:
    """An environment of the current epoch with what its plays returned.

    `plain` holds, for each iteration it was played in, the returns of that iteration's plays; of an
    environment kept from an earlier epoch only those from the last iteration before this epoch on.
    `regret` and the share of hinted episodes whose hint held the answer are measured once, at its
    regeneration step. A retired one is no longer played.
    """

    environment: Environment
    plain: tuple[tuple[float, ...], ...] = ()
    regret: Regret = Regret(mean=None, stderr=None, pairs=0)
    hung: bool = False
    leak_share: float = 0.0
    retired: bool = False


@dataclass
class PendingDesign:
    """A designer sample waiting for its environment's plays to be known.

    `reason` is the verdict on this very reply, though a repair of it may be in the pool. Designs of
    one `prompt` answered the same text.
    """

    environment_id: str
    skill: str
    iteration: int
    version: int
    reason: Reason
    record: TokenRecord
    prompt: str = ""


@dataclass
class Tracker:
    """Two exponential means of a skill's return; None until the first value."""

    fast: float | None = None
    slow: float | None = None


@dataclass
class Difficulty:
    """How far a procedural task has come: of `levels`, 1 the easiest, it is played up to `top`.

    Of the plays at the top level since the last look at them, `attempts` were made and `wins` won.
    `trackers` hold the mean returns of levels 1, 2, ... where difficulty follows these.
    """

    levels: int
    top: int = 1
    attempts: int = 0
    wins: int = 0
    trackers: tuple[Tracker, ...] = ()


@dataclass
class HostState:
    """Everything but weights that an iteration reads and writes; identical on all hosts."""

    iteration: int = 0
    corpus_position: int = 0
    memory: tuple[MemoryRecord, ...] = ()
    pool: tuple[PoolEntry, ...] = ()
    pending: tuple[PendingDesign, ...] = ()
    trackers: dict[str, Tracker] = dataclasses.field(default_factory=dict)
    baselines: dict[str, float] = dataclasses.field(default_factory=dict)
    difficulty: dict[str, Difficulty] = dataclasses.field(default_factory=dict)  # by task
    fingerprints: tuple[str, ...] = ()  # and behaviours, of the whole run: 40 bytes an environment
    skipped_in_row: int = 0  # updates without a finite gradient up to now, in a row
    few_valid_in_row: int = 0  # regenerations under health.stop_valid_share up to now, in a row
    alarms: tuple[str, ...] = ()  # names of those that are raised
