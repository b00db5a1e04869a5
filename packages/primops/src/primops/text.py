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
from symshapes.text.graphs import format_graph as write_graph
from symshapes.text.tensors import TensorType

from primops import prims
from primops.meta import TensorMeta
from primops.module import LazyGraphModule
from primops.opset import OPSET_VERSION
from primops.verify import check_prims

FORM = TextForm("primops.graph", OPSET_VERSION)


class _Metas:
    """``TensorMeta`` in ``meta["val"]``."""

    def __init__(self, env: ShapeEnv) -> None:
        del env

    def describe(self, value: Any) -> TensorType | None:
        if not isinstance(value, TensorMeta):
            return None
        return TensorType(value.dtype, value.shape, value.strides, value.device)

    def make(self, given: TensorType) -> TensorMeta:
        return TensorMeta(given.shape, given.strides, given.dtype, given.device)


GRAPHS = GraphForm(
    FORM, _Metas, {"prims": prims, "operator": operator, "torch": torch}, LazyGraphModule
)


def format_graph(gm: torch.fx.GraphModule, *, lines: bool = True) -> str:
    """A prim graph as text; ``lines``: with the user's lines, which name files.

    Raises ``symshapes.text.values.Unwritable`` for a value without a text, with its node.
    """
    return FORM.write(write_graph(gm, GRAPHS, lines=lines))


def parse_graph(
    text: str, constants: Mapping[str, torch.Tensor] | None = None
) -> torch.fx.GraphModule:
    """The prim graph of a text, checked (C3). ``constants``: the module's tensors by name.

    Raises ``symshapes.ParseError`` with line and column, ``symshapes.VersionError`` for a text of
    an op set that is newer than this one, ContractError for what the checker finds.
    """
    gm = read_graph(text, GRAPHS, constants)
    check_prims(gm)
    return gm
