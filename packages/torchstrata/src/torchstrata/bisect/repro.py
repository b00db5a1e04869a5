"""Repro files: the text of a form, its inputs, and the stage that makes something else of it.

::

    # torchstrata.repro 1
    # {"stage": "prims", "layer": "decomposition", ...}
    # aotgrad.graph 1
    def graph(x: f32[4]):
        ...
    # inputs
    # {"name": "x", "dtype": "float32", "shape": [4], "stride": [1], "data": "AACAPwAA..."}

Texts are contracts (``docs/compatibility.md``), tensors are the bytes of their elements: nothing is
pickled.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aotgrad
import bytecode_dynamo
import primops.text
import torch
from primops import TensorMeta
from symshapes import FakeTensorMode, ShapeEnv, is_fake, mode_of
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from torchstrata.errors import UsageError

from .cuts import Part
from .evaluate import copy_graph

HEADER, INPUTS = "# torchstrata.repro 1", "# inputs"
_DIRECTORY = re.compile(r'File "[^"]*[/\\]')
_FORMATS: Mapping[str, Callable[..., str]] = {
    "captured": bytecode_dynamo.format_captured,
    "functional": aotgrad.format_functional,
    "prims": primops.text.format_graph,
}
_PARSERS: Mapping[str, Callable[..., GraphModule]] = {
    "captured": bytecode_dynamo.parse_captured,
    "functional": aotgrad.parse_functional,
    "prims": primops.text.parse_graph,
}


@dataclass(frozen=True, slots=True)
class Repro:
    """A small program on which a stage goes wrong.

    Attributes:
        stage: the stage.
        source: the kind of text: "captured", "functional", "prims", "program" or "python".
        text: the form that the stage takes.
        inputs: name and value of each input, in order; tensors, numbers and None.
        constants: tensors that the text names.
        facts: what was found: layer, decision, node, difference; the options of the compilation.
    """

    stage: str
    source: str
    text: str
    inputs: Sequence[tuple[str, Any]]
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, stage: str, source: str, part: Part, facts: Mapping[str, Any]) -> Repro:
        """The repro of a graph. Raises ``symshapes.text.values.Unwritable`` for one without a
        text.
        """
        graph = _with_fakes(part.graph) if source == "functional" else part.graph
        text = _FORMATS[source](graph, lines=source == "captured")  # C1.5 asks for them
        text = _DIRECTORY.sub('File "', text)
        names = [node.name for node in part.graph.graph.find_nodes(op="placeholder")]
        constants = {}
        for node in part.graph.graph.find_nodes(op="get_attr"):
            value = getattr(part.graph, str(node.target), None)
            if isinstance(value, torch.Tensor):
                constants[str(node.target)] = value
        return cls(stage, source, text, [*zip(names, part.inputs)], constants, facts)

    def part(self) -> Part:
        """The graph with its inputs. Raises what the parser raises."""
        graph = _PARSERS[self.source](self.text, self.constants)
        return Part(graph, tuple(value for _, value in self.inputs))

    def write(self, path: Path) -> None:
        """Writes the file."""
        facts = {"stage": self.stage, "source": self.source, **self.facts}
        lines = [HEADER, f"# {json.dumps(facts)}", self.text.rstrip(), INPUTS]
        rows = [("input", *row) for row in self.inputs]
        rows += [("constant", *row) for row in self.constants.items()]
        lines += [f"# {json.dumps(_described(*row))}" for row in rows]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")


def _with_fakes(gm: GraphModule) -> GraphModule:
    """A functional graph whose values are all described by fake tensors (C2.3): patterns describe
    what they make by ``TensorMeta``.
    """
    copied = copy_graph(gm)
    values = [node.meta.get("val") for node in copied.graph.nodes]
    mode = next((mode_of(x) for x in pytree.tree_leaves(values) if is_fake(x)), None)
    mode = mode or FakeTensorMode(ShapeEnv(allow_unbacked=True))

    def fake(x: Any) -> Any:
        if not isinstance(x, TensorMeta):
            return x
        return mode.empty(x.shape, x.strides, dtype=x.dtype, device=x.device)

    for node in copied.graph.nodes:
        if node.op == "output":
            node.meta.pop("val", None)
        elif "val" in node.meta:
            node.meta["val"] = pytree.tree_map(fake, node.meta["val"])
    return copied


def read_repro(path: Path) -> Repro:
    """The repro of a file. Raises UsageError for a file that is none."""
    try:
        header, facts_line, *rest = path.read_text().splitlines()
        end = len(rest) - 1 - rest[::-1].index(INPUTS)
        facts = json.loads(facts_line.removeprefix("# "))
        rows = [json.loads(line.removeprefix("# ")) for line in rest[end + 1 :]]
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is no repro of torchstrata: {error}") from error
    if header != HEADER:
        raise UsageError(f"{path} is no repro of this version: it begins with {header!r}")
    inputs = [(row["name"], _value(row)) for row in rows if row["kind"] == "input"]
    constants = {row["name"]: _value(row) for row in rows if row["kind"] == "constant"}
    stage, source = facts.pop("stage"), facts.pop("source")
    return Repro(stage, source, "\n".join(rest[:end]) + "\n", inputs, constants, facts)


def _described(kind: str, name: str, value: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"kind": kind, "name": name}
    if not isinstance(value, torch.Tensor):
        if value is not None and not isinstance(value, (bool, int, float, str)):
            raise UsageError(f"{name} is a {type(value).__name__}, which a repro can't hold")
        return row | {"value": value}
    dense = value.detach().cpu().contiguous().resolve_conj().resolve_neg()
    data = dense.reshape(-1).view(torch.uint8).numpy().tobytes() if dense.numel() else b""
    return row | {
        "dtype": str(value.dtype).removeprefix("torch."),
        "shape": [*value.shape],
        "stride": [*value.stride()],
        "device": str(value.device),
        "requires_grad": value.requires_grad,
        "data": base64.b64encode(zlib.compress(data)).decode(),
    }


def _value(row: Mapping[str, Any]) -> Any:
    if "dtype" not in row:
        return row["value"]
    dtype = getattr(torch, row["dtype"])
    data = bytearray(zlib.decompress(base64.b64decode(row["data"])))
    flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
    shape, stride, device = row["shape"], row["stride"], row["device"]
    dense = flat.reshape(shape).to(device)
    overlaps = any(step == 0 and size > 1 for step, size in zip(stride, shape))
    made = dense.clone()
    if not overlaps and [*made.stride()] != stride:
        made = torch.empty_strided(shape, stride, dtype=dtype, device=device).copy_(dense)
    elif overlaps:
        own = dense[tuple(slice(0, 1) if step == 0 else slice(None) for step in stride)]
        made = own.clone().expand(shape)
    return made.detach().requires_grad_(row["requires_grad"])


def write_rows(path: Path, rows: Sequence[tuple[str, str, Any]]) -> None:
    """Writes values, each with a kind and a name, as lines of JSON."""
    path.write_text("".join(json.dumps(_described(*row)) + "\n" for row in rows))


def read_rows(path: Path) -> Iterator[tuple[str, str, Any]]:
    """The rows of a file."""
    for line in path.read_text().splitlines():
        row = json.loads(line)
        yield row["kind"], row["name"], _value(row)
