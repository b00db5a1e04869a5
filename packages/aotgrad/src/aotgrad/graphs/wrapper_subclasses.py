"""Wrapper subclasses at the edges of functional graphs: compilers see the plain tensors inside.

Traces record an operator on a tensor of a wrapper subclass like any other, so that autograd, views,
write-backs and the partition follow the tensor that the program has. Right before a graph is
compiled, it is run again: every such operator becomes what the class's ``__torch_dispatch__`` does
to the tensors inside.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from symshapes import (
    ON_INNER,
    FakeTensor,
    LazyGraphModule,
    Maker,
    WrapperFunction,
    as_jagged,
    call_wrapper,
    expr_of,
    flatten,
    holds_mask,
    inner_tensor,
    inner_tensors,
    is_jagged,
    is_symbolic,
    is_wrapper,
    is_wrapper_class,
    map_inner,
    mode_of,
    rebuild,
    versions_of,
)
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from aotgrad.errors import Unsupported
from aotgrad.tracing.tracer import Tracer

_KEPT = ("stack_trace", "nn_module_stack", "is_backward", "forward_node", "recompute")


def has_wrappers(graph: torch.fx.Graph) -> bool:
    """Whether a value in a graph is of a wrapper subclass."""
    return any(_holds_wrapper(node.meta.get("val")) for node in graph.nodes)


def _holds_wrapper(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_holds_wrapper, value))
    return is_wrapper(value)


def check_inner_tensors(graph: torch.fx.Graph) -> None:
    """Raises Unsupported where a captured graph takes a tensor out of one that it computes, or
    makes one around others, and their memory matters.
    """
    outputs = _tensors(graph.output_node().all_input_nodes)
    given = set().union(*map(_storages, _tensors(graph.find_nodes(op="placeholder"))))
    for node in graph.nodes:
        function = getattr(node.target, "function", node.target)
        if function is not inner_tensor and not isinstance(function, WrapperFunction):
            continue
        taken, holder = node.meta["val"], node.args[0].meta["val"]  # type: ignore[union-attr]
        if not node.users or not _storages(taken) & _storages(holder):
            continue
        sharing = [v for v in outputs if _storages(v) & _storages(taken)]
        is_written = taken._version > 0 or holder._version > 0
        if isinstance(function, WrapperFunction) and not (sharing and _storages(taken) & given):
            is_written = versions_of(holder) != function.versions  # writes before it are no matter
            is_written = is_written or (is_wrapper(taken) and taken._version > 0)
        is_written = is_written and not _is_last_name(graph, node, given)
        if is_written or len({is_wrapper(v) for v in sharing}) > 1:
            what = (
                f"{_shown(node)} and what shares its memory are both in use, one is written to or "
                f"both returned"
            )
            raise Unsupported("AG034", what, node=node)

    for node in graph.nodes:
        if isinstance(getattr(node.target, "function", None), Maker):
            made = node.meta["val"]
            if made._version or any(inner._version for inner in inner_tensors(made)):
                what = (
                    f"a {type(made).__name__} is made around tensors, and it or one of them is "
                    f"written to"
                )
                raise Unsupported("AG034", what, node=node)


def _is_last_name(graph: torch.fx.Graph, node: torch.fx.Node, given: set[int]) -> bool:
    """Whether only the value of ``node`` and its views read the memory behind it from then on."""
    memory = _storages(node.meta["val"])
    if memory & given:
        return False
    earlier = list(itertools.takewhile(lambda other: other is not node, graph.nodes))
    done = {node, *earlier}
    return all(
        done.issuperset(other.users)
        for other in earlier
        if any(_storages(value) & memory for value in _tensors([other]))
    )


def _tensors(nodes: Iterable[torch.fx.Node]) -> list[torch.Tensor]:
    leaves = (leaf for node in nodes for leaf in pytree.tree_leaves(node.meta.get("val")))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _shown(node: torch.fx.Node) -> str:
    holder = type(node.args[0].meta["val"]).__name__  # type: ignore[union-attr]
    return f"{holder}.{node.args[1]}" if node.target is inner_tensor else f"a result of {node}"


def _storages(value: Any) -> set[int]:
    return {inner.untyped_storage()._cdata for inner in inner_tensors(value)}


@dataclass(frozen=True, slots=True)
class WrapperSpec:
    """How to build a tensor of a wrapper subclass from plain tensors.

    Attributes:
        cls: its class.
        context: what ``flatten`` returns after the names.
        inner: the spec of the tensor of each name; None for a plain one.
        size: ints, or SymPy expressions; empty if it follows from the inner tensors.
        stride: likewise.
    """

    cls: Any
    context: Any
    inner: Mapping[str, WrapperSpec | None]
    size: tuple[Any, ...]
    stride: tuple[Any, ...]

    @staticmethod
    def of(fake: Any) -> WrapperSpec | None:
        """The spec of a fake; None for a plain tensor."""
        if not is_wrapper(fake):
            return None
        if holds_mask(fake):
            raise Unsupported("AG034", "a placement with a mask leaves the graph")
        fake = as_jagged(fake)
        names, context = flatten(fake)
        if any(is_symbolic(part) for part in pytree.tree_leaves(context)):
            raise Unsupported(
                "AG034",
                f"the context of a {type(fake).__name__} has sizes that differ between calls in it",
            )
        inner = {name: WrapperSpec.of(getattr(fake, name)) for name in names}
        layout = ((), ()) if is_jagged(fake) else (fake.shape, fake.stride())
        size, stride = (tuple(map(expr_of, numbers)) for numbers in layout)
        return WrapperSpec(type(fake), context, inner, size, stride)

    def parts(self, value: Any) -> Iterator[torch.Tensor]:
        """The plain tensors in a tensor of this spec, in order."""
        for name, spec in self.inner.items():
            held = getattr(value, name)
            if spec is None:
                yield held
            else:
                yield from spec.parts(held)

    def build(self, tensors: Iterator[torch.Tensor], sizes: Mapping[Any, int]) -> Any:
        """The tensor around the next of the plain ones."""
        inner = {
            name: _without_history(next(tensors)) if spec is None else spec.build(tensors, sizes)
            for name, spec in self.inner.items()
        }
        size, stride = ([_number(s, sizes) for s in given] for given in (self.size, self.stride))
        return rebuild(self.cls, inner, self.context, size, stride)


def _without_history(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach() if tensor.requires_grad else tensor


def _number(size: Any, sizes: Mapping[Any, int]) -> int:
    return size if type(size) is int else int(size.subs(sizes))


class _InnerTracer(Tracer):
    """Records what ``__torch_dispatch__`` does rather than the operator that it was asked for."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(map(is_wrapper_class, types)):
            with self:
                return call_wrapper(func, types, args, kwargs or {})
        if func in ON_INNER:
            with self:
                return ON_INNER[func](*args)
        if not func._schema.is_mutable:
            return super().__torch_dispatch__(func, types, args, kwargs)
        return self._written(func, args, kwargs or {})

    def _written(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An in-place operator that a class applies to a tensor of its own: what names that tensor
        means the new value from then on.
        """
        packet = getattr(getattr(torch.ops, func.namespace), func._opname.removesuffix("_"), None)
        form = getattr(packet, func._overloadname, None)
        target = args[0]
        if form is None or form is func or not isinstance(target, torch.Tensor):
            self.refuse("AG013", f"{func} writes to its operands and has no functional form")
        old = self.node_of(target)
        new = super().__torch_dispatch__(form, (), args, kwargs)
        if new.dtype != target.dtype or new.shape != target.shape:
            self.refuse("AG013", f"{func} changes what its operand is")
        memory = target.untyped_storage()._cdata
        for fake in list(self._alive):
            if isinstance(fake, FakeTensor) and fake.untyped_storage()._cdata == memory:
                if self.node_of(fake) is not old:
                    self.refuse("AG013", f"{func} writes to a tensor that has views")
                self._remember(fake, self.node_of(new))
        return target


def compile_inner(
    gm: torch.fx.GraphModule, compiler: Callable[[torch.fx.GraphModule], Any]
) -> Callable[..., Any]:
    """Compiles a graph with wrapper subclasses. The callable takes its inputs apart, calls the
    compiled graph of the tensors inside, and puts the results together.
    """
    fake = next(
        v
        for n in gm.graph.nodes
        for v in pytree.tree_leaves(n.meta.get("val"))
        if isinstance(v, torch.Tensor)
    )
    tracer = _InnerTracer(mode_of(fake))
    tracer.root = gm
    with torch.no_grad(), torch._C._AutoDispatchBelowAutograd(), tracer.fake_mode, tracer:  # type: ignore[attr-defined]
        outputs = _run(gm, tracer)
        results: dict[torch.fx.Node, int] = {}
        placeholders = {p: i for i, p in enumerate(tracer.graph.find_nodes(op="placeholder"))}
        sources = [
            [_source(tracer, leaf, placeholders, results) for leaf in _leaves(v)] for v in outputs
        ]
    tracer.graph.output(tuple(results))
    inner = LazyGraphModule(gm, tracer.graph, "Inner")
    compiled = compiler(inner) if results else lambda *inputs: ()
    given = [n.meta["val"] for n in gm.graph.find_nodes(op="placeholder")]
    symbols = [(i, expr_of(v)) for i, v in enumerate(given) if is_symbolic(v)]
    specs = [WrapperSpec.of(v) if isinstance(v, torch.Tensor) else None for v in outputs]
    takes_list = getattr(compiled, "takes_list", False)
    return _WrapperCall(
        compiled, takes_list, list(map(WrapperSpec.of, given)), symbols, list(zip(specs, sources))
    )


@dataclass(slots=True, eq=False)
class _WrapperCall:
    """Takes inputs apart, calls the compiled graph, and puts results together.

    Attributes:
        compiled: takes and returns plain tensors.
        takes_list: whether it takes its inputs in a list, to free them early; so does a call.
        inputs: for each input of a wrapper subclass its spec.
        symbols: index and symbol of each size among the inputs.
        outputs: how each output is built, and the sources of its plain parts (see ``_source``).
    """

    compiled: Any
    takes_list: bool
    inputs: list[WrapperSpec | None]
    symbols: list[tuple[int, Any]]
    outputs: list[tuple[WrapperSpec | None, list[Any]]]

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        is_list = self.takes_list and len(arguments) == 1 and type(arguments[0]) is list
        inputs = arguments[0] if is_list else list(arguments)
        flat: list[Any] = []
        for value, spec in zip(inputs, self.inputs):
            flat.append(value) if spec is None else flat.extend(spec.parts(value))
        sizes = {symbol: inputs[i] for i, symbol in self.symbols}
        inputs.clear()
        kept = {i: flat[i] for _, sources in self.outputs for is_in, i, _ in sources if is_in}
        results = self.compiled(flat) if self.takes_list else self.compiled(*flat)
        outputs = []
        for spec, sources in self.outputs:
            parts = (
                kept[i] if is_input else results[i] if i is not None else constant
                for is_input, i, constant in sources
            )
            outputs.append(next(parts) if spec is None else spec.build(parts, sizes))
        return tuple(outputs)


def _leaves(value: Any) -> list[Any]:
    return list(inner_tensors(value)) if isinstance(value, torch.Tensor) else [value]


def _source(
    tracer: Tracer, leaf: Any, placeholders: dict[Any, int], results: dict[Any, int]
) -> tuple[bool, int | None, Any]:
    """Where a plain output comes from: an input, a result, or a constant."""
    node = tracer.argument(leaf) if not isinstance(leaf, torch.fx.Node) else leaf
    if not isinstance(node, torch.fx.Node):
        return False, None, node
    if node in placeholders:
        return True, placeholders[node], None
    return False, results.setdefault(node, len(results)), None


def _run(gm: torch.fx.GraphModule, tracer: Tracer) -> list[Any]:
    """Copies or runs every node; the output values."""
    # a node of the new graph, or a value with a wrapper subclass in it
    made: dict[torch.fx.Node, Any] = {}

    def value_of(node: torch.fx.Node) -> Any:
        held = made[node]
        return held.meta["val"] if isinstance(held, torch.fx.Node) else held

    for node in gm.graph.nodes:
        if node.op == "output":
            return [made[v] if isinstance(v, torch.fx.Node) else v for v in node.args[0]]  # type: ignore[union-attr]
        is_plain = not _holds_wrapper(node.meta["val"]) and all(
            isinstance(made[a], torch.fx.Node) for a in node.all_input_nodes
        )
        if node.op == "placeholder" and not is_plain:
            made[node] = _wrapper_input(tracer, node)
        elif is_plain:
            made[node] = copy = tracer.graph.node_copy(node, made.__getitem__)
            tracer._remember(copy.meta["val"], copy)
        else:
            last = next(iter(reversed(tracer.graph.nodes)), None)
            args, kwargs = map_arg((node.args, node.kwargs), value_of)
            tracer.origin = node
            found = (
                args[0][args[1]]
                if node.target is operator.getitem
                else node.target(*args, **kwargs)
            )
            made[node] = (
                tracer.node_of(tracer.lift(found))
                if isinstance(found, torch.Tensor) and not is_wrapper(found)
                else found
            )
            _keep_origin(tracer.graph, last, node)
    raise AssertionError("a graph without an output")


def _wrapper_input(tracer: Tracer, node: torch.fx.Node) -> Any:
    """The fake of an input, with placeholders for the tensors in it."""

    count = itertools.count()

    def fresh(fake: Any) -> torch.Tensor:
        like = tracer.fake_mode.empty(
            fake.shape, fake.stride(), dtype=fake.dtype, device=fake.fake_device
        )
        tracer.add_placeholder(
            f"{node.name}_inner{next(count)}", like, bool(node.meta.get("static"))
        )
        return like

    return map_inner(fresh, node.meta["val"])


def _keep_origin(graph: torch.fx.Graph, last: torch.fx.Node | None, origin: torch.fx.Node) -> None:
    kept = {key: origin.meta[key] for key in _KEPT if key in origin.meta}
    for node in reversed(graph.nodes):
        if node is last:
            return
        node.meta |= kept
