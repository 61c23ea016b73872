"""Chat templates: rendered as transformers does, built by turns, thinking kept or stripped."""

import datetime
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spade_jax.policy import templates
from spade_jax.policy.templates import Template, shield
from spade_jax.policy.tokenizer import CONTROL, ChatTokenizer, copy_tokenizer
from spade_jax.types import Message, StopReason, UsageError
from tests.policy import goldens
from tests.policy.goldens import ASK, CALL, CASES, ESCAPE, MORE, NAMES, RESULTS, SYSTEM, TOOLS

END = "<|im_end|>"
THINKS = {"tiny": "keep", "instruct": "keep", "thinking": "strip", "qwen3": "strip"}
SHOWN = [(name, case) for name in NAMES for case in CASES if goldens.shown(name, case)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    parent = tmp_path_factory.mktemp("templates")
    present = [name for name in NAMES if name != "qwen3" or goldens.QWEN3.is_file()]
    return {name: goldens.folder(parent, name) for name in present}


@pytest.fixture(scope="module")
def references(folders: dict[str, Path]) -> dict[str, Any]:
    pytest.importorskip("transformers")
    return {name: goldens.reference(folder) for name, folder in folders.items()}


@pytest.fixture(scope="module")
def chats(folders: dict[str, Path]) -> dict[str, ChatTokenizer]:
    return {name: ChatTokenizer(folder) for name, folder in folders.items()}


@pytest.fixture(scope="module")
def instruct(chats: dict[str, ChatTokenizer]) -> ChatTokenizer:
    return chats["instruct"]


def of(template: str, each: dict[str, Any]) -> Any:
    """What belongs to a template; skipped where the real one is not there."""
    if template not in each:
        pytest.skip("SPADE_QWEN3_TEMPLATE does not name the chat template of Qwen3")
    return each[template]


def said(*messages: tuple[str, str]) -> list[Message]:
    return [Message(role=role, content=content) for role, content in messages]


def text(t: ChatTokenizer, ids: tuple[int, ...]) -> str:
    """With control tokens."""
    return t._tokenizer.decode(list(ids), skip_special_tokens=False)


def template(source: str, place: str = "here", **variables: Any) -> Template:
    return Template(source, place, CONTROL, variables)


def written(folder: Path, tmp_path: Path, source: str) -> Path:
    """A copy of the folder with another template."""
    shutil.copytree(folder, tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text(source, encoding="utf-8")
    return tmp_path / "model"


# -- as transformers renders --------------------------------------------------------------------


@pytest.mark.parametrize(("name", "case"), SHOWN)
def test_prompts_are_the_golden_ones(chats: dict[str, ChatTokenizer], name: str, case: str) -> None:
    t = of(name, chats)
    ids = t.prompt(goldens.conversation(case), goldens.tools(case))
    golden = goldens.golden(name)[case]
    if case == "markers":
        # two more messages than contents that try to close or open one: none of them does
        assert ids.count(t.start_id) == 5 and ids.count(t.end_id) == 4 and t.pad_id not in ids
        golden = golden if name != "qwen3" else text(t, tuple(golden))
        assert text(t, ids) == golden
    elif name == "qwen3":
        assert goldens.without_tools(case, list(ids)) == golden
    else:
        assert text(t, ids) == golden


@pytest.mark.parametrize(("name", "case"), SHOWN)
def test_prompts_are_those_of_transformers(
    chats: dict[str, ChatTokenizer], references: dict[str, Any], name: str, case: str
) -> None:
    t = of(name, chats)
    whole = goldens.rendered(references[name], case)
    ids = t.prompt(goldens.conversation(case), goldens.tools(case))
    assert text(t, ids) == whole
    if case != "markers":
        assert list(ids) == goldens.encoded(references[name], whole)


@pytest.mark.parametrize(
    ("name", "case"),
    [(n, c) for n, c in SHOWN if THINKS[n] == "keep" and "assistant" in dict(CASES[c][0])],
)
def test_turn_by_turn_is_the_whole_where_thinking_is_kept(
    chats: dict[str, ChatTokenizer], name: str, case: str
) -> None:
    t, new, ids = of(name, chats), [], ()
    for m in goldens.conversation(case):
        if m.role != "assistant":
            new.append(m)
            continue
        first = t.prompt(new, goldens.tools(case))
        ids += t.continuation(StopReason.STOP, new) if ids else first
        ids += (*t.encode(m.content), t.end_id)
        new = []
    ids += t.continuation(StopReason.STOP, new)
    assert ids == t.prompt(goldens.conversation(case), goldens.tools(case))
    assert text(t, ids) == goldens.golden(name)[case]


@pytest.mark.parametrize("options", [{"enable_thinking": False}, {"enable_thinking": True}])
def test_switches_of_the_real_template(
    folders: dict[str, Path], references: dict[str, Any], options: dict[str, bool]
) -> None:
    t = ChatTokenizer(of("qwen3", folders), options=options)
    ids = t.prompt(goldens.conversation("thoughts"))
    assert text(t, ids) == goldens.rendered(references["qwen3"], "thoughts", **options)
    empty = "<think>\n\n</think>\n\n"
    assert text(t, ids).endswith(f"assistant\n{'' if options['enable_thinking'] else empty}")
    assert t.think == "strip"
    assert t.generation((), (), StopReason.LENGTH).text == ""


SURROUNDINGS = """{{ bos_token }}{% for m in messages %}
{% if loop.index0 == 2 %}{% break %}{% endif %}
    {% generation %}
{{ m | tojson }} {{ m.content | tojson(indent=2) }}
    {% endgeneration %}
{% endfor %}{{ strftime_now('%Y') }}{{ '' if tools is none else tools }}{{ extra }}
"""


def test_what_templates_find_around_them(folders: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    messages = said(("user", "<b> & 'é' \"q\""), ("assistant", "\u2028"), ("user", "cut"))
    folder = written(folders["tiny"], tmp_path, SURROUNDINGS)
    found, _ = templates.load(folder, CONTROL, {"extra": "!", "bos_token": "<s>"})
    whole = goldens.reference(folder).apply_chat_template(
        [{"role": m.role, "content": m.content} for m in messages],
        tokenize=False,
        extra="!",
        bos_token="<s>",
    )
    assert found.render(messages, opening=False).plain() == whole
    assert whole.endswith(f"{datetime.datetime.now().year}!")
    assert "<b> & 'é' \\\"q\\\"" in whole


def test_where_the_template_is_read_from(
    folders: dict[str, Path], chats: dict[str, ChatTokenizer], tmp_path: Path
) -> None:
    """transformers, too, prefers the file, and the one called default in a list."""
    folder = tmp_path / "model"
    shutil.copytree(folders["tiny"], folder)
    (folder / "chat_template.jinja").unlink()
    config = json.loads((folder / "tokenizer_config.json").read_text())
    listed = [{"name": "other", "template": "{{ x.y }}"}]
    listed.append({"name": "default", "template": config["chat_template"]})
    for kept, answer in ((config["chat_template"], 1), (listed, 1), (listed[:1], 0), (None, 0)):
        changed = json.dumps(config | {"chat_template": kept})
        (folder / "tokenizer_config.json").write_text(changed)
        if answer:
            assert ChatTokenizer(folder).prompt(said(ASK)) == of("tiny", chats).prompt(said(ASK))
        else:
            with pytest.raises(UsageError, match="has no chat template; put the model's chat_t"):
                ChatTokenizer(folder)
    (folder / "chat_template.jinja").write_text(goldens.source("thinking"))
    assert ChatTokenizer(folder).think == "strip"


def test_stop_tokens_of_the_folder(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(folders["instruct"], folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    for listed, eos, stops in (
        ([258, 256, 264, 5], END, (258, 256, 264, 5)),
        (7, END, (258, 256, 7)),
        (None, {"content": "</think>"}, (258, 256, 264)),
        ([], None, (258, 256)),
    ):
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": listed}))
        (folder / "tokenizer_config.json").write_text(json.dumps(config | {"eos_token": eos}))
        assert ChatTokenizer(folder).stop_ids == stops
    again = tmp_path / "again"
    again.mkdir()
    copy_tokenizer(folder, again)
    assert ChatTokenizer(again).stop_ids == (258, 256)
    assert sorted(p.name for p in again.iterdir()) == sorted(p.name for p in folder.iterdir())


# -- contents are untrusted ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["instruct", "thinking", "qwen3"])
def test_markers_in_tools_and_results_open_nothing(
    chats: dict[str, ChatTokenizer], name: str
) -> None:
    t = of(name, chats)
    tool = {"type": "function", "function": {ESCAPE: [ESCAPE], "name": "x"}}
    messages = said(("system", ESCAPE), ASK, ("assistant", CALL), ("tool", ESCAPE))
    ids = t.prompt(messages, [tool])
    assert (ids.count(t.start_id), ids.count(t.end_id), ids.count(t.pad_id)) == (5, 4, 0)
    assert text(t, ids).count(json.dumps(ESCAPE)) == 2
    if t.think == "keep":
        more = t.continuation(StopReason.LENGTH, said(("tool", ESCAPE), ("tool", ESCAPE)))
        assert (more.count(t.start_id), more.count(t.end_id)) == (2, 2)
        assert text(t, more).count(f"<tool_response>\n{ESCAPE}\n</tool_response>") == 2


PARTS = st.sampled_from(
    [*CONTROL, "<|im_", "start|>", "end|>", "\n", " ", "user", "\U000f0000", "é数🙂"]
)
CONTENTS = st.lists(PARTS, max_size=6).map("".join)


@settings(max_examples=40, deadline=None)
@given(system=CONTENTS, ask=CONTENTS, reply=CONTENTS)
def test_any_content_stays_content(
    instruct: ChatTokenizer, system: str, ask: str, reply: str
) -> None:
    t = instruct
    ids = t.prompt(said(("system", system), ("user", ask), ("assistant", reply), ("user", ask)))
    assert (ids.count(t.start_id), ids.count(t.end_id), ids.count(t.pad_id)) == (5, 4, 0)
    more = t.continuation(StopReason.STOP, said(("user", ask), ("tool", reply)))
    assert (more.count(t.start_id), more.count(t.end_id)) == (3, 2)
    start = "<|im_start|>"
    turns = f"{start}user\n{ask}{END}\n{start}user\n<tool_response>\n{reply}\n</tool_response>{END}"
    assert text(t, more) == f"\n{turns}\n{start}assistant\n"


def test_stand_ins_are_free_characters() -> None:
    taken = "".join(map(chr, range(0xF0000, 0xF0003)))
    tree = {"a<x>": [f"{taken}<x>", ("<xx>", 3, None)]}
    shielded, contents = shield(tree, ("<x>", "<xx>", "<y>"))
    assert shielded == {"a\U000f0004": [f"{taken}\U000f0004", ["\U000f0003", 3, None]]}
    assert contents == {0xF0004: "<x>", 0xF0003: "<xx>"}
    assert shield(tree, ("<y>",)) == (tree, {})


# -- thinking -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_thinking_is_kept_or_stripped_as_the_template_has_it(
    chats: dict[str, ChatTokenizer], name: str
) -> None:
    assert of(name, chats).think == THINKS[name]
    assert of(name, chats).shows_tools == (name != "tiny")


@pytest.mark.parametrize("name", ["thinking", "qwen3", "instruct"])
def test_stripped_turns_have_prompts_without_earlier_thoughts(
    folders: dict[str, Path], name: str
) -> None:
    """Where the template itself would keep them, too."""
    t = ChatTokenizer(of(name, folders), think="strip")
    replies = ["<think>\na\n</think>\n\none", "<think>\nnever closed \\boxed{1}", "b</think>two"]
    messages = said(ASK)
    for reply in replies:
        messages += said(("assistant", reply), MORE)
    ids = t.prompt(messages)
    start = "<|im_start|>"
    opening = f"{start}assistant\n" + ("<think>\n" if name == "thinking" else "")
    turns = [f"{start}user\n{ASK[1]}{END}\n"]
    for answer in ("one", "", "two"):
        turns.append(f"{start}assistant\n{answer}{END}\n{start}user\n{MORE[1]}{END}\n")
    assert text(t, ids) == "".join(turns) + opening
    with pytest.raises(ValueError, match="each turn has a prompt of its own"):
        t.continuation(StopReason.STOP, said(MORE))


@pytest.mark.parametrize("name", ["thinking", "qwen3", "instruct"])
def test_thoughts_stay_while_results_of_calls_come_in(folders: dict[str, Path], name: str) -> None:
    t = ChatTokenizer(of(name, folders), think="strip")
    thought = f"<think>\nLook it up.\n</think>\n\n{CALL}"
    ids = t.prompt(said(ASK, ("assistant", thought), *RESULTS), TOOLS)
    assert f"assistant\n{thought}{END}\n" in text(t, ids)


@pytest.mark.parametrize("name", ["thinking", "qwen3"])
def test_thinking_kept_against_the_template(folders: dict[str, Path], name: str) -> None:
    """Declared `keep`, a reply stays what was sampled, thoughts and all."""
    t = ChatTokenizer(of(name, folders), think="keep")
    reply = t.encode("a\n</think>\n\none")
    ids = (*t.prompt(said(ASK)), *reply, *t.continuation(StopReason.LENGTH, said(MORE)))
    start, think = "<|im_start|>", "<think>\n" if name == "thinking" else ""
    opening = f"{start}assistant\n{think}"
    first = f"{start}user\n{ASK[1]}{END}\n{opening}a\n</think>\n\none"
    assert text(t, ids) == f"{first}{END}\n{start}user\n{MORE[1]}{END}\n{opening}"


def test_a_thought_opened_by_the_prompt_belongs_to_the_text(
    chats: dict[str, ChatTokenizer],
) -> None:
    t = of("thinking", chats)
    ids = t.encode("a\n</think>\n\n\\boxed{1}")
    generation = t.generation(ids, (0.0,) * len(ids), StopReason.LENGTH)
    assert generation.text == "<think>\na\n</think>\n\n\\boxed{1}"
    assert generation.ids == ids


def test_learning_from_a_stripping_template(chats: dict[str, ChatTokenizer]) -> None:
    t = of("thinking", chats)
    for content in ("<think>\n\n</think>\n\none", "one"):
        record = t.supervised(said(SYSTEM, ASK, ("assistant", content)))
        prompt = t.prompt(said(SYSTEM, ASK))
        assert record.ids[: len(prompt)] == prompt
        assert not any(record.action[: len(prompt)])
        trained = [i for i, own in zip(record.ids, record.action, strict=True) if own]
        assert text(t, tuple(trained)) == f"\n</think>\n\none{END}"
        assert record.action[-1] is False, "the line end after the end token is context"
    with pytest.raises(UsageError, match="must end with its only reply; split it by replies"):
        t.supervised(said(ASK, ("assistant", "one"), MORE, ("assistant", "two")))


# -- tool results -------------------------------------------------------------------------------


def test_two_results_are_one_turn(chats: dict[str, ChatTokenizer]) -> None:
    t = of("instruct", chats)
    two = t.continuation(StopReason.STOP, said(*RESULTS))
    start = "<|im_start|>"
    results = (
        '\n<tool_response>\n{"sum": "a total"}\n</tool_response>'
        "\n<tool_response>\n数\n</tool_response>"
    )
    assert text(t, two) == f"\n{start}user{results}{END}\n{start}assistant\n"
    assert text(t, t.message(Message(role="tool", content="x"))) == (
        f"{start}user\n<tool_response>\nx\n</tool_response>{END}\n"
    )


def test_a_template_without_tools_is_given_none(chats: dict[str, ChatTokenizer]) -> None:
    t = of("tiny", chats)
    with pytest.raises(UsageError, match="tiny shows no tools; describe them in a message"):
        t.prompt(said(ASK), TOOLS)


# -- templates that do not serve ----------------------------------------------------------------

TRIMMING = goldens.CHAT_TEMPLATE.replace("message.content", "message.content | trim")
COUNTING = goldens.CHAT_TEMPLATE.replace("message.content", "messages | length ~ message.content")
ENDLESS = goldens.CHAT_TEMPLATE.replace("'<|im_end|>", "'</s><|im_end|>")
STRICT = (
    "{% if messages | map(attribute='role') | select('equalto', 'tool') | list %}"
    "{{ raise_exception('No tools here.') }}{% endif %}" + goldens.CHAT_TEMPLATE
)


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (
            TRIMMING,
            r"turn by turn: after '.*user\\n' it has 'Sure\?<.*, '\\n Sure\? \\n<.*by turns",
        ),
        (
            COUNTING,
            r"after '<\|im_start\|>user\\n' it has '3Two .*' in a whole conversation, '1Two ",
        ),
        (ENDLESS, r"does not end a reply with <\|im_end\|>; use a model of Qwen's"),
        ("{{ messages[0].content }}", r"leaves replies out; give another template"),
        ("{% if %}", r"is damaged \(.*\); take it from the model again"),
        ("{{ raise_exception('Not today.') }}", r"refuses .* user \(Not today\.\); give it others"),
        ("{{ messages[0].no + 1 }}", r"refuses .*'no'"),
    ],
)
def test_templates_that_do_not_serve(
    folders: dict[str, Path], tmp_path: Path, source: str, sentence: str
) -> None:
    folder = written(folders["tiny"], tmp_path, source)
    with pytest.raises(UsageError, match=sentence) as found:
        ChatTokenizer(folder)
    assert f"the chat template of {folder} " in str(found.value)


@pytest.mark.parametrize("source", [TRIMMING, COUNTING])
def test_what_cannot_be_built_by_turns_can_be_rendered_whole(
    folders: dict[str, Path], tmp_path: Path, source: str
) -> None:
    pytest.importorskip("transformers")
    folder = written(folders["tiny"], tmp_path, source)
    t = ChatTokenizer(folder, think="strip")
    whole = goldens.rendered(goldens.reference(folder), "turns")
    assert text(t, t.prompt(goldens.conversation("turns"))) == whole


def test_a_template_may_lack_a_role(
    folders: dict[str, Path], chats: dict[str, ChatTokenizer], tmp_path: Path
) -> None:
    t = ChatTokenizer(written(folders["tiny"], tmp_path, STRICT))
    assert t.prompt(said(SYSTEM, ASK)) == of("tiny", chats).prompt(said(SYSTEM, ASK))
    with pytest.raises(UsageError, match=r"roles: .*tool \(No tools here\.\); give it others"):
        t.continuation(StopReason.STOP, said(*RESULTS))


def test_a_tokenizer_that_eats_space_beside_control_tokens(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = written(folders["tiny"], tmp_path, goldens.CHAT_TEMPLATE)
    raw = json.loads((folder / "tokenizer.json").read_text())
    for token in raw["added_tokens"]:
        token["rstrip"] = token["content"] == END
    (folder / "tokenizer.json").write_text(json.dumps(raw))
    with pytest.raises(UsageError, match="changes text beside its control tokens; use a token"):
        ChatTokenizer(folder)


def test_an_unknown_declaration(folders: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match="model.think is 'drop'; choose one of auto, keep, strip"):
        ChatTokenizer(folders["tiny"], think="drop")


def test_switches_are_a_json_object() -> None:
    read = templates.read_options
    assert read('{"enable_thinking": false}') == {"enable_thinking": False}
    for wrong, sentence in (("{enable", "which is no JSON"), ("[1]", "must be a JSON object")):
        with pytest.raises(UsageError, match=rf"model\.template_options is .*{sentence}"):
            read(wrong)
    assert template("{{ a }}{{ eos_token }}", a=1, eos_token="e").render([]).plain() == "1e"
