"""A model's own chat template: rendered as transformers does, and tried for being append-only.

Contents are untrusted. In a rendering of them, control tokens are replaced by characters nothing
else uses, and a form has such characters in place of whole contents; what they stand for is put
back only after the rendering was cut at its control tokens, which so are the template's own.

jinja2 alone does it: transformers takes 1.5 s to import for its renderer, an HTTP client included,
and loads PyTorch with its tokenizers.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from spade_jax.types import Message, UsageError

THINK = ("auto", "keep", "strip")  # what becomes of earlier thinking; auto: as the template has it
OPEN, CLOSE = "<think>", "</think>"
THOUGHT = re.compile(f"{OPEN}.*?{CLOSE}\\s*", re.DOTALL)
# Characters of the last plane for private use, of which texts hardly have any.
ASKED, REPLIED, CONTENT = "\U0010f000", "\U0010f001", 0x100000
NAMES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")  # of tokens a template may ask for
# A schema of the kind environments have, for trying the template.
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look a word up.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}},
    },
}


# -- rendering --------------------------------------------------------------------------------


class _Generation(jinja2.ext.Extension):
    """`{% generation %}`, which marks what a model writes; it renders as what it holds."""

    tags = {"generation"}  # noqa: RUF012 - as jinja declares it

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        held = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(held, lineno=line)


def _tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    """JSON as it is, unlike jinja's own filter, which writes it for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _compile(source: str) -> jinja2.Template:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment.from_string(source)


@dataclasses.dataclass(frozen=True)
class Rendering:
    """A conversation's text; `contents` has what its stand-in characters stand for."""

    text: str
    contents: Mapping[int, str]

    def plain(self) -> str:
        """The whole text as transformers renders it."""
        return self.text.translate(self.contents)


class Template:
    """The chat template of a model folder.

    `control` are the tokens a content must not bring in; `variables` is what the template sees
    beside messages and tools. Raises UsageError where it is damaged or refuses messages.
    """

    def __init__(
        self, source: str, place: str, control: Sequence[str], variables: Mapping[str, Any]
    ) -> None:
        self.place, self.source = place, source
        self._control, self._variables = tuple(control), dict(variables)
        try:
            self._template = _compile(source)
        except jinja2.TemplateError as error:
            raise UsageError(
                f"the chat template of {place} is damaged ({error}); take it from the model again"
            ) from None

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        opening: bool = True,
    ) -> Rendering:
        """The messages; `opening` asks for a reply after them. `tools` are JSON schemas."""
        tree = [[{"role": m.role, "content": m.content} for m in messages], list(tools)]
        (said, schemas), contents = shield(tree, self._control)
        try:
            text = self._template.render(
                messages=said,
                tools=schemas or None,
                documents=None,
                add_generation_prompt=opening,
                **self._variables,
            )
        except Exception as error:  # a template may do anything
            roles = ", ".join(m.role for m in messages) or "none"
            raise UsageError(
                f"the chat template of {self.place} refuses messages of these roles: {roles} "
                f"({error}); give it others, or another template"
            ) from None
        return Rendering(text, contents)

    def after(self, messages: Sequence[Message], *, opening: bool = True) -> Rendering:
        """What follows the content of a reply: its end, the messages, the next opening."""
        form = self._form(tuple(m.role for m in messages), opening)
        return Rendering(form, {CONTENT + i: m.content for i, m in enumerate(messages)})

    @functools.lru_cache(maxsize=256)  # noqa: B019 - one template lives as long as the run
    def _form(self, roles: tuple[str, ...], opening: bool) -> str:
        """The same with characters for the contents: each form is rendered once."""
        before = (Message(role="user", content=ASKED), Message(role="assistant", content=REPLIED))
        new = (Message(role=r, content=chr(CONTENT + i)) for i, r in enumerate(roles))
        text = self.render([*before, *new], opening=opening).text
        _, found, after = text.partition(REPLIED)
        if not found:
            raise UsageError(
                f"the chat template of {self.place} leaves replies out; give another template"
            )
        return after

    @functools.cached_property
    def opened(self) -> str:
        """The `<think>`, and what follows it, that an opening already holds; mostly nothing."""
        text = self.render([Message(role="user", content=ASKED)]).text.partition(ASKED)[2]
        start = text.rfind(OPEN)
        return text[start:] if start >= 0 and CLOSE not in text[start:] else ""

    @functools.cached_property
    def shows_tools(self) -> bool:
        """Whether tools given as schemas appear in a prompt."""
        asked = [Message(role="user", content=ASKED)]
        return self.render(asked).text != self.render(asked, [TOOL]).text


