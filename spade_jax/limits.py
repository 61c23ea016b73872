"""How long replies and conversations may be, and whether prompts leave room for them."""

from __future__ import annotations

import random

from ml_collections import config_dict

from spade_jax.config_rules import actor_only
from spade_jax.design import designer, prompts
from spade_jax.design.corpus import Corpus
from spade_jax.design.families import FAMILIES, LEVELS, sample_program
from spade_jax.play.episodes import Rules
from spade_jax.policy import hub
from spade_jax.policy.conversation import Budget
from spade_jax.policy.model import ModelConfig
from spade_jax.policy.sampling import Sampling
from spade_jax.policy.tokenizer import ChatTokenizer
from spade_jax.types import (
    Design,
    DesignTask,
    MemoryRecord,
    Reason,
    StopReason,
    TokenRecord,
    UsageError,
    Verdict,
)

LONG_VERDICT = Verdict(reason=Reason.SOLVABLE, message="word " * (prompts.MESSAGE_CHARACTERS // 5))


def check_sizes(c: config_dict.ConfigDict, model: ModelConfig, tokenizer: ChatTokenizer) -> None:
    """What is asked for must fit the model that was loaded."""
    sizes = {"play.context": c.play.context}
    if not actor_only(c):
        sizes["design.max_tokens"] = c.design.max_tokens
    for field, tokens in sizes.items():
        if tokens > model.max_positions:
            raise UsageError(
                f"{field} is {tokens} but the model has {model.max_positions} positions; lower "
                f"--config.{field} or take a model of longer context"
            )
    if tokenizer.vocab > model.vocab:
        raise UsageError(
            f"{hub.folder(c.model.path)} has a tokenizer of {tokenizer.vocab} entries for a model "
            f"of {model.vocab}; put the tokenizer.json of this model there"
        )


def check_prompts(
    c: config_dict.ConfigDict, model: ModelConfig, tokenizer: ChatTokenizer, corpus: Corpus | None
) -> None:
    """All prompts must leave room for a reply; the first documents stand for the others."""
    if actor_only(c):
        return
    room = design_context(c, model)
    family = next(iter(FAMILIES))
    program = sample_program(random.Random(c.seed), family, LEVELS[-1], "World")
    example = MemoryRecord(
        environment_id="", skill="", code=program.code, fingerprint="", iteration=0, win_rate=0.0
    )
    for n in range(c.design.num_envs):
        task = DesignTask(
            iteration=0,
            slot=n,
            skill=max(c.skills, key=len),
            kind=program.kind,
            document=corpus.document(n) if corpus else None,
            positives=(example,) * (c.memory.positives if c.memory.enabled else 0),
            negatives=(example,) * (c.memory.negatives if c.memory.enabled else 0),
        )
        how = (c.design.prompts, c.memory.code_characters, c.hint.source)
        tokens = len(tokenizer.prompt(prompts.designer_messages(task, *how)))
        if tokens >= room:
            raise UsageError(
                f"a design prompt has {tokens} tokens, but the model's {model.max_positions} "
                f"positions and learn.row_tokens {c.learn.row_tokens} hold {room} with the reply; "
                "lower corpus.max_words or memory.code_characters, or raise learn.row_tokens"
            )
        if c.design.repair_turns:
            empty = Design(
                task=task, reply="", stop=StopReason.STOP, record=TokenRecord(), code=None
            )
            said = designer.repair_messages(empty, LONG_VERDICT, *how)
            check_reader(c, model, len(tokenizer.prompt(said)), "a repair", "design.max_tokens", 1)
    if c.hint.source == "self":
        tokens = len(tokenizer.prompt(prompts.hint_messages(task.kind, "", c.design.prompts)))
        check_reader(c, model, tokens, "a hint", "hint.max_tokens", c.hint.max_tokens)
    if c.judge.source == "self":
        play = "word " * (c.judge.play_characters // 5)
        said = prompts.judge_messages(task, "", play, c.design.prompts)
        tokens = len(tokenizer.prompt(said))
        check_reader(c, model, tokens, "a judgement", "judge.max_tokens", c.judge.max_tokens)


def check_reader(
    c: config_dict.ConfigDict, model: ModelConfig, tokens: int, what: str, field: str, reply: int
) -> None:
    """The prompt of whoever reads a design must hold the longest one and leave room for a reply."""
    needed, room = tokens + c.design.max_tokens + reply, longest(c, model)
    if needed > room:
        raise UsageError(
            f"{what} takes {needed} tokens: a prompt of {tokens}, a design of design.max_tokens = "
            f"{c.design.max_tokens}, and {reply} for the reply, but a conversation holds {room}; "
            f"lower {field} or raise play.context"
        )


def longest(c: config_dict.ConfigDict, model: ModelConfig) -> int:
    """Most tokens of any conversation with the policy."""
    return max(c.play.context, design_context(c, model))


def design_context(c: config_dict.ConfigDict, model: ModelConfig) -> int:
    """Most tokens of a design prompt and its reply, which is trained on in one row."""
    return min(model.max_positions, max(c.learn.row_tokens))


def design_budget(c: config_dict.ConfigDict, model: ModelConfig) -> Budget:
    """Limits of a design."""
    return Budget(c.design.max_tokens, design_context(c, model), sampling(c.design))


def reader_budget(
    c: config_dict.ConfigDict, model: ModelConfig, group: config_dict.ConfigDict
) -> Budget:
    """Limits of what is said about a design and never trained: repairs, hints, judgements."""
    return Budget(group.max_tokens, longest(c, model), sampling(group))


def sampling(role: config_dict.ConfigDict) -> Sampling:
    """How a role's replies are sampled."""
    return Sampling(role.temperature, role.top_p, role.top_k, role.min_p)


def play_rules(c: config_dict.ConfigDict) -> Rules:
    """Limits of an episode."""
    return Rules(
        prompts=c.design.prompts,
        max_turns=c.play.max_turns,
        budget=Budget(c.play.reply_tokens, c.play.context, sampling(c.play)),
        return_mode=c.reward.episode_return,
        discount=c.reward.discount,
        overlap=c.schedule == "overlap",
    )
