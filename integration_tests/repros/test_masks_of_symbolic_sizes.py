"""Attention masks that are made from ``arange`` of sizes that vary: what they mean, and values."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchstrata
from aotgrad.tracing import attention_masks
from hypothesis import given, settings
from hypothesis import strategies as st
from primops.testing import trace
from symshapes import FakeTensorMode

CAUSAL, NOTHING, UNKNOWN = {"attn_mask": None, "is_causal": True}, {"attn_mask": None}, None
Make = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def ranges(q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])[None, :]


def made(rule: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Make:
    return lambda q, k, pad: rule(*ranges(q, k))


def hugging_face(q: torch.Tensor, k: torch.Tensor, pad: torch.Tensor) -> torch.Tensor:
    """As transformers 5 builds it while it is traced."""
    rows = (torch.arange(q.shape[-2]) + 0)[None, :][:, None][:, :, :, None]
    columns = (torch.arange(k.shape[-2]) + 0)[None, None, None, :]
    mask = rows.new_ones((), dtype=torch.bool) & (columns <= rows)
    return mask.expand(q.shape[0], -1, q.shape[-2], k.shape[-2])


MASKS: dict[str, tuple[Make, Any]] = {
    "future": (made(lambda i, j: j <= i), CAUSAL),
    "future, turned": (made(lambda i, j: i >= j), CAUSAL),
    "future, strict": (made(lambda i, j: j < i + 1), CAUSAL),
    "future, twice": (made(lambda i, j: (j <= i) & (j - i <= 0)), CAUSAL),
    "future, with heads": (made(lambda i, j: (j <= i)[None, None]), CAUSAL),
    "hugging face": (hugging_face, CAUSAL),
    "nothing": (made(lambda i, j: (i - i <= 0) & (j + 1 > j)), NOTHING),
    "future and itself": (made(lambda i, j: j < i + 0 * j), UNKNOWN),
    "past": (made(lambda i, j: j >= i), UNKNOWN),
    "one more": (made(lambda i, j: j <= i + 1), UNKNOWN),
    "first three": (made(lambda i, j: (j <= i) & (j < 3)), UNKNOWN),
    "double": (made(lambda i, j: j <= 2 * i), UNKNOWN),
    "window": (made(lambda i, j: (j <= i) & (i - j < 4)), UNKNOWN),
    "or": (made(lambda i, j: (j <= i) | (j < 2)), UNKNOWN),
    "not": (made(lambda i, j: ~(j <= i)), UNKNOWN),
    "from one": (
        lambda q, k, pad: torch.arange(1, 1 + k.shape[-2]) <= torch.arange(q.shape[-2])[:, None],
        UNKNOWN,
    ),
    "padding": (
        lambda q, k, pad: (ranges(q, k)[1] <= ranges(q, k)[0]) & pad[:, None, None, :], UNKNOWN
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MASKS)
def test_meaning_and_values(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, expected = MASKS[name]
    found: list[Any] = []

    def spy(node: torch.fx.Node) -> Any:
        found.append(meaning_of(node))
        return found[-1]

    meaning_of = attention_masks.meaning_of
    monkeypatch.setattr(attention_masks, "meaning_of", spy)

    def attend(q: torch.Tensor, k: torch.Tensor, pad: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, k, attn_mask=make(q, k, pad))

    compiled = torchstrata.compile(attend, dynamic=True)
    for batch, queries, keys in ((2, 6, 9), (3, 9, 5), (2, 7, 7), (5, 2, 3)):
        q, k = torch.rand(batch, 2, queries, 8), torch.rand(batch, 2, keys, 8)
        pad = torch.rand(batch, keys) < 0.7
        torch.testing.assert_close(compiled(q, k, pad), attend(q, k, pad), equal_nan=True)
    assert found
    assert found[0] == expected


COMPARED = {"<=": operator.le, "<": operator.lt, ">=": operator.ge, ">": operator.gt}
places = st.recursive(
    st.sampled_from(["i", "j"]) | st.integers(-1, 1),
    lambda part: st.tuples(st.sampled_from("+-"), part, part),
    max_leaves=4,
)
comparisons = st.tuples(st.sampled_from(list(COMPARED)), places, places)
masks = st.recursive(
    comparisons, lambda part: st.tuples(st.sampled_from("&|"), part, part), max_leaves=3
)


def evaluated(term: Any, i: torch.Tensor, j: torch.Tensor) -> Any:
    if not isinstance(term, tuple):
        return {"i": i, "j": j}.get(term, term)
    how = {"+": operator.add, "-": operator.sub, "&": operator.and_, "|": operator.or_, **COMPARED}
    return how[term[0]](*(evaluated(part, i, j) for part in term[1:]))


@pytest.mark.filterwarnings("ignore:Raw SymInt")
@given(masks)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_a_meaning_holds_for_every_size(term: Any) -> None:
    def make(q: torch.Tensor, k: torch.Tensor) -> Any:
        return evaluated(term, *ranges(q, k))

    mode = FakeTensorMode()
    fakes = [mode.from_real(torch.empty(n, 2), source=str(n), dynamic_dims=[0]) for n in (5, 7)]
    with mode:
        known = isinstance(make(*fakes), torch.Tensor)
        graph = trace(make, *fakes) if known else None
    if graph is None:  # comparisons of numbers
        return
    (result,) = graph.graph.output_node().args[0]
    found = attention_masks.meaning_of(result)
    for sizes in ((5, 7), (2, 2), (9, 3)) if found else ():
        full = torch.ones(sizes, dtype=torch.bool)
        expected = full.tril() if "is_causal" in found else full
        assert torch.equal(make(*(torch.empty(n, 2) for n in sizes)).expand(sizes), expected)