def shield(tree: Any, tokens: Sequence[str]) -> tuple[Any, dict[int, str]]:
    """Lists and dicts with each of the tokens in their strings replaced by one free character.

    Returns them with what each of those characters stands for.
    """
    text = "\0".join(_strings(tree))
    found = sorted((t for t in tokens if t in text), key=len, reverse=True)
    if not found:
        return tree, {}
    free = (chr(i) for i in range(0xF0000, 0x10F000) if chr(i) not in text)
    stand_in = dict(zip(found, free, strict=False))
    pattern = re.compile("|".join(map(re.escape, found)))
    shielded = _mapped(tree, lambda s: pattern.sub(lambda match: stand_in[match[0]], s))
    return shielded, {ord(character): token for token, character in stand_in.items()}


def _strings(tree: Any) -> Iterator[str]:
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _strings(key)
            yield from _strings(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _strings(value)


def _mapped(tree: Any, change: Callable[[str], str]) -> Any:
    if isinstance(tree, str):
        return change(tree)
    if isinstance(tree, Mapping):
        return {_mapped(key, change): _mapped(value, change) for key, value in tree.items()}
    return [_mapped(v, change) for v in tree] if isinstance(tree, list | tuple) else tree


# -- thinking ---------------------------------------------------------------------------------


def closed(reply: str) -> str:
    """A reply whose last thought is closed, if it was cut off in the middle of it."""
    last = reply.rpartition(CLOSE)[2]
    return f"{reply}\n{CLOSE}\n\n" if OPEN in last else reply


def without_thoughts(messages: Sequence[Message]) -> list[Message]:
    """Replies before the last user message without what they thought."""
    last = max((i for i, m in enumerate(messages) if m.role == "user"), default=0)
    return [
        dataclasses.replace(m, content=m.content.rpartition(CLOSE)[2].lstrip("\n"))
        if i < last and m.role == "assistant" and CLOSE in m.content
        else m
        for i, m in enumerate(messages)
    ]


def examine(template: Template) -> tuple[bool, str]:
    """Whether earlier thinking is dropped, and how else appending differs from rendering anew.

    Conversations are built both ways: whole, and as play builds them, each reply left as it was
    written and followed by what comes after it. The second is "" where nothing else differs.
    """
    drops, fault = False, ""
    for n, said in enumerate(_probes(template.opened)):
        tools = [TOOL] if any(m.role == "tool" for m in said) else []
        try:
            whole = template.render(said, tools).plain()
        except UsageError:
            if n == 0:
                raise
            continue  # a template may lack a role
        appended = _appended(template, said, tools)
        if appended == whole:
            continue
        if THOUGHT.sub("", appended) == THOUGHT.sub("", whole):
            drops = True
        else:
            fault = fault or _difference(THOUGHT.sub("", appended), THOUGHT.sub("", whole))
    return drops, fault


def _probes(opened: str) -> list[list[Message]]:
    """Conversations that end in a message to reply to; their thinking opens as the model's does."""
    think = opened or f"{OPEN}\n"
    plain = "Four." if not opened else f"{think}\n{CLOSE}\n\nFour."
    thought = f"{think}Two and two.\n{CLOSE}\n\nFour."
    empty = f"{think}\n{CLOSE}\n\nFour."
    call = '<tool_call>\n{"name": "look_up", "arguments": {"word": "four"}}\n</tool_call>'
    talks = [
        [("user", "Two and two?"), ("assistant", plain), ("user", "Sure?")],
        [("user", "Two and two?"), ("assistant", plain), ("user", "\n Sure? \n")],
        [("user", "Two and two?"), ("assistant", thought), ("user", "Sure?")],
        [("user", "Two and two?"), ("assistant", empty), ("user", "Sure?")],
        [
            *(("system", "Add."), ("user", "Two and two?"), ("assistant", thought)),
            *(("user", "Sure?"), ("assistant", thought), ("user", "And three?")),
        ],
        [
            *(("user", "Two and two?"), ("assistant", plain.replace("Four.", call))),
            *(("tool", "4"), ("tool", "four")),
        ],
        [
            *(("user", "Two and two?"), ("assistant", thought.replace("Four.", call))),
            *(("tool", "4"), ("assistant", thought), ("user", "Sure?")),
        ],
    ]
    return [[Message(role=role, content=content) for role, content in talk] for talk in talks]


def _appended(
    template: Template, said: Sequence[Message], tools: Sequence[Mapping[str, Any]]
) -> str:
    text, new = "", []
    for m in said:
        if m.role != "assistant":
            new.append(m)
            continue
        text += (template.after(new) if text else template.render(new, tools)).plain()
        text += m.content.removeprefix(template.opened)
        new = []
    return text + template.after(new).plain()


def _difference(appended: str, whole: str) -> str:
    """Where two texts part, in the words of an error."""
    at = next((i for i, (a, b) in enumerate(zip(appended, whole, strict=False)) if a != b), None)
    at = min(len(appended), len(whole)) if at is None else at
    before, here, there = whole[max(0, at - 20) : at], whole[at : at + 20], appended[at : at + 20]
    return f"after {before!r} it has {here!r} in a whole conversation, {there!r} by turns"


# -- reading ----------------------------------------------------------------------------------


def read_options(text: str) -> dict[str, Any]:
    """The switches of a template, from the JSON of the field model.template_options."""
    try:
        options = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"model.template_options is {text!r}, which is no JSON ({error}); write it like "
            """'{"enable_thinking": false}'"""
        ) from None
    if not isinstance(options, dict):
        raise UsageError(
            f"model.template_options is {text!r} but must be a JSON object; write it like "
            """'{"enable_thinking": false}'"""
        )
    return options


def load(
    folder: pathlib.Path, control: Sequence[str], options: Mapping[str, Any]
) -> tuple[Template, dict[str, str]]:
    """The template of a model folder, and its named tokens (`eos_token`, ...).

    `chat_template.jinja` goes before the one in `tokenizer_config.json`, as in transformers.
    """
    config = read_json(folder / "tokenizer_config.json")
    names = {}
    for name in (f"{n}_token" for n in NAMES):
        token = config.get(name)
        if token := token.get("content") if isinstance(token, dict) else token:
            names[name] = token
    file = folder / "chat_template.jinja"
    source = file.read_text(encoding="utf-8") if file.is_file() else config.get("chat_template")
    if isinstance(source, list):
        named = {each["name"]: each["template"] for each in source}
        source = named.get("default")
    if not isinstance(source, str):
        raise UsageError(
            f"{folder} has no chat template; put the model's chat_template.jinja there"
        )
    return Template(source, str(folder), control, {**names, **options}), names


def read_json(file: pathlib.Path) -> dict[str, Any]:
    """A JSON object from a model's file; {} where there is none."""
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{file} is damaged ({error}); take it from the model again") from None
    if not isinstance(content, dict):
        raise UsageError(f"{file} holds no JSON object; take it from the model again")
    return content
