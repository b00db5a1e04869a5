"""The text form of prim graphs (contract C3), for files; needs symshapes (``primops[text]``).

Its version is that of the op set: a text of an older op set is read by rewriting it.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from symshapes.env import ShapeEnv
from symshapes.text.form import TextForm
from symshapes.text.graph_reader import parse_graph as read_graph
from symshapes.text.graphs import GraphForm
from symshapes.text.tensors import TensorType

from primops import prims
from primops.meta import TensorMeta
from primops.module import LazyGraphModule
from primops.opset import OPSET_VERSION
from primops.verify import check_prims

FORM = TextForm("primops.graph", OPSET_VERSION, {5: lambda tree: tree})  # 6 added `call`


class _Metas:
    """``TensorMeta`` in ``meta["val"]``; tensors of a functional graph are written as theirs."""

    def __init__(self, env: ShapeEnv) -> None:
        del env

    def describe(self, value: Any) -> TensorType | None:
        value = TensorMeta.from_tensor(value) if isinstance(value, torch.Tensor) else value
        if not isinstance(value, TensorMeta):
            return None
        return TensorType(value.dtype, value.shape, value.strides, value.device)

    def make(self, given: TensorType) -> TensorMeta:
        return TensorMeta(given.shape, given.strides, given.dtype, given.device)


ROOTS = {"prims": prims, "operator": operator, "torch": torch}
GRAPHS = GraphForm(FORM, _Metas, check_prims, ROOTS, LazyGraphModule)


def format_graph(gm: torch.fx.GraphModule, *, lines: bool = True, strict: bool = True) -> str:
    """A prim graph as text; ``lines``: with the user's lines, which name files.

    Raises ``symshapes.text.values.Unwritable`` for a value without a text, with its node; without
    ``strict`` it is described, in a text that can't be read. A functional graph is written, too.
    """
    return GRAPHS.write(gm, lines, strict)


def parse_graph(
    text: str, constants: Mapping[str, torch.Tensor] | None = None
) -> torch.fx.GraphModule:
    """The prim graph of a text, checked (C3). ``constants``: the module's tensors by name.

    Raises ``symshapes.ParseError`` with line and column, ``symshapes.VersionError`` for a text of
    an op set that is newer than this one, ContractError for what the checker finds.
    """
    return read_graph(text, GRAPHS, constants)
