"""The tokenizer, and the one way text becomes ids: the chat template of the model's own folder.

Only new text is ever encoded; what the policy sampled enters as the ids it sampled. Text of
messages is encoded with special tokens switched off, so that a role marker inside an environment's
text opens no turn.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from spade_jax.policy import templates
from spade_jax.policy.templates import Rendering
from spade_jax.types import Generation, Message, StopReason, TokenRecord, UsageError

FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
START, END, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
CONTROL = (PAD, START, END)
# Tags of Qwen's chat form that text may contain: single tokens, but no control tokens.
TAGS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content"
    " + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Words and single digits by themselves; punctuation takes the spaces around it, or the line end and
# indentation after it. Unlike by Qwen's rule no word has a leading space, so that a word has the
# same ids in a question, in a JSON argument and in an answer: copying is learned much sooner.
SPLIT = r"\p{L}+|\p{N}|\s*[\r\n]+ *| ?[^\s\p{L}\p{N}]+(?:[\r\n]+ *| ?)|\s+"


class ChatTokenizer:
    """Encodes conversations for one model folder's tokenizer and chat template.

    `think` says what becomes of earlier thinking, and so how a conversation is recorded:

    - `keep`: one record for all of it, append-only. The first turn reads `prompt(messages)`, each
      later one `continuation(stop, new messages)`.
    - `strip`: one record for each turn, with a prompt of its own. Every turn reads
      `prompt(messages)` of the whole conversation so far, into a new record; a reply is in it as
      `Message(role="assistant", content=generation.text)`. `continuation` is not for it.

    `auto` takes what the template does to a conversation with thoughts. `options` are switches of
    the template (`enable_thinking`). `stop_ids` end a turn. Raises UsageError where the folder has
    no tokenizer or template that serves.
    """

    def __init__(
        self,
        folder: str | pathlib.Path,
        *,
        think: str = "auto",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        folder = pathlib.Path(folder)
        self._tokenizer = _read(folder / "tokenizer.json")
        self.vocab = self._tokenizer.get_vocab_size(with_added_tokens=True)
        self.pad_id, self.start_id, self.end_id = (self._tokenizer.token_to_id(t) for t in CONTROL)
        added = self._tokenizer.get_added_tokens_decoder()
        self._control = {token.content: i for i, token in added.items() if token.special}
        longest_first = sorted(self._control, key=len, reverse=True)
        self._cuts = re.compile(f"({'|'.join(map(re.escape, longest_first))})")
        self._template, names = templates.load(folder, longest_first, options or {})
        self.stop_ids = self._stops(folder, names)
        self.think, self._cut_thoughts = self._settle(think)
        self._check()

    @property
    def switches_thinking(self) -> bool:
        """Whether the template knows the switch `enable_thinking`."""
        return "enable_thinking" in self._template.source

    @property
    def shows_tools(self) -> bool:
        """Whether the template puts tools into the prompt."""
        return self._template.shows_tools

    @functools.lru_cache(maxsize=4096)  # noqa: B019 - one tokenizer lives as long as the run
    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of plain text; control tokens written in it come out as ordinary characters."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, control tokens left out."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)

    def spell(self, ids: Sequence[int]) -> str:
        """Text of ids, control tokens included."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def prompt(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[int, ...]:
        """Ids of messages and of the opening of the policy's turn; `tools` are JSON schemas."""
        return self._ids(self._template.render(self._history(messages), self._shown(tools)))

    def continuation(self, stop: StopReason, messages: Sequence[Message]) -> tuple[int, ...]:
        """Ids between a reply and the next: the separator, new messages, the next opening.

        After a reply that stopped, its own end token is in the record already; one that ran out
        of budget is closed here.
        """
        if self.think == "strip":
            raise ValueError("where thinking is stripped each turn has a prompt of its own")
        ids = self._ids(self._template.after(messages))
        return ids[1:] if stop is StopReason.STOP else ids

    def message(self, message: Message) -> tuple[int, ...]:
        """Ids of a whole message that follows others, the line end after it included."""
        closing = self._ids(self._template.after([], opening=False))
        return self._ids(self._template.after([message], opening=False))[len(closing) :]

    def generation(
        self, ids: tuple[int, ...], logp: tuple[float, ...], stop: StopReason
    ) -> Generation:
        """Sampled ids with their text; the ids stay the record.

        A `<think>` that the prompt already opened belongs to the text: without it a thought that
        was cut off would be taken for what the policy said.
        """
        return Generation(ids=ids, logp=logp, text=self._opened + self.decode(ids), stop=stop)

    def supervised(self, messages: Sequence[Message]) -> TokenRecord:
        """The record of a whole conversation in which every assistant message is to be learned.

        Where thinking is stripped, a record holds one reply, and it comes last.
        """
        replies = [i for i, m in enumerate(messages) if m.role == "assistant"]
        if self.think == "strip" and replies != [len(messages) - 1]:
            raise UsageError(
                f"{self._template.place} drops earlier thinking, so a conversation to learn from "
                "must end with its only reply; split it by replies"
            )
        record, start = TokenRecord(), 0
        for i in replies:
            record = record.read(self._before(messages[start:i], first=not record.ids))
            text = messages[i].content
            if text.startswith(self._opened):
                text = text.removeprefix(self._opened)
            else:
                text = f"\n{templates.CLOSE}\n\n{text}"
            reply = (*self.encode(text), self.end_id)
            record, start = record.wrote(reply, (0.0,) * len(reply)), i + 1
        if record.ids:
            rest = self._template.after(messages[start:], opening=False)
            return record.read(self._ids(rest)[1:])
        return record.read(self._ids(self._template.render(messages, opening=False)))

    def _before(self, new: Sequence[Message], *, first: bool) -> tuple[int, ...]:
        return self.prompt(new) if first else self.continuation(StopReason.STOP, new)

    @functools.cached_property
    def _opened(self) -> str:
        return self._template.opened

    def _ids(self, rendering: Rendering) -> tuple[int, ...]:
        """Control tokens of the template as themselves, what lies between them as plain text."""
        ids: list[int] = []
        for i, part in enumerate(self._cuts.split(rendering.text)):
            if i % 2:
                ids.append(self._control[part])
            elif part:
                ids += self.encode(part.translate(rendering.contents))
        return tuple(ids)

    def _history(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The messages as the template is to see them."""
        if self.think == "keep":
            return messages
        said = [
            dataclasses.replace(m, content=templates.closed(m.content))
            if m.role == "assistant"
            else m
            for m in messages
        ]
        return templates.without_thoughts(said) if self._cut_thoughts else said

    def _shown(self, tools: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        if tools and not self.shows_tools:
            raise UsageError(
                f"the chat template of {self._template.place} shows no tools; describe them in a "
                "message, or use a model whose template does"
            )
        return tools

    def _stops(self, folder: pathlib.Path, names: Mapping[str, str]) -> tuple[int, ...]:
        """The end of a message, the end of a text, and what else the folder names."""
        listed = templates.read_json(folder / "generation_config.json").get("eos_token_id")
        listed = listed if isinstance(listed, list) else [listed]
        named = self._tokenizer.token_to_id(names.get("eos_token", END))
        stops = dict.fromkeys([self.end_id, self.pad_id, *listed, named])
        return tuple(i for i in stops if i is not None)

    def _settle(self, think: str) -> tuple[str, bool]:
        """Keep or strip, and whether it is left to us to strip."""
        if think not in templates.THINK:
            raise UsageError(
                f"model.think is {think!r}; choose one of {', '.join(templates.THINK)}"
            )
        drops, fault = templates.examine(self._template)
        if think == "auto":
            think = "strip" if drops else "keep"
        if think == "keep" and fault:
            raise UsageError(
                f"the chat template of {self._template.place} cannot be built turn by turn: "
                f"{fault}; set model.think=strip, which renders each turn's prompt as a whole"
            )
        return think, think == "strip" and not drops

    def _check(self) -> None:
        """Replies end as they should, and tokens are what transformers makes of a rendering."""
        said = [Message(role=r, content="Four is the sum.") for r in ("user", "assistant", "user")]
        after = self._ids(self._template.after([], opening=False))
        if after[:1] != (self.end_id,):
            raise UsageError(
                f"the chat template of {self._template.place} does not end a reply with {END}; "
                "use a model of Qwen's chat form"
            )
        rendering = self._template.render(said)
        self._tokenizer.encode_special_tokens = False
        whole = self._tokenizer.encode(rendering.plain(), add_special_tokens=False).ids
        self._tokenizer.encode_special_tokens = True
        if tuple(whole) != self._ids(rendering):
            raise UsageError(
                f"{self._template.place}/tokenizer.json changes text beside its control tokens; "
                "use a tokenizer of Qwen's form"
            )


def _read(path: pathlib.Path) -> Tokenizer:
    if not path.is_file():
        raise UsageError(
            f"{path} is missing; copy the model's tokenizer.json and tokenizer_config.json "
            "into its folder"
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise UsageError(f"{path} is damaged ({error}); take it from the model again") from None
    missing = [t for t in CONTROL if tokenizer.token_to_id(t) is None]
    if missing:
        raise UsageError(
            f"{path} has no token {missing[0]}; the chat form needs a Qwen-style tokenizer"
        )
    tokenizer.encode_special_tokens = True
    return tokenizer


def copy_tokenizer(source: pathlib.Path, folder: pathlib.Path) -> None:
    """Copy what a model folder says about text and its ends."""
    for name in FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def train_tokenizer(texts: Iterable[str], entries: int) -> Tokenizer:
    """Byte-level BPE over the pieces of SPLIT, control tokens and tags, of `entries` in all."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=entries - len(CONTROL) - len(TAGS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in CONTROL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in TAGS])
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: pathlib.Path, context: int) -> None:
    """Write tokenizer.json and tokenizer_config.json as transformers reads them."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "pad_token": PAD,
        "eos_token": END,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
