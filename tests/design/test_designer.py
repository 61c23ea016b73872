"""The designer's part: tasks that are fair and repeatable, and what is read from its replies."""

import collections
import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from spade_jax.design import designer, prompts
from spade_jax.design.corpus import Corpus
from spade_jax.policy.conversation import Budget, stream
from spade_jax.policy.sampling import Sampling
from spade_jax.types import (
    CUT_OFF,
    Design,
    DesignTask,
    Generation,
    HostState,
    Kind,
    MemoryRecord,
    Message,
    Reason,
    StopReason,
    TokenRecord,
    Verdict,
)

SKILLS = ("Logical Deduction", "Data Retrieval", "Optimization")
BUDGET = Budget(reply=64, context=256, sampling=Sampling(0.6))
CODE = "class SumEnv:\n    pass\n"
REPLY = f"A sum.\n```python\n{CODE}```"


@pytest.fixture
def corpus(tmp_path: Path) -> Iterator[Corpus]:
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": f"Document {i}."}) + "\n" for i in range(10)))
    with Corpus(str(path), seed=1, max_words=50) as opened:
        yield opened


def remembered(n: int, win_rate: float) -> MemoryRecord:
    return MemoryRecord(
        environment_id=f"{n}",
        skill=SKILLS[0],
        code=f"class M{n}Env: ...",
        fingerprint=f"{n}",
        iteration=0,
        win_rate=win_rate,
        regret=0.1,
    )


def draw(
    corpus: Corpus | None, host: HostState | None = None, **options: object
) -> list[DesignTask]:
    options = {
        "seed": 3,
        "num_envs": 12,
        "active": SKILLS,
        "positives": 2,
        "negatives": 1,
    } | options
    host = host or HostState(iteration=4, corpus_position=7)
    tasks = designer.draw_tasks(host, **options)
    per_prompt = options.get("per_prompt", 1)
    return designer.read_documents(tasks, corpus, host.corpus_position, per_prompt)


def test_tasks_are_balanced_over_the_skills(corpus: Corpus) -> None:
    tasks = draw(corpus)
    assert collections.Counter(task.skill for task in tasks) == dict.fromkeys(SKILLS, 4)
    assert [task.slot for task in tasks] == list(range(12))
    assert {task.iteration for task in tasks} == {4}
    kinds = {task.skill: task.kind for task in tasks}
    assert kinds == {SKILLS[0]: Kind.GAME, SKILLS[1]: Kind.TOOL_USE, SKILLS[2]: Kind.GAME}
    uneven = collections.Counter(task.skill for task in draw(corpus, num_envs=5))
    assert sorted(uneven.values()) == [1, 2, 2]


def test_no_skill_is_always_first() -> None:
    firsts = {draw(None, HostState(iteration=i), num_envs=1)[0].skill for i in range(30)}
    assert firsts == set(SKILLS)


def test_documents_follow_the_corpus_position(corpus: Corpus) -> None:
    """Twelve slots from position 7 run over the end of ten documents."""
    documents = [task.document for task in draw(corpus)]
    assert documents == [corpus.document(7 + slot) for slot in range(12)]
    assert len({document.id for document in documents[:3]}) == 3
    assert all(task.document is None for task in draw(None))


