"""The corpus of prim graphs, and that it fixes what each prim means."""

import pytest
import torch
from primops import OPSET, evaluate, prim_of, prims
from primops.testing import corpus
from primops.testing.strategies import GENERATED
from primops.text import parse_graph
from symshapes.testing.stored import assert_stored, read_cases

CASES = [(case, parse_graph(case.text)) for case in read_cases(corpus.FOLDER)]
UNDETERMINED = {"as_strided", "eig", "eigh", "random_seed", "svd", "to_device"}
"""Prims whose results depend on the machine, or that no graph of the corpus holds."""


def prims_of(gm):
    """The names of a graph's prims, and of those in the graphs inside."""
    graphs = [m for m in gm.modules() if isinstance(m, torch.fx.GraphModule)]
    targets = {node.target for graph in graphs for node in graph.graph.nodes}
    return {getattr(prim_of(t) or t, "name", "") for t in targets if callable(t)}


USED = [(case, gm, prims_of(gm)) for case, gm in CASES]


def is_noticed(name):
    """Whether a stored graph with the prim has other results now."""
    for case, gm, used in USED:
        if name in used:
            try:
                assert_stored(evaluate(gm, case.given), case.gives)
            except Exception:
                return True
    return False


def test_every_file():
    report = corpus.check_corpus()
    assert report.passed == report.cases > 450


def test_every_prim_occurs():
    missing = {*GENERATED} - {name for _, _, used in USED for name in used}
    assert missing <= UNDETERMINED


PLANTED = {
    "round": lambda a: (a + 0.5).floor(),
    "remainder": torch.fmod,
    "maximum": torch.fmax,
    "sign": lambda a: torch.where(a >= 0, 1, -1).to(a.dtype),
    "cumsum": lambda a, *, dim: a.flip(dim).cumsum(dim).flip(dim),
    "argmax": lambda a, *, dim: a.shape[dim] - 1 - a.flip(dim).argmax(dim),
    "slice": lambda a, *, dim, start, stop, step: a.narrow(dim, 0, stop - start)[
        (slice(None),) * dim + (slice(None, None, step),)
    ].clone(),
    "flip": lambda a, *, dims: a.clone(),
    "sum": lambda a, *, dims: a.mean(dims) if dims else a,
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_meaning(name, monkeypatch):
    assert not is_noticed(name)
    monkeypatch.setattr(getattr(prims, name), "reference", PLANTED[name])
    assert is_noticed(name)


ELEMENTWISE = [p for p in OPSET.values() if p.group.startswith(("elementwise", "comparison"))]


@pytest.mark.parametrize("prim", ELEMENTWISE, ids=lambda prim: prim.name)
def test_no_prim_may_be_another_one(prim, monkeypatch):
    for other in ELEMENTWISE:
        same = other.name.removeprefix("modified_bessel_") == prim.name.removeprefix(
            "modified_bessel_"
        )
        if not same and other.operands == prim.operands and other.group == prim.group:
            monkeypatch.setattr(prim, "reference", other.reference)
            assert is_noticed(prim.name), f"{prim.name} may mean {other.name}"
            monkeypatch.undo()
