"""The text form of functional graphs (contract C2)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from symshapes.text.fakes import FakeTensors
from symshapes.text.form import TextForm
from symshapes.text.graph_reader import parse_graph
from symshapes.text.graphs import GraphForm

from .verify import check_functional

GRAPHS = GraphForm(TextForm("aotgrad.graph", 1), FakeTensors, check_functional)


def format_functional(gm: torch.fx.GraphModule, *, lines: bool = True, strict: bool = True) -> str:
    """A functional graph as text; ``lines``: with the user's lines, which name files.

    Raises ``symshapes.text.values.Unwritable`` for a value without a text, with its node; without
    ``strict`` it is described, in a text that can't be read.
    """
    return GRAPHS.write(gm, lines, strict)


def parse_functional(
    text: str, constants: Mapping[str, torch.Tensor] | None = None
) -> torch.fx.GraphModule:
    """The functional graph of a text, checked (C2). ``constants``: the module's tensors by name.

    Raises ``symshapes.ParseError`` with line and column, ``symshapes.VersionError`` for a text of
    a newer version, ContractError for what the checker finds.
    """
    return parse_graph(text, GRAPHS, constants)