def test_the_documents_of_a_share_are_read_alone(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots 2 and 3 share the second prompt of an epoch from position 7 on."""
    tasks, read = draw(None, per_prompt=2), []
    document = corpus.document
    monkeypatch.setattr(corpus, "document", lambda n: read.append(n) or document(n))
    two, three = designer.read_documents(tasks[2:4], corpus, 7, 2)
    assert set(read) == {8} and two.document == three.document == document(8)


def test_draws_repeat_and_change_with_seed_and_iteration(corpus: Corpus) -> None:
    memory = tuple(remembered(n, 0.5) for n in range(10))
    host = HostState(iteration=4, memory=memory)
    assert draw(corpus, host) == draw(corpus, host)
    other = draw(corpus, host, seed=5)
    assert [t.positives for t in other] != [t.positives for t in draw(corpus, host)]
    later = draw(corpus, dataclasses.replace(host, iteration=8))
    assert [t.positives for t in later] != [t.positives for t in draw(corpus, host)]
    assert len({t.positives for t in draw(corpus, host)}) > 1, "slots draw for themselves"


def test_examples_come_from_memory(corpus: Corpus) -> None:
    memory = (remembered(1, 0.5), remembered(2, 0.6), remembered(3, 1.0), remembered(4, 0.0))
    for task in draw(corpus, HostState(memory=memory)):
        assert {record.environment_id for record in task.positives} == {"1", "2"}
        [negative] = task.negatives
        assert negative.environment_id in {"3", "4"}
    for task in draw(corpus, HostState(memory=memory), positives=0, negatives=0):
        assert (task.positives, task.negatives) == ((), ())


class Script:
    """Answers every dialogue from a list; notes what it was asked."""

    def __init__(self, replies: Sequence[tuple[str, StopReason] | None]) -> None:
        self.replies = replies
        self.said: dict[int, list[Message]] = {}
        self.streams: dict[int, tuple[int, ...]] = {}
        self.numbers = iter(range(len(replies)))
        self.answered: set[int] = set()
        self.broken: Verdict | None = None  # stands for a failure: it has a message

    def converse(self) -> "Script":
        return self

    def open(self) -> int:
        return next(self.numbers)

    def ask(
        self, dialogue: int, messages: Sequence[Message], stream: tuple[int, ...], budget: Budget
    ) -> None:
        assert budget == BUDGET
        self.said[dialogue], self.streams[dialogue] = list(messages), stream

    def answers(self) -> dict[int, Generation | None]:
        """The last question is answered first."""
        i = max(self.said.keys() - self.answered)
        self.answered.add(i)
        reply = self.replies[i]
        return {i: reply and Generation(ids=(i,), logp=(-1.0,), text=reply[0], stop=reply[1])}

    def failure(self, dialogue: int) -> Verdict | None:
        return self.broken

    def records(self, dialogue: int) -> tuple[TokenRecord, ...]:
        return (TokenRecord().read((5,)).wrote((dialogue,), (-1.0,)),)

    def retire(self, dialogues: Sequence[int]) -> None:
        self.retired = list(dialogues)


def design(script: Script) -> list[Design]:
    tasks = draw(None, num_envs=len(script.replies))
    return designer.design(script, tasks, BUDGET, seed=3, prompt_set="tiny", code_characters=200)


def test_replies_become_designs_in_order() -> None:
    script = Script([(REPLY, StopReason.STOP), ("No idea.", StopReason.STOP)])
    designs = design(script)
    assert [d.code for d in designs] == [CODE, None]
    assert [d.reply for d in designs] == [REPLY, "No idea."]
    assert [d.task.slot for d in designs] == [0, 1]
    assert [d.record.ids for d in designs] == [(5, 0), (5, 1)]
    for i, d in enumerate(designs):
        assert script.said[i] == list(prompts.designer_messages(d.task, "tiny", 200))
        assert script.streams[i] == stream(3, "design", 4, i)


def test_a_truncated_reply_has_no_code() -> None:
    """Even where it holds a complete block: the designer had not finished."""
    [d] = design(Script([(REPLY, StopReason.LENGTH)]))
    assert (d.code, d.stop, d.reply) == (CUT_OFF, StopReason.LENGTH, REPLY)


def test_a_prompt_without_room() -> None:
    script = Script([(REPLY, StopReason.STOP), None])
    with pytest.raises(ValueError, match="prompt of slot 1 leaves no room for a reply; lower corp"):
        design(script)


def test_a_designer_that_fails_is_no_mistake_in_the_config() -> None:
    script = Script([(REPLY, StopReason.STOP), None])
    script.broken = Verdict(reason=Reason.LIMITS, message="no connection")
    with pytest.raises(ConnectionError, match="did not reply in slot 1: no connection"):
        design(script)


def test_designs_of_one_prompt_share_all_of_it(corpus: Corpus) -> None:
    memory = tuple(remembered(n, 0.5) for n in range(10))
    host = HostState(iteration=4, corpus_position=7, memory=memory)
    tasks = draw(corpus, host, per_prompt=3)
    assert [t.prompt for t in tasks[:7]] == ["000004-000"] * 3 + ["000004-003"] * 3 + ["000004-006"]
    shared = {(t.prompt, t.skill, t.document.id, t.positives, t.negatives) for t in tasks}
    assert len(shared) == 4, "one prompt for three slots"
    assert [t.document for t in tasks[::3]] == [corpus.document(7 + n) for n in range(4)]
    assert [t.slot for t in tasks] == list(range(12))
    skills = [t.skill for t in tasks[::3]]
    assert skills[:3] == [*SKILLS, *SKILLS][SKILLS.index(skills[0]) :][:3], "in turn"
    script = Script([(REPLY, StopReason.STOP)] * 12)
    designer.design(script, tasks, BUDGET, seed=3, prompt_set="tiny", code_characters=200)
    assert script.said[0] == script.said[1] and script.streams[0] != script.streams[1]


# -- hints beside the program, repairs --------------------------------------------------------

HOW = {"seed": 3, "prompt_set": "tiny", "code_characters": 200, "hint_source": "reply"}
REFUSED = Verdict(reason=Reason.SOLVABLE, message="It cannot be won; mend it.")


def test_a_hint_beside_the_program() -> None:
    replies = [("Hint: Add.\n\n" + REPLY, StopReason.STOP), (REPLY, StopReason.STOP)]
    replies += [("Hint: Add.\n", StopReason.STOP), ("Hint: Add.\n\n" + REPLY, StopReason.LENGTH)]
    tasks = draw(None, num_envs=4)
    designs = designer.design(Script(replies), tasks, BUDGET, **HOW)
    assert [(d.code, d.hint) for d in designs] == [
        (CODE, "Add."),
        (CODE, None),
        (None, "Add."),
        (CUT_OFF, None),
    ]
    verdicts = [designer.check_hint(d, "reply") for d in designs]
    assert [v and v.reason for v in verdicts] == [None, Reason.EXTRACT, None, None]
    assert "no hint; write one paragraph outside of the block" in verdicts[1].message
    assert not any(designer.check_hint(d, source) for d in designs for source in ("method", "self"))
    assert design(Script(replies[:1]))[0].hint is None, "not asked for, not read"


def test_repairs_leave_the_first_reply_to_be_trained() -> None:
    first = design(Script([("No idea.", StopReason.STOP), ("Nor I.", StopReason.STOP)]))
    script = Script([("Hint: Add.\n\n" + REPLY, StopReason.STOP), None])
    mended, none = designer.repair(script, first, [REFUSED, REFUSED], BUDGET, **HOW)
    assert none is None and script.retired == [0, 1]
    assert (mended.code, mended.hint, mended.repairs) == (CODE, "Add.", 1)
    assert mended.first is Reason.SOLVABLE and mended.mended.endswith(REPLY)
    for name in ("task", "reply", "stop", "record"):
        assert getattr(mended, name) == getattr(first[0], name)
    *task, said, told = script.said[0]
    assert task == list(prompts.designer_messages(first[0].task, "tiny", 200, "reply"))
    assert said == Message(role="assistant", content="No idea.")
    assert told == prompts.repair_message(REFUSED, "tiny", "reply")

    # A second turn answers the first repair; what the first reply was rejected for stays.
    script = Script([("Sorry.", StopReason.STOP)])
    leak = Verdict(reason=Reason.LEAK, message="It tells.")
    [again] = designer.repair(script, [mended], [leak], BUDGET, **HOW)
    assert (again.code, again.repairs, again.first) == (None, 2, Reason.SOLVABLE)
    assert script.said[0][-2].content == mended.mended
    assert script.streams[0] == stream(3, "repair", 4, 0, 1)
