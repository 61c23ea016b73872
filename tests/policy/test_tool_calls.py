"""Tool calls in text and in the form of servers; dialogues with an endpoint that offer tools."""

import json
from pathlib import Path

import pytest

from spade_jax.envs import parsers
from spade_jax.policy.conversation import Budget, Dialogues
from spade_jax.policy.endpoint import Endpoint, Settings
from spade_jax.policy.tool_calls import Sent, as_text
from spade_jax.types import Generation, Message
from tests.serve.scripted import NAME, ScriptedSampler, serving, tool_tokenizer

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def test_calls_of_a_server_are_what_our_parser_reads() -> None:
    text = as_text("Hm.", [("add", '{"a": 1}'), ("add", {"a": "</tool_call> é"}), ("stop", None)])
    assert text.startswith("Hm.\n<tool_call>\n")
    read = [(call.name, call.arguments) for call in parsers.tool_calls(text)]
    assert read == [("add", {"a": 1}), ("add", {"a": "</tool_call> é"}), ("stop", {})]
    assert as_text("Hm.", []) == "Hm." and as_text("", [("add", '{"a": 1}')]) == CALL
    with pytest.raises(parsers.ToolCallError):
        parsers.tool_calls(as_text("", [("add", '{"a": ')]))


def test_a_dialogue_in_the_form_of_servers() -> None:
    sent = Sent([ADD])
    for role, content in (
        ("user", "Add."),
        ("assistant", f"I do.\n{CALL}\n{CALL}"),
        ("tool", "2"),
        ("tool", "3"),
        ("tool", "one too many"),
        ("assistant", "<tool_call>\nno JSON\n</tool_call>"),
        ("tool", "What?"),
        ("assistant", CALL),
        ("tool", "4"),
    ):
        sent.append(Message(role=role, content=content))
    calls = sent.messages[1]["tool_calls"]
    assert sent.messages[1]["content"] == "I do."
    assert [call["function"] for call in calls] == [{"name": "add", "arguments": '{"a": 1}'}] * 2
    assert [call["id"] for call in calls] == ["call_0", "call_1"]
    assert sent.messages[2:4] == [
        {"role": "tool", "tool_call_id": "call_0", "content": "2"},
        {"role": "tool", "tool_call_id": "call_1", "content": "3"},
    ]
    assert sent.messages[4]["role"] == sent.messages[6]["role"] == "user"
    assert "<tool_response>\nWhat?" in sent.messages[6]["content"]
    assert sent.messages[5] == {
        "role": "assistant",
        "content": "<tool_call>\nno JSON\n</tool_call>",
    }
    assert sent.messages[7]["content"] is None
    assert sent.messages[8]["tool_call_id"] == "call_2"


def test_without_tools_all_is_text() -> None:
    sent = Sent()
    sent.append(Message(role="assistant", content=CALL))
    sent.append(Message(role="tool", content="2"))
    assert sent.messages == [
        {"role": "assistant", "content": CALL},
        {"role": "user", "content": "<tool_response>\n2\n</tool_response>"},
    ]


def ask(dialogues: Dialogues, dialogue: int, *said: tuple[str, str]) -> Generation:
    messages = [Message(role=role, content=content) for role, content in said]
    dialogues.ask(dialogue, messages, (1, 2), Budget(reply=64, context=256))
    replies: dict[int, Generation | None] = {}
    while not replies:
        replies = dialogues.answers()
    assert replies[dialogue] is not None, dialogues.failure(dialogue)
    return replies[dialogue]


def test_tools_at_our_server(tmp_path: Path) -> None:
    """What is called comes back as text, and the model is shown calls and results in its form."""
    tokenizer = tool_tokenizer(tmp_path)
    shown: list[str] = []

    def script(prompt: str) -> str:
        shown.append(prompt)
        return f"Let me.\n{CALL}" if len(shown) == 1 else "It is 2."

    sampler = ScriptedSampler(script, tokenizer)
    with serving(sampler, tokenizer) as url:
        with Endpoint(Settings(url=f"{url}/v1", model=NAME)) as endpoint:
            assert endpoint.longest() == 256
            dialogues = endpoint.converse()
            dialogue = dialogues.open([ADD])
            first = ask(dialogues, dialogue, ("user", "Add."))
            second = ask(dialogues, dialogue, ("tool", "2"))
            again = dialogues.open([ADD])
            said = (("user", "Add."), ("assistant", first.text), ("tool", "2"))
            third = ask(dialogues, again, *said)
    assert first.text == f"Let me.\n{CALL}"
    assert first.tokens == len(tokenizer.encode(first.text)) + 1
    assert second.text == third.text == "It is 2."
    assert json.dumps(ADD) in shown[0] and CALL in shown[1] and "2" in shown[1]
    assert shown[2] == shown[1]


def test_a_server_that_tells_no_length_or_is_not_there(tmp_path: Path) -> None:
    tokenizer = tool_tokenizer(tmp_path)
    with serving(ScriptedSampler(lambda _: "", tokenizer), tokenizer) as url:
        with Endpoint(Settings(url=f"{url}/v1", model="other")) as endpoint:
            assert endpoint.longest() is None
    with Endpoint(Settings(url=f"{url}/v1", model=NAME)) as endpoint:
        assert endpoint.longest() is None
