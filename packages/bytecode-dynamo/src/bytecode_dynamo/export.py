"""``export``: a whole program as one GraphModule with the signature of the original."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.graph import CodeGen
from torch.utils import _pytree as pytree

from bytecode_dynamo.guards.records import GuardRecord
from bytecode_dynamo.marker import Verbatim

from .backends import eager
from .errors import UserError
from .whole_program import Inputs, Output, WholeProgram, capture_whole


class ExportResult(NamedTuple):
    """What ``export(fn)(*args)`` gives."""

    graph_module: GraphModule
    guards: tuple[GuardRecord, ...]


def export(fn: Callable[..., Any], *, dynamic: bool | None = None) -> Callable[..., ExportResult]:
    """``export(fn)(*args, **kwargs)`` captures all of ``fn`` as one graph, without running it or
    changing its arguments.

    The GraphModule has the parameters of ``fn``; arguments and result are nested as in the example
    call. Parameters and buffers of a module keep their names, other tensors that the program reads
    are attributes. Numbers and other plain arguments must be those of the example, and so must
    sizes, unless ``dynamic`` or ``mark_dynamic`` made them symbolic. A tensor that is passed twice
    counts as two. The guards say what else the program assumed.

    Raises Unsupported, with the line, for a program that would break the graph, and UserError for
    one that changes Python state, or whose result holds something that is neither a tensor nor a
    constant.
    """

    def exported(*args: Any, **kwargs: Any) -> ExportResult:
        program = capture_whole(fn, eager, args, kwargs, dynamic=dynamic)
        return ExportResult(Exporter(program).build(program.result), program.guards)

    return exported


class Exporter:
    """Copies a captured graph into one whose placeholders are the leaves of the arguments."""

    def __init__(self, program: WholeProgram) -> None:
        self.inputs = inputs = program.inputs
        self.examples = program.examples
        self.captured = program.graph
        self.graph = Graph()
        self.root = program.module or torch.nn.Module()
        self.owned = program.names_of_tensors
        self.attributes: dict[str, Any] = {}
        self.nodes = [
            self._placeholder(name, leaf) for name, leaf in zip(inputs.names, inputs.leaves)
        ]
        self.symbolic: set[int] = set()

    def _placeholder(self, name: str, leaf: Any) -> Node:
        label = re.sub(r"\W+", "_", name.replace("L[", "", 1)).strip("_") or "input"
        node = self.graph.placeholder(label)
        node.meta.update(source=name, val=leaf)
        return node

    def build(self, result: Any) -> GraphModule:
        """The module that computes ``result``, in which ``Output`` stands for outputs of the
        captured graph.
        """
        outputs = self._copy() if self.captured is not None else ()
        leaves, spec = pytree.tree_flatten(result, is_leaf=lambda value: isinstance(value, Output))
        values = [self._leaf(leaf, outputs) for leaf in leaves]
        self.graph.output(tuple(values))
        self.graph.set_codegen(_Signature(self._example_checks(), self.inputs, spec))
        root = {name: value for name, value in self.attributes.items()}
        for node in self.graph.find_nodes(op="get_attr"):
            if node.target not in root:
                root[str(node.target)] = _fetch(self.root, str(node.target))
        return GraphModule(root, self.graph, "ExportedGraph")

    def _copy(self) -> tuple[Any, ...]:
        assert self.captured is not None
        mapping: dict[Node, Node] = {}
        nodes = list(self.captured.graph.nodes)
        placeholders = [node for node in nodes if node.op == "placeholder"]
        for node in sorted(
            placeholders, key=lambda node: not isinstance(node.meta["val"], torch.Tensor)
        ):
            mapping[node] = self._input(node)
        for node in nodes:
            if node.op == "get_attr":
                self.attributes[node.target] = getattr(self.captured, node.target)
            if node.op not in ("placeholder", "output"):
                mapping[node] = self.graph.node_copy(node, mapping.__getitem__)
        return tuple(mapping[out] if isinstance(out, Node) else out for out in nodes[-1].args[0])

    def _input(self, node: Node) -> Node:
        source, val = node.meta["source"], node.meta["val"]
        if isinstance(val, torch.Tensor):
            place = self.inputs.find(self.examples[node])
            if place is None:
                return self._attribute(self.examples[node], source)
            self.nodes[place].meta["val"] = val
            return self.nodes[place]
        place = self.inputs.places.get(source)
        if place is not None:
            self.symbolic.add(place)
            return self.nodes[place]
        found = re.fullmatch(r"(.*)\.size\((\d+)\)", source)
        place = self.inputs.places.get(found[1]) if found else None
        if found is None or place is None:
            raise UserError(f"export: the number {source} is not an argument, nor a size of one")
        self.symbolic.add(place)
        return self.graph.call_method("size", (self.nodes[place], int(found[2])))

    def _attribute(self, value: Any, source: str) -> Node:
        name = self.owned.get(id(value))
        if name is None:
            name = f"constant_{len(self.attributes)}"
            self.attributes[name] = value
        node = self.graph.create_node("get_attr", name)
        node.meta.update(source=source, val=value)
        return node

    def _leaf(self, leaf: Any, outputs: tuple[Any, ...]) -> Any:
        if isinstance(leaf, Output):
            return outputs[leaf.place]
        if isinstance(leaf, torch.Tensor):
            place = self.inputs.find(leaf)
            return self.nodes[place] if place is not None else self._attribute(leaf, "result")
        if isinstance(leaf, (int, float)) and not isinstance(leaf, bool) and self.symbolic:
            raise UserError(
                f"export: the result holds the number {leaf}, which may depend on a symbolic size; "
                f"return a tensor"
            )
        if leaf is None or isinstance(
            leaf, (bool, int, float, complex, str, torch.dtype, torch.device)
        ):
            return leaf
        raise UserError(
            f"export: the result holds a {type(leaf).__name__}; return tensors and constants, "
            f"nested as pytrees"
        )

    def _example_checks(self) -> list[Callable[[Any], str | None]]:
        return [
            _check_leaf(name, node.meta["val"], index in self.symbolic)
            for index, (name, node) in enumerate(zip(self.inputs.names, self.nodes))
        ]


def _fetch(root: torch.nn.Module, name: str) -> Any:
    owner, _, last = name.rpartition(".")
    return getattr(root.get_submodule(owner), last)


def _check_leaf(name: str, example: Any, symbolic: bool) -> Callable[[Any], str | None]:
    if isinstance(example, torch.Tensor):
        sizes: Any = example.shape
        fixed = tuple(size if isinstance(size, int) else None for size in sizes)

        def check_tensor(value: Any) -> str | None:
            if (
                not isinstance(value, torch.Tensor)
                or value.dtype != example.dtype
                or value.dim() != len(fixed)
            ):
                return f"{name} must be a {len(fixed)}-dimensional tensor of {example.dtype}"
            wrong = [
                d for d, size in enumerate(fixed) if size is not None and value.shape[d] != size
            ]
            if wrong:
                return f"{name}.size({wrong[0]}) was {fixed[wrong[0]]}, now {value.shape[wrong[0]]}"
            return None

        return check_tensor

    def check_constant(value: Any) -> str | None:
        same = value is example or (type(value) is type(example) and (symbolic or value == example))
        return None if same else f"{name} was {example!r}, now {value!r}"

    return check_constant


class _Signature(CodeGen):
    """Writes ``forward`` with the parameters of the original, flattens arguments and nests
    results.
    """

    def __init__(
        self, checks: list[Callable[[Any], str | None]], inputs: Inputs, result: pytree.TreeSpec
    ) -> None:
        super().__init__()
        self.checks = checks
        self.inputs = inputs
        self.result = result

    def _globals(self) -> Mapping[str, Any]:
        defaults = {
            f"_default_{name}": parameter.default
            for name, parameter in self.inputs.signature.parameters.items()
            if parameter.default is not parameter.empty
        }
        return {"_flatten": self.flatten, "_nest": self.nest, **defaults}

    def additional_globals(self) -> list[tuple[str, Any]]:
        return list(self._globals().items())

    def gen_fn_def(self, free_vars: list[str], maybe_return_annotation: str, **options: Any) -> str:
        signature = self.inputs.signature
        parameters = [
            parameter.replace(
                annotation=parameter.empty, default=Verbatim(f"_default_{parameter.name}")
            )
            if parameter.default is not parameter.empty
            else parameter.replace(annotation=parameter.empty)
            for parameter in signature.parameters.values()
        ]
        text = str(
            signature.replace(parameters=parameters, return_annotation=signature.empty)
        ).removeprefix("(")
        given = ", ".join(f"{name!r}: {name}" for name in self.inputs.arguments)
        names = "".join(f"{variable.split(':')[0].strip()}, " for variable in free_vars)
        separator = "" if text.startswith(")") else ", "
        header = f"def forward(self{separator}{text}{maybe_return_annotation}:\n    "
        return header + (f"{names}= _flatten({{{given}}})" if names else f"_flatten({{{given}}})")

    def generate_output(self, output_args: Any, **options: Any) -> str:
        return f"return _nest({output_args!r})"

    def flatten(self, arguments: dict[str, Any]) -> list[Any]:
        """The leaves of the arguments; raises UserError where they differ from the example in what
        the graph assumed.
        """
        leaves, spec = pytree.tree_flatten(arguments)
        if spec != self.inputs.spec:
            raise UserError(
                f"arguments are nested differently from the example call: {spec} instead of "
                f"{self.inputs.spec}"
            )
        for check, leaf in zip(self.checks, leaves):
            problem = check(leaf)
            if problem is not None:
                raise UserError(f"not the exported program: {problem}")
        return leaves

    def nest(self, outputs: Any) -> Any:
        """The result as the original nests it."""
        return pytree.tree_unflatten(list(outputs), self.result)
