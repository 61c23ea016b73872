"""The tokenizer, and the one way text becomes ids: an append-only conversation.

A conversation is built message by message in the chat form of Qwen's models (`<|im_start|>role`,
content, `<|im_end|>`). Only new text is ever encoded; what the policy sampled enters as the ids it
sampled. Text of messages is encoded with special tokens switched off, so that a role marker inside
an environment's text opens no turn.
"""

from __future__ import annotations

import functools
import json
import pathlib
from collections.abc import Iterable, Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from spade_jax.types import Generation, Message, StopReason, TokenRecord, UsageError

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
    """Encodes conversations for one model folder's tokenizer.

    `stop_ids` end a turn. Raises UsageError where the folder has none that serves.
    """

    def __init__(self, folder: str | pathlib.Path) -> None:
        path = pathlib.Path(folder) / "tokenizer.json"
        if not path.is_file():
            raise UsageError(
                f"{path} is missing; copy the model's tokenizer.json and tokenizer_config.json "
                "into its folder"
            )
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower
            raise UsageError(f"{path} is damaged ({error}); take it from the model again") from None
        missing = [t for t in CONTROL if self._tokenizer.token_to_id(t) is None]
        if missing:
            raise UsageError(
                f"{path} has no token {missing[0]}; the chat form needs a Qwen-style tokenizer"
            )
        self._tokenizer.encode_special_tokens = True
        self.vocab = self._tokenizer.get_vocab_size(with_added_tokens=True)
        self.pad_id, self.start_id, self.end_id = (self._tokenizer.token_to_id(t) for t in CONTROL)
        self.stop_ids: tuple[int, ...] = (self.end_id, self.pad_id)

    @functools.lru_cache(maxsize=4096)  # noqa: B019 - one tokenizer lives as long as the run
    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of plain text; control tokens written in it come out as ordinary characters."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, control tokens left out."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)

    def open_turn(self) -> tuple[int, ...]:
        """Ids that ask the policy for a reply."""
        return (self.start_id, *self.encode("assistant\n"))

    def message(self, message: Message) -> tuple[int, ...]:
        """Ids of a whole message, the line end after it included."""
        text = self.encode(f"{message.role}\n{message.content}")
        return (self.start_id, *text, self.end_id, *self.encode("\n"))

    def prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Ids of messages and of the opening of the policy's turn."""
        ids = [i for m in messages for i in self.message(m)]
        return (*ids, *self.open_turn())

    def continuation(self, stop: StopReason, messages: Sequence[Message]) -> tuple[int, ...]:
        """Ids between a reply and the next: the separator, new messages, the next opening.

        After a reply that stopped, its own end token is in the record already; one that ran out
        of budget is closed here.
        """
        closing = () if stop is StopReason.STOP else (self.end_id,)
        return (*closing, *self.encode("\n"), *self.prompt(messages))

    def generation(
        self, ids: tuple[int, ...], logp: tuple[float, ...], stop: StopReason
    ) -> Generation:
        """Sampled ids with their text; the ids stay the record."""
        return Generation(ids=ids, logp=logp, text=self.decode(ids), stop=stop)

    def supervised(self, messages: Sequence[Message]) -> TokenRecord:
        """The record of a whole conversation in which every assistant message is to be learned."""
        record = TokenRecord()
        for m in messages:
            if m.role != "assistant":
                record = record.read(self.message(m))
                continue
            reply = (*self.encode(m.content), self.end_id)
            record = record.read(self.open_turn()).wrote(reply, (0.0,) * len(reply))
            record = record.read(self.encode("\n"))
        return record


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
