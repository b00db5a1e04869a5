"""Choices are recorded by name, repeated where they are known, and stale where they don't apply."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from symshapes.choices import Choices, choose, current, decide, using, within


def test_without_a_record_the_preferred_answer_holds() -> None:
    assert current() is None
    assert decide("inline", "add", True)
    assert decide("inline", "add", lambda: True)
    assert choose("parts", "sum", lambda: "4", str.isdigit) == "4"
    with within("block0"):
        assert not decide("inline", "add", False)


def compile_with(choices: Choices | None, wish: str = "4", inline: bool = True) -> list[object]:
    with using(choices):
        made: list[object] = [decide("inline", name, inline) for name in ("add", "mul")]
        made.append(choose("parts", lambda: "sum", wish, str.isdigit))
        with within("block0"):
            made.append(choose("parts", "sum", wish, str.isdigit))
            made += [decide("twice", "x", inline, numbered=True) for _ in range(2)]
    if choices is not None:
        choices.finish()
    return made


def test_known_choices_are_repeated() -> None:
    first = Choices()
    made = compile_with(first)
    assert made == [True, True, "4", "4", True, True]
    assert first.made == {
        "inline": ["add", "mul"],
        "parts": {"sum": "4"},
        "parts in block0": {"sum": "4"},
        "twice in block0": ["x", "x #2"],
    }
    again = Choices(first.made)
    assert compile_with(again, "9", inline=False) == made
    assert (again.made, again.stale, again.new) == (first.made, [], [])


def test_nothing_is_measured_where_the_answer_is_known() -> None:
    known = Choices({"tiles": {"mm": "8"}, "templates": []})
    with using(known):
        assert choose("tiles", "mm", lambda: pytest.fail("measured"), str.isdigit) == "8"
        assert not decide("templates", "mm", lambda: pytest.fail("measured"))


def test_stale_choices_are_made_anew() -> None:
    known = {"inline": ["add", "gone"], "parts": {"sum": "many", "max": "2"}, "twice in block0": {}}
    choices = Choices(known)
    assert compile_with(choices) == [True, False, "4", "4", True, True]
    assert choices.stale == [
        "parts: sum can't be 'many'",
        "twice in block0 is no array",
        "twice in block0 is no array",
        "inline: gone is gone",
        "parts: max is gone",
    ]
    assert choices.made["parts"] == {"sum": "4"}


def test_a_choice_that_a_table_lacks_is_new() -> None:
    choices = Choices({"parts": {}})
    compile_with(choices)
    assert choices.new == ["parts: sum"]


def test_a_sequence_keeps_its_order_and_what_could_not_be_followed() -> None:
    choices = Choices({"fused": ["a and b", "c and d"]})
    assert choices.sequence("fused") == ["a and b", "c and d"]
    choices.extend("fused", "c and d")
    choices.extend("fused", stale="a and b can't be fused")
    choices.finish()
    assert choices.made == {"fused": ["c and d"]}
    assert choices.stale == ["fused: a and b can't be fused"]


questions = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.sampled_from("xyz"),
        st.booleans(),
        st.sampled_from(["", "block0"]),
    )
)


@given(questions, st.booleans())
def test_a_record_replays_itself_through_its_text(asked, other):
    def ask(choices, opposite):
        answers = []
        with using(choices):
            for rule, name, wish, scope in asked:
                with within(scope):
                    answers.append(decide(rule, name, wish ^ opposite, numbered=True))
                    wished = str(int(wish ^ opposite))
                    answers.append(choose(f"{rule}s", name, wished, str.isdigit, numbered=True))
        choices.finish()
        return answers

    first = Choices()
    answers = ask(first, False)
    again = Choices(json.loads(json.dumps(first.made)))
    assert ask(again, other) == answers
    assert (again.made, again.stale, again.new) == (first.made, [], [])
