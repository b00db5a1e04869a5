"""Prims: the list, the three readings, references and meta rules."""

from __future__ import annotations

import copy
import os
import pickle
from pathlib import Path

import pytest
import torch
from primops import OPSET, OPSET_VERSION, MetaReading, PrimError, TensorMeta, prims, reading_with
from primops.opset import GROUPS
from primops.prims.random import philox, seeds_of_calls
from primops.testing.strategies import GENERATED
from torch import fx

from packages.primops.tests.metas import run_batch

# 2,000 calls by default, 200,000 in the thorough profile (as in `python -m
# packages.primops.tests.metas --jobs 2`).
EXAMPLES = 1500 if os.environ.get("STRATA_PROFILE") == "thorough" else 20
CPU = torch.device("cpu")
CONTRACTS = Path(__file__).parents[3] / "docs" / "contracts.md"


def test_opset_is_the_list_of_the_contract():
    assert f"## Appendix: the prims of opset {OPSET_VERSION}\n" in CONTRACTS.read_text()
    assert len(OPSET) == sum(map(len, GROUPS.values())) <= 250
    assert set(prims.__all__) == set(OPSET)


@pytest.mark.parametrize("name", OPSET)
def test_prim_states_its_meaning(name):
    prim = OPSET[name]
    assert prim.name == name == prim.__name__
    assert name in GROUPS[prim.group]
    assert prim.meaning and "\n" not in prim.meaning
    assert prim.dtype_rule and prim.numerics and prim.tags
    assert getattr(prims, name) is prim
    assert pickle.loads(pickle.dumps(prim)) is prim
    assert copy.deepcopy(prim) is prim


@pytest.mark.parametrize("name", GENERATED)
def test_meta_rule_agrees_with_reference(name):
    batch = run_batch(name, EXAMPLES, seed=0)
    assert not batch.error, batch.error


def test_philox_known_answers():
    # From the Random123 distribution: kat_vectors, philox4x32 10.
    zeros = philox(torch.tensor(0), torch.tensor(0))
    assert [f"{word:08x}" for word in zeros.tolist()] == [
        "6627e8d5",
        "e169c58d",
        "bc57ac4c",
        "9b00dbd8",
    ]


@pytest.mark.parametrize("uniform", [prims.uniform, prims.uniform16])
def test_uniform_depends_on_seed_and_position_only(uniform):
    seed = torch.tensor(-7)
    whole = uniform(seed, shape=(4, 25), offset=3)
    assert torch.equal(whole.reshape(-1)[10:50], uniform(seed, shape=(40,), offset=13))
    many = uniform(torch.tensor(11), shape=(100_000,), offset=0)
    assert many.min() >= 0 and many.max() < 1
    assert abs(many.mean() - 0.5) < 0.004 and abs(many.var() - 1 / 12) < 0.002
    assert not torch.equal(whole, uniform(torch.tensor(8), shape=(4, 25), offset=3))


def test_elements_that_share_a_word_are_decided_apart():
    drawn = prims.uniform16(torch.tensor(5), shape=(1 << 22,), offset=0)
    kept = (drawn < 0.9).double().reshape(-1, 8)
    assert abs(kept.mean() - 0.9) < 0.0008 and torch.all((kept.mean(0) - 0.9).abs() < 0.0022)
    together = torch.corrcoef(kept.T) - torch.eye(8)
    assert together.abs().max() < 0.008
    assert abs((drawn < 1e-6).sum() - 4.2) < 9


@pytest.mark.parametrize("offset", [0, 8, 800])
def test_odd_elements_swap_the_halves_of_the_word(offset):
    """The even element shows a word's upper 24 bits, the odd one its lower 16 bits and then the
    next 8 of the upper.
    """
    even, odd = (
        (prims.uniform16(torch.tensor(9), shape=(64,), offset=offset) * 2.0**24)
        .long()
        .view(-1, 2)
        .unbind(1)
    )
    assert torch.equal(odd & 0xFF, even >> 16)
    assert torch.equal((odd >> 16), even & 0xFF)


def test_metas_are_inferred_without_an_interpreter():
    meta = TensorMeta.from_tensor(ONES)
    assert prims.add(meta, 1.0) == meta and prims.sum(meta, dims=(1,)).shape == (2,)


def test_random_seed_follows_the_default_generator():
    torch.manual_seed(3)
    first, second = prims.random_seed(device=CPU), prims.random_seed(device=CPU)
    torch.manual_seed(3)
    assert torch.equal(first, prims.random_seed(device=CPU))
    assert not torch.equal(first, second)


