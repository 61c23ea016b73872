"""The text of replies: the same however their ids come in, cut at stop strings."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from spade_jax.serve.text import ReplyText


def decode(ids: Sequence[int]) -> str:
    """Ids that are bytes, as byte-level tokenizers have them."""
    return bytes(ids).decode(errors="replace")


def told(ids: Sequence[int], sizes: Sequence[int], **options: object) -> tuple[ReplyText, str]:
    """A reply read in pieces of these sizes, and what was shown up to its end."""
    text, shown, end = ReplyText(decode, **options), "", 0
    for size in sizes:
        end += size
        if end >= len(ids) or text.stopped:
            break
        text.read(ids[:end], last=False)
        shown += text.fresh()
    text.read(ids, last=True)
    return text, shown + text.fresh()


BYTES = st.one_of(st.binary(max_size=40), st.text("aé☃x", max_size=20).map(str.encode))
SIZES = st.lists(st.integers(1, 7), max_size=40)


@given(BYTES, SIZES)
def test_pieces_make_the_whole_text(data: bytes, sizes: list[int]) -> None:
    text, shown = told(list(data), sizes)
    assert text.text == shown == decode(list(data))
    assert text.used == text.kept == len(data) and not text.stopped


@given(BYTES, SIZES, st.lists(st.text("aé☃x", min_size=1, max_size=3), min_size=1, max_size=3))
def test_a_stop_string_cuts_alike_in_all_pieces(
    data: bytes, sizes: list[int], stops: list[str]
) -> None:
    whole = decode(list(data))
    text, shown = told(list(data), sizes, stops=stops)
    once, _ = told(list(data), [], stops=stops)
    assert text.text[: text.shown] == shown
    assert (text.text, text.used, text.kept) == (once.text, once.used, once.kept)
    assert text.stopped == any(stop in whole for stop in stops)
    assert whole.startswith(text.text) and not any(stop in text.text for stop in stops)


def test_the_stop_that_is_complete_first_counts() -> None:
    text, shown = told(list(b"xabc"), [], stops=["abc", "b"])
    assert (text.text, text.used, text.kept, shown) == ("xa", 3, 2, "xa")
    text, _ = told(list(b"ab"), [], stops=["ab"])
    assert (text.text, text.used, text.kept) == ("", 2, 0)


def test_half_a_character_and_half_a_stop_string_are_held_back() -> None:
    data = "a☃ENx".encode()
    text, shown = ReplyText(decode, ["END"]), []
    for end in range(1, len(data) + 1):
        text.read(list(data[:end]), last=end == len(data))
        shown.append(text.fresh())
    assert shown == ["a", "", "", "☃", "", "", "ENx"]
    text = ReplyText(decode, ["END"])
    text.read(list(b"EN"), last=True)
    assert (text.text, text.fresh(), text.shown) == ("EN", "", 0)


def test_text_from_a_call_on_is_held_back() -> None:
    data = b"so \n<tool_call>{}</tool_call>"
    text, shown = told(list(data), [2, 4, 4, 4, 20], calls=True)
    assert (shown, text.shown) == ("so", 2)
    assert text.text == data.decode()
    _, shown = told(list(b"a <tool_box>"), [5], calls=True)
    assert shown == "a <tool_box>"


def test_what_the_prompt_opened_is_shown_and_stops_nothing() -> None:
    text, shown = told(list(b"so</think>x"), [3, 3], opened="<think>\n", stops=["think>\ns", "x"])
    assert shown == text.text == "<think>\nso</think>"
    assert text.kept == 10
