"""The text form of captured graphs (contract C1)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from symshapes.text.fakes import FakeTensors
from symshapes.text.form import TextForm
from symshapes.text.graph_reader import parse_graph
from symshapes.text.graphs import GraphForm

from .verify import check_captured

GRAPHS = GraphForm(TextForm("bytecode_dynamo.graph", 1), FakeTensors, check_captured)


def format_captured(gm: torch.fx.GraphModule, *, lines: bool = True, strict: bool = True) -> str:
    """A captured graph as text; ``lines``: with the user's lines (C1.5), which name files.

    Raises ``symshapes.text.values.Unwritable`` for a value or function without a text, such as an
    ``autograd.Function`` of the program, with its node; without ``strict`` it is described, in a
    text that can't be read.
    """
    return GRAPHS.write(gm, lines, strict)


def parse_captured(
    text: str, constants: Mapping[str, torch.Tensor] | None = None
) -> torch.fx.GraphModule:
    """The captured graph of a text, checked (C1). ``constants``: the module's tensors by name.

    Raises ``symshapes.ParseError`` with line and column, ``symshapes.VersionError`` for a text of
    a newer version, ContractError for what the checker finds.
    """
    return parse_graph(text, GRAPHS, constants)