def test_seeds_of_calls_continue_and_differ():
    numbers = seeds_of_calls(2**64 - 1, 5, 300)
    assert numbers.is_contiguous() and torch.equal(numbers[:, 0], numbers[:, 1])
    assert torch.equal(numbers[200:], seeds_of_calls(2**64 - 1, 205, 100))
    assert len(set(numbers[:, 0].tolist())) == 300


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_seeds_of_a_cuda_device_are_what_randint_draws():
    device, other = torch.device("cuda"), torch.cuda.Stream()

    def drawn(draw):
        torch.cuda.manual_seed(2**63 + 9)
        torch.rand(1000, device=device)
        return [int(draw()) for _ in range(600)]

    def randint():
        return torch.randint(-(2**63), 2**63 - 1, (), dtype=torch.int64, device=device)

    ours, theirs = drawn(lambda: prims.random_seed(device=device)), drawn(randint)
    assert ours == theirs and len(set(ours)) == 600
    torch.cuda.manual_seed(2**63 + 9)
    torch.rand(1000, device=device)
    with torch.cuda.stream(other):
        assert int(prims.random_seed(device=device)) == ours[0]
    assert int(randint()) == ours[1] and int(prims.random_seed(device=device)) == ours[2]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = prims.random_seed(device=device)
    for number in ours[3:5]:
        graph.replay()
        assert int(captured) == number
    assert int(prims.random_seed(device=device)) == ours[5]


ONES = torch.ones(2, 3)
BAD_CALLS = {
    "other dtype": (prims.add, (ONES, ONES.double()), {}),
    "other shape": (prims.add, (ONES, torch.ones(3)), {}),
    "half arithmetic": (prims.add, (ONES.bfloat16(), ONES.bfloat16()), {}),
    "float number on integers": (prims.add, (ONES.long(), 1.5), {}),
    "numbers only": (prims.add, (1, 2), {}),
    "too many operands": (prims.neg, (ONES, ONES), {}),
    "missing parameter": (prims.sum, (ONES,), {}),
    "unknown parameter": (prims.neg, (ONES,), {"dim": 0}),
    "float floor": (prims.floor, (ONES.long(),), {}),
    "unsorted dims": (prims.sum, (ONES,), {"dims": (1, 0)}),
    "empty maximum": (prims.amax, (torch.ones(0),), {"dims": (0,)}),
    "elements differ": (prims.reshape, (ONES,), {"shape": (5,)}),
    "slice outside": (prims.slice, (ONES,), {"dim": 1, "start": 0, "stop": 4, "step": 1}),
    "no permutation": (prims.permute, (ONES,), {"dims": (0, 0)}),
    "int32 index": (prims.index, (ONES, torch.tensor([0], dtype=torch.int32)), {"dims": (0,)}),
    "where on a float": (prims.where, (ONES, ONES, ONES), {}),
    "real and meta": (prims.add, (ONES, TensorMeta.from_tensor(ONES)), {}),
    "width": (prims.bitcast, (ONES,), {"dtype": torch.int16}),
    "bool sum": (prims.sum, (ONES.bool(),), {"dims": (0,)}),
    "int32 seed": (
        prims.uniform,
        (torch.tensor(1, dtype=torch.int32),),
        {"shape": (2,), "offset": 0},
    ),
    "seed of one dim": (prims.uniform16, (torch.tensor([1]),), {"shape": (2,), "offset": 0}),
    "complex number on floats": (prims.add, (ONES, 1j), {}),
    "broadcast misfit": (prims.broadcast_in_dim, (ONES,), {"shape": (4, 3), "dims": (0, 1)}),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_bad_call_names_the_prim(case):
    prim, operands, params = BAD_CALLS[case]
    with pytest.raises(PrimError, match=prim.name):
        prim(*operands, **params)


@pytest.mark.parametrize("position", [-1, 2])
def test_index_out_of_range(position):
    at = torch.tensor([position])
    for call in (
        lambda: prims.index(ONES, at, dims=(0,)),
        lambda: prims.index_put(ONES, torch.ones(1, 3), at, dims=(0,), accumulate=False),
        lambda: prims.gather(ONES, at.reshape(1, 1), dim=0),
        lambda: prims.scatter(ONES, at.reshape(1, 1), torch.ones(1, 1), dim=0),
        lambda: prims.scatter_add(ONES, at.reshape(1, 1), torch.ones(1, 1), dim=0),
    ):
        with pytest.raises(IndexError, match="out of range"):
            call()


def test_prims_are_fx_targets():
    def f(x):
        return prims.sum(prims.mul(x, 2.0), dims=(1,))

    graph = fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(prims.mul, (x, 2.0))
    graph.output(graph.call_function(prims.sum, (y,), {"dims": (1,)}))
    gm = fx.GraphModule(torch.nn.Module(), graph)
    assert "primops_prims_mul(x, 2.0)" in gm.code
    assert torch.equal(gm(ONES), f(ONES))
    assert torch.equal(pickle.loads(pickle.dumps(gm))(ONES), f(ONES))


def test_creation_without_operands_follows_the_interpreter():
    assert isinstance(
        prims.full(shape=(2,), value=1, dtype=torch.float32, device=CPU), torch.Tensor
    )
    with reading_with(MetaReading()):
        assert isinstance(
            prims.full(shape=(2,), value=1, dtype=torch.float32, device=CPU), TensorMeta
        )


@pytest.mark.parametrize(
    ("low", "high", "expected"), [(2, -4, []), (3, -4, [9]), (-4, 5, [9, 9, 9]), (-1, 1, [2, 9])]
)
def test_pads_may_remove_more_than_there_is(low, high, expected):
    assert prims.pad(torch.tensor([1, 2]), low=(low,), high=(high,), value=9).tolist() == expected
