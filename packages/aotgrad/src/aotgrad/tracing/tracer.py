"""Records ATen ops that arrive below autograd and functionalisation into a torch.fx.Graph."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from symshapes import (
    FakeTensor,
    FakeTensorMode,
    PlainGraph,
    expr_of,
    is_fake,
    is_nested_int,
    is_symbolic,
    is_wrapper,
)
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from aotgrad.effect_plan import GUARD_FAILED
from aotgrad.errors import Unsupported

from .functional import below_functionalisation
from .origin import Origins
from .recurrent import as_called, is_workspace, recorded_form
from .sizes import SizeNodes

aten = torch.ops.aten
_next_sequence_number: Callable[[], int] = torch._C._autograd._get_sequence_nr  # type: ignore[attr-defined]

# queries about a tensor, not computation
_QUERIES = frozenset([
    torch.ops.prim.device.default, aten.size.default, aten.stride.default,
    aten.storage_offset.default,
    aten.sym_size.default, aten.sym_stride.default, aten.sym_storage_offset.default,
    aten.sym_numel.default,
    aten.sym_size.int, aten.sym_stride.int, aten.is_contiguous.default,
    aten.is_contiguous.memory_format, aten.dim.default,
    aten.numel.default,
])  # fmt: skip
# these return their operand: below autograd they do nothing
_IDENTITIES = frozenset(
    [aten.detach.default, aten.alias.default, aten.lift_fresh.default, aten.lift.default]
)
# computed immediately on constants, because torch's own kernels branch on such values
_FOLDED = frozenset(
    getattr(aten, name).default
    for name in "equal is_nonzero all any max min clone logical_not sum zero new_ones".split()
) | frozenset(
    getattr(getattr(aten, name), kind)
    for name in ("add", "sub", "mul", "eq", "ne", "lt", "le", "gt", "ge")
    for kind in ("Tensor", "Scalar")
)
_SMALL = 8  # most elements of a constant whose value may answer item()
_RENAMED = {
    aten.lift_fresh_copy.default: aten.clone.default,
    aten._efficientzerotensor.default: aten.zeros.default,
}


class Tracer(TorchDispatchMode):
    """A dispatch mode above a FakeTensorMode that appends every op it sees to ``graph``.

    Attributes:
        graph: the recorded graph.
        root: module that owns the constants (``get_attr`` targets).
        origin: the captured node being run; recorded nodes inherit its source line.
        origins: finds the source lines of programs that are not captured.
        in_backward: whether autograd's backward is running; recorded nodes then name their forward
            node.
        position: the number of nodes recorded in forward, 0 at the start of the program; it is the
            same in each trace of a program.
        assertions: values that must be true, each with a message and whether to wait for it.
        region: the checkpointed region being run, to which recorded nodes belong; ``num_regions``
            counts the regions.
    """

    def __init__(self, fake_mode: FakeTensorMode) -> None:
        super().__init__()
        self.fake_mode = fake_mode
        self.graph = PlainGraph()
        self.root = torch.nn.Module()
        self.sizes = SizeNodes(self.graph)
        self.origin: torch.fx.Node | None = None
        self.origins: Origins | None = None
        self.in_backward = False
        self.position = -(1 << 41)
        self.region: int | None = None
        self.num_regions = 0
        self.assertions: list[tuple[Any, tuple[str | None, bool]]] = []
        self.forward_by_sequence: dict[int, torch.fx.Node] = {}
        self._nodes: dict[int, torch.fx.Node] = {}  # by the id of a fake
        self._alive: list[Any] = []  # keeps those ids from being reused
        # by the id of a real tensor, which ``root`` keeps alive
        self._constants: dict[int, FakeTensor] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch wraps the handler in something that imports its compiler

    # -- values and nodes --------------------------------------------------------------------------

    def add_placeholder(self, name: str, value: Any, static: bool = False) -> torch.fx.Node:
        """Appends a placeholder for a fake tensor (``static``: a parameter or buffer), SymInt or
        number.
        """
        node = self.graph.placeholder(name)
        node.meta.update(val=value, static=static)
        self._remember(value, node)
        return node

    def node_of(self, fake: torch.Tensor) -> torch.fx.Node:
        """The node that computes a fake made under this tracer."""
        return self._nodes[id(fake)]

    def with_strides(self, fake: torch.Tensor, strides: Sequence[Any]) -> torch.Tensor:
        """A fake of the same node with the strides that the tensor has in the caller's memory."""
        out = self.fake_mode.empty(fake.shape, strides, dtype=fake.dtype, device=fake.device)
        self._remember(out, self.node_of(fake))
        return out

    def _remember(self, value: Any, node: torch.fx.Node) -> None:
        if is_fake(value):
            self._nodes[id(value)] = node
            self._alive.append(value)
        elif is_symbolic(value) and not is_nested_int(value):
            self.sizes.bind(value, node)

    def argument(self, value: Any) -> Any:
        """``value`` with fakes and symbols replaced by nodes."""
        if isinstance(value, torch.Tensor):
            return self._nodes[id(self.lift(value))]
        if is_nested_int(value):
            return value  # only ``compile_inner`` runs a graph with one
        if is_symbolic(value):
            return self.sizes.argument(value)
        if isinstance(value, (list, torch.Size)):
            return [self.argument(v) for v in value]
        if isinstance(value, tuple):
            return tuple(self.argument(v) for v in value)
        if isinstance(value, dict):
            return {k: self.argument(v) for k, v in value.items()}
        if isinstance(value, torch.Generator):
            self.refuse("AG010", "an explicit torch.Generator cannot be part of a graph")
        return value

    def lift(self, value: torch.Tensor) -> FakeTensor:
        """The fake of a tensor; a real tensor becomes a constant of the graph (C2.7).

        Raises Unsupported for a real tensor that requires grad: its gradient would be lost.
        """
        if is_fake(value):
            if id(value) not in self._nodes:
                self.refuse("AG011", "a fake tensor of another trace is used in this one")
            return value  # type: ignore[return-value]
        if is_wrapper(value):
            self.refuse("AG034", f"a {type(value).__name__} that is no input and no result")
        known = self._constants.get(id(value))
        if known is not None:
            return known
        if value.requires_grad:
            self.refuse(
                "AG012", "a tensor that requires grad is read from outside; pass it as an argument"
            )
        name = next(
            n
            for i in itertools.count(len(self._constants))
            if not hasattr(self.root, n := f"constant_{i}")
        )
        self.root.register_buffer(name, value, persistent=False)
        with below_functionalisation(), torch._C._DisableTorchDispatch():
            fake = self.fake_mode.from_real(value)
            if value.numel() <= _SMALL:
                fake.constant = value.cpu()  # known values are computed with on the CPU
        self._remember(fake, self._with_value(self.graph.get_attr(name), fake))
        self._constants[id(value)] = fake
        return fake

    def _lifted(self, value: Any) -> Any:
        """The operands of an op, with tensors lifted."""
        if isinstance(value, torch.Tensor):
            return self.lift(value)
        if type(value) in (tuple, list):
            return type(value)(map(self._lifted, value))
        return {k: self._lifted(v) for k, v in value.items()} if type(value) is dict else value

    # -- recording ---------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _QUERIES:
            return func(*args, **kwargs)
        args, kwargs = self._lifted(args), self._lifted(kwargs)
        # torch passes a plain number instead of a wrapped one
        if func is aten._conj.default and isinstance(args[0], complex):
            args = (self.lift(self.on_real(torch.scalar_tensor, args[0], dtype=torch.complex128)),)
        # a value that functionalisation wrote back through a conj view
        if func is aten.view_as_real.default and args[0].is_conj():
            args = (self.__torch_dispatch__(aten.clone.default, types, args),)
        if func in _IDENTITIES:
            return self._alias(func, args, kwargs)
        if func in _ASSERTIONS:
            return self._expect(*args)
        if func is aten._linalg_check_errors.default:
            return self._check_factors(*args, **kwargs)
        if func is aten.clone.default and is_workspace(self.node_of(args[0])):
            return self._alias(aten.alias.default, args[:1], {})
        func = recorded_form(_RENAMED.get(func, func))
        known = self._known_result(func, args, kwargs)
        if known is not None and not isinstance(known, torch.Tensor):
            return known
        out = func(*args, **kwargs)
        if known is not None:
            out.constant = known
        if func._schema.is_mutable:
            self.refuse("AG013", f"{func} writes to its operands and has no functional form")
        return as_called(func, self._record(func, args, kwargs, out))

    def _known_result(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of an op on small known values, which torch's size checks read; None if it is
        not known.
        """
        if func is aten.scalar_tensor.default:
            if is_symbolic(args[0]):
                return None
            return self.on_real(torch.scalar_tensor, args[0], dtype=kwargs.get("dtype"))
        if func not in _FOLDED or (func is aten.new_ones.default and len(args[1])):
            return None
        operands = [x for x in args if isinstance(x, torch.Tensor)]
        if not operands or any(
            getattr(x, "known_value", None) is None or x.numel() > _SMALL or x.device.type != "cpu"
            for x in operands
        ):
            return None
        return self.on_real(
            func, *pytree.tree_map_only(FakeTensor, lambda x: x.known_value, tuple(args)), **kwargs
        )

    def _expect(self, holds: Any, message: str | None = None) -> None:
        """Records an assertion of the program, but not those inside torch's operators."""
        target = None if self.origin is None else self.origin.target
        stated = getattr(target, "__name__", "").partition(".")[0]
        if is_symbolic(holds):
            holds.node.shape_env.expect_true(holds.node)
            node = self.sizes.argument(holds)
            if isinstance(node, torch.fx.Node):
                node.meta["required"] = message or GUARD_FAILED
        if is_symbolic(holds) or stated in ("_assert_async", "assume"):
            self.assertions.append((holds, (message, stated != "_assert_async")))

    def on_real(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        with below_functionalisation(), torch._C._DisableTorchDispatch():
            return func(*args, **kwargs)

    def _alias(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func in (aten.lift_fresh.default, aten.lift.default):
            if self.node_of(args[0]).op == "get_attr":
                # created by the program: no other code can write to it
                self.node_of(args[0]).meta["literal"] = True
            return args[0]
        out = func(*args, **kwargs)
        self._remember(out, self.node_of(args[0]))
        return out

    def _check_factors(self, info: FakeTensor, name: str, is_matrix: bool) -> None:
        """Replaces results that were computed together with ``info`` by a call that raises if the
        factorisation failed.
        """
        source = self.node_of(info)
        for result in source.args[0].users if source.target is operator.getitem else ():  # type: ignore[union-attr]
            fake = result.meta["val"]
            if result is not source and self._nodes.get(id(fake)) is result:
                node = self.graph.call_function(
                    torch.ops.aotgrad.factored.default, (result, source, name, is_matrix)
                )
                self._remember(fake, self._with_value(node, fake))

    def _record(self, func: Any, args: Any, kwargs: Any, out: Any) -> Any:
        if not _has_results(out):
            return out
        node = self.graph.call_function(
            func, self.argument(tuple(args)), self.argument(dict(kwargs))
        )
        self._track(out, self._with_value(node, out))
        return out

    def _track(self, out: Any, node: torch.fx.Node) -> None:
        if not isinstance(out, (list, tuple)):
            self._remember(out, node)
            if isinstance(out, FakeTensor):
                self._bind_unbacked_sizes(out, node)
            return
        for i, part in enumerate(out):
            if part is None or isinstance(part, (int, float)):
                continue
            item = self.graph.call_function(operator.getitem, (node, i))
            self._track(part, self._with_value(item, part))

    def _bind_unbacked_sizes(self, fake: FakeTensor, node: torch.fx.Node) -> None:
        """Creates a node for each new data-dependent size (C2.5)."""
        for d, size in enumerate(fake.shape):
            if type(size) is int or not self.fake_mode.shape_env.is_unbacked_symint(expr_of(size)):
                continue
            if not self.sizes.is_bound(size):
                binder = self.graph.call_function(aten.sym_size.int, (node, d))
                binder.meta["val"] = size
                # has no position: in another trace the size may be an input
                binder.meta |= self._where()
                self.sizes.bind(size, binder)

    def _where(self) -> dict[str, Any]:
        if self.origin is not None:
            return _origin_in(self.origin)
        return {} if self.origins is None else self.origins.meta()

    def user_line(self) -> str:
        """The user's lines that are currently running, or an empty string."""
        return self._where().get("stack_trace", "")

    def refuse(self, id: str, reason: str) -> NoReturn:
        """Raises Unsupported at the user's line."""
        raise Unsupported(id, reason, line=self.user_line())

    def _with_value(self, node: torch.fx.Node, value: Any) -> torch.fx.Node:
        """Annotates ``node`` with its ``value`` and the program's current line; returns it."""
        node.meta["val"] = value
        self._annotate(node)
        return node

    def _annotate(self, node: torch.fx.Node) -> None:
        if self.in_backward:
            current = torch._C._current_autograd_node()
            forward = (
                None if current is None else self.forward_by_sequence.get(current._sequence_nr())
            )
            node.meta["is_backward"] = True
            if forward is not None:
                node.meta["forward_node"] = forward.name
                node.meta |= _origin_in(forward)
            return
        node.meta["position"] = self.position
        self.position += 1
        node.meta |= self._where()
        captured = {} if self.origin is None else self.origin.meta
        region = captured.get("recompute", self.region)
        if region is not None:
            node.meta["recompute"] = region
        # autograd numbers its nodes just before it calls this mode
        self.forward_by_sequence[_next_sequence_number() - 1] = node


def _origin_in(node: torch.fx.Node) -> dict[str, Any]:
    return {key: node.meta[key] for key in ("stack_trace", "nn_module_stack") if node.meta.get(key)}


_ASSERTIONS = (aten._assert_async.default, aten._assert_async.msg, aten._assert_scalar.default)


def _has_results(out: Any) -> bool:
    if isinstance(out, (list, tuple)):
        return any(_has_results(o) for o in out)
    return isinstance(out, torch.Tensor) or is_symbolic(out)
