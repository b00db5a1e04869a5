"""Several functional graphs in one text, as an argument of an operator that computes with them.

The graphs have the form of ``graphs``. The text does not depend on files, and sizes in it are
symbols whose hints say nothing of an example, so equal functions have equal texts.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch.fx import GraphModule

from .fakes import FakeTensors
from .form import TextForm, reading
from .graph_reader import GraphReader
from .graphs import GraphForm, GraphWriter

FUNCTIONS = GraphForm(TextForm("symshapes.functions", 1), FakeTensors)


def format_functions(functions: Mapping[str, GraphModule]) -> str:
    """The graphs as text, in order. Raises Unwritable for values and calls without a text."""
    writer = GraphWriter(FUNCTIONS, lines=False)
    for name, gm in functions.items():
        writer.write(gm, name)
    return FUNCTIONS.form.write("\n\n".join(writer.parts()) + "\n")


def parse_functions(text: str) -> dict[str, GraphModule]:
    """The graphs of a text by name. Raises ParseError and VersionError."""
    with reading():
        reader = GraphReader(FUNCTIONS, {})
        for statement in FUNCTIONS.form.parse(text).body:
            reader.read(statement)
    return reader.graphs
