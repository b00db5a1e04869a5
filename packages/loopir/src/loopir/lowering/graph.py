"""Lowers a prim graph (contract C3) to buffers, loop nodes and extern calls."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch
from primops import OPSET, ContractError, Prim, check_prims, prims
from symshapes import expr_of
from symshapes.choices import decide, within
from symshapes.decisions import may
from torch._ops import OpOverload
from torch.fx.node import map_arg

from loopir.errors import LoweringError
from loopir.ir.kernel import STORED_8_BITS
from loopir.ir.node import Block, Buffer, Item, LoweredGraph, Symbolic, View, contiguous_strides
from loopir.ir.simplify import product
from loopir.options import Options
from loopir.source_line import user_line

from . import creation, elementwise, indexing, reduction, view
from .block import can_call, lower_call
from .context import LOOP_DTYPES, LoweringContext
from .elementwise import is_tensor
from .extern import lower_extern
from .placement import follow_readers
from .products import lower_product
from .registry import LoweringTable, prim_name
from .scalar import symbolic
from .tensor import Lazy, Strided, Tensor, same_strides

TABLE = LoweringTable()
for module in (creation, elementwise, indexing, reduction, view):
    TABLE = TABLE.merged(module.table)

MOVES = frozenset({"convert", "broadcast_in_dim", "reshape", "slice", "permute"})
"""The prims whose loops only load and store numbers, 8-bit floats too."""
MAX_WEIGHT = 160
MAX_DEPTH = 60
MAX_READS = 24
MAX_RECOMPUTED = 16


def lower(
    gm: torch.fx.GraphModule, options: Options | None = None, table: LoweringTable = TABLE
) -> LoweredGraph:
    """Lowers a prim graph. Raises :class:`LoweringError`, naming the node and the user's line.

    The graph is checked for contract C3 if ``options.check`` is set or ``options`` is None.
    ``table`` has the lowering rules.
    """
    if options is None or options.check:
        check_graph(gm)
    return _GraphLowering(gm, options or Options(), table).run()


def check_graph(gm: torch.fx.GraphModule) -> None:
    """Raises :class:`LoweringError` if ``gm`` is not a prim graph (C3)."""
    try:
        check_prims(gm)
    except ContractError as error:
        raise LoweringError(
            f"{error}\n  loopir lowers prim graphs; primops.decompose makes one of an ATen graph"
        ) from error


def _is_operand(node: torch.fx.Node) -> bool:
    """Whether an operator reads the node's value."""
    return any(isinstance(x.target, OpOverload) or x.target is prims.call for x in node.users)


class _GraphLowering:
    def __init__(self, gm: torch.fx.GraphModule, options: Options, table: LoweringTable) -> None:
        self.gm = gm
        self.ctx = LoweringContext(options)
        self.table = table
        self.env: dict[torch.fx.Node, Any] = {}
        self.output_strides: dict[torch.fx.Node, tuple] = {}
        self.written: dict[int, str] = {}
        self.blocks: dict[torch.fx.GraphModule, Block] = {}

    def run(self) -> LoweredGraph:
        follow_readers(self.gm)
        self._find_outputs()
        for node in self.gm.graph.nodes:
            self.ctx.origin = (node.name, user_line(node))
            try:
                self._lower_node(node)
            except LoweringError:
                raise
            except Exception as error:
                raise self.ctx.fail(
                    f"{node.format_node()}: {type(error).__name__}: {error}"
                ) from error
        return self.ctx.graph

    def _find_outputs(self) -> None:
        output = next(node for node in reversed(self.gm.graph.nodes) if node.op == "output")
        metas = output.meta.get("val") or [
            a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in output.args[0]
        ]
        self.outputs = list(zip(output.args[0], metas, strict=True))
        for node, meta in self.outputs:
            if isinstance(node, torch.fx.Node) and hasattr(meta, "stride"):
                self.output_strides.setdefault(node, meta.stride())

    def _lower_node(self, node: torch.fx.Node) -> None:
        if node.op == "placeholder":
            self.env[node] = self._placeholder(node)
        elif node.op == "get_attr":
            self.env[node] = self._constant(node)
        elif node.op == "output":
            self.ctx.graph.outputs = [self._output(value, meta) for value, meta in self.outputs]
            self._find_written()
            for i, message in node.meta.get("required", {}).items():
                condition = expr_of(self.outputs[i][1])
                if all(free.is_integer for free in condition.free_symbols):
                    self.ctx.graph.required.append((condition, message))
        elif node.target is operator.getitem:
            self.env[node] = self.env[node.args[0]][node.args[1]]  # type: ignore[index]
        elif node.op == "call_function":
            value = self._call(node)
            if isinstance(value, Lazy) and value.origin is None:
                value = replace(value, origin=self.ctx.origin)
            self.env[node] = self._after(node, value)
        else:
            raise self.ctx.fail(f"unexpected {node.op} node (C3.1)")

    def _placeholder(self, node: torch.fx.Node) -> Any:
        meta = node.meta.get("val")
        if isinstance(meta, torch.SymInt):
            expr = self.ctx.expr(meta)
            known = self.ctx.graph.inputs  # sizes proved equal share a symbol
            known.append(expr if isinstance(expr, sympy.Symbol) and expr not in known else None)
            return expr
        if isinstance(meta, torch.SymFloat):
            self.ctx.graph.inputs.append(
                self.ctx.add_number(f"in_{node.name}", meta, self._main_device())
            )
            return meta
        if meta is None or not hasattr(meta, "shape"):
            self.ctx.graph.inputs.append(None)
            return meta
        stride, shape = self.ctx.shape(meta.stride()), self.ctx.shape(meta.shape)
        buffer = self.ctx.add_buffer(
            Buffer(f"in_{node.name}", meta.dtype, meta.device, shape, stride)
        )
        self.ctx.graph.inputs.append(buffer.name)
        if node.meta.get("donated"):
            self.ctx.graph.donated.add(buffer.name)
        if "written" in node.meta:
            self.written[node.meta["written"]] = buffer.name
        return self.ctx.whole(buffer)

    def _main_device(self) -> torch.device:
        """The device of the inputs; the CPU only if no input is on another device."""
        found = [
            v.device
            for n in self.gm.graph.find_nodes(op="placeholder")
            if hasattr(v := n.meta.get("val"), "device")
        ]
        return next((device for device in found if device.type != "cpu"), torch.device("cpu"))

    def _constant(self, node: torch.fx.Node) -> Any:
        value: Any = operator.attrgetter(str(node.target))(self.gm)
        if not isinstance(value, torch.Tensor):
            return value
        if value.numel() == 1 and value.device.type == "cpu" and value.dtype in LOOP_DTYPES:
            number = value.item()
            shape, ctx = self.ctx.shape(value.shape), self.ctx
            return creation.lower_full(
                ctx, node, shape=shape, value=number, dtype=value.dtype, device=value.device
            )
        name = f"const_{node.name}"
        shape, stride = self.ctx.shape(value.shape), self.ctx.shape(value.stride())
        buffer = self.ctx.add_buffer(Buffer(name, value.dtype, value.device, shape, stride))
        self.ctx.graph.constants[name] = value
        return self.ctx.whole(buffer)

    def _call(self, node: torch.fx.Node) -> Any:
        args = map_arg(node.args, lambda n: self.env[n])
        kwargs: dict = map_arg(node.kwargs, lambda n: self.env[n])  # type: ignore[assignment]
        target = node.target
        if target is torch.ops.aten._local_scalar_dense.default and isinstance(
            node.meta["val"], torch.SymFloat
        ):
            self.ctx.set_number(node.meta["val"], args[0])  # type: ignore[arg-type]
            return node.meta["val"]
        if isinstance(target, OpOverload):
            product = lower_product(self.ctx, target, args, kwargs)
            return product or lower_extern(self.ctx, node, target, args, kwargs)  # type: ignore[arg-type]
        if target is prims.call:
            return self._call_graph(kwargs["graph"], args)
        if not isinstance(target, Prim):
            raise self.ctx.fail(f"target {target} is neither a prim nor an ATen operator (C3.1)")
        rule = self.table.get(target.name)
        if rule is None and OPSET.get(target.name) is not target:
            raise self.ctx.fail(
                f"{target} is no prim of the op set, and the table has no rule for it: "
                f"LoweringTable.register one"
            )
        result = None
        lowers = rule is not None and self._has_loop_dtypes(node, args, kwargs)
        if rule is not None and lowers and may("lowering", target.name, node):
            args, kwargs = self._on_one_device(node, args, kwargs)  # type: ignore[arg-type]
            result = rule(self.ctx, node, *args, **kwargs)
        return lower_extern(self.ctx, node, target, args, kwargs) if result is None else result  # type: ignore[arg-type]

    def _call_graph(self, gm: torch.fx.GraphModule, args: Sequence[Any]) -> tuple[Any, ...]:
        """Calls the block of a graph, which is lowered once. Nodes of a graph that computes sizes
        of its own become nodes of this one.
        """
        if gm not in self.blocks:
            name = f"block{len(self.blocks)}"
            with within(name):
                lowered = _GraphLowering(gm, self.ctx.options, self.table).run()
            self.blocks[gm] = Block.of(name, lowered)
        block = self.blocks[gm]
        if can_call(block):
            return lower_call(self.ctx, block, args)
        given = iter(args)
        for node in gm.graph.nodes:
            if node.op == "output":
                return tuple(self.env[x] for x in node.args[0])
            if node.op == "placeholder":
                self.env[node] = next(given)
            else:
                self._lower_node(node)
        raise self.ctx.fail("the graph of a call has no output")

    def _has_loop_dtypes(self, node: torch.fx.Node, args: Any, kwargs: Any) -> bool:
        dtypes = [
            node.meta["val"].dtype,
            *(a.dtype for a in args if is_tensor(a)),
            kwargs.get("dtype"),
        ]
        stores_8_bits = prim_name(node) in MOVES and node.meta["val"].device.type == "cuda"
        known = LOOP_DTYPES.union(STORED_8_BITS) if stores_8_bits else LOOP_DTYPES
        return all(dtype is None or dtype in known for dtype in dtypes)

    def _on_one_device(self, node: torch.fx.Node, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """Copies scalar operands to the node's device from others, before a loop reads them."""
        device = node.meta["val"].device

        def move(arg: Any) -> Any:
            if not is_tensor(arg) or arg.device == device:
                return arg
            if isinstance(arg, Lazy) and arg.cost.reads == 0:
                return Lazy(arg.shape, arg.dtype, device, arg.function, arg.cost, arg.layout)
            return self.ctx.on_device(arg, device)

        return tuple(move(arg) for arg in args), kwargs

    def _after(self, node: torch.fx.Node, value: Any) -> Any:
        """Stores a lazy result in memory if it is needed there anyway, too costly to recompute, or
        too large.
        """
        if _is_operand(node) and is_tensor(value):
            return self._as_operand(node, value)
        if not isinstance(value, Lazy):
            return value
        if node in self.output_strides:
            return self._realize_output(value, self.ctx.shape(self.output_strides[node]))
        return self._store(node, value) if self._is_stored(node, value) else value

    def _is_stored(self, node: torch.fx.Node, value: Lazy) -> bool:
        cost, users = value.cost, self._times_read(node, value)
        is_large = cost.weight > MAX_WEIGHT or cost.depth > MAX_DEPTH or cost.reads > MAX_READS
        is_better = is_large or (
            users > 1 and (not self._is_cheap_again(value, users) or self._is_stored_anyway(node))
        )
        return decide("stored values", node.name, is_better, numbered=True)

    def _store(self, node: torch.fx.Node, value: Lazy) -> Tensor:
        """Stores the value in memory, rounded as in eager mode if all its readers expect that
        (C3.8). Of a value that repeats a smaller one, that is stored.
        """
        if prim_name(node) == "broadcast_in_dim" and self._is_smaller(node.args[0], value):
            source: Any = node.args[0]
            self.env[source] = self._store(source, self.env[source])
            return self._call(node)
        dtype = node.meta.get("rounds_to")
        if dtype is None or dtype not in LOOP_DTYPES:
            return self.ctx.realize(value)
        stride = None
        for user in node.users:
            if prim_name(user) == "convert" and user.kwargs["dtype"] == dtype:
                own = user.meta["val"].stride() if _is_operand(user) else None
                own = self.output_strides.get(user, own)
                stride = None if own is None else self.ctx.shape(own)
        if stride is not None and not self.ctx.is_dense(value.shape, stride):
            return self.ctx.realize(value)
        narrow = self.ctx.realize(elementwise.converted(self.ctx, value, dtype), stride)
        return replace(elementwise.converted(self.ctx, narrow, value.dtype), narrow=narrow)

    def _is_smaller(self, source: Any, value: Lazy) -> bool:
        """Whether the value that a node repeats isn't in memory yet and has fewer elements."""
        operand, hint = self.env[source], self.ctx.facts.hint
        return isinstance(operand, Lazy) and hint(product(operand.shape)) < hint(
            product(value.shape)
        )

    def _times_read(self, node: torch.fx.Node, value: Lazy) -> int:
        """How often the users together read the value; a slice counts as the fraction that it
        reads.
        """
        hint, whole = self.ctx.facts.hint, product(value.shape)
        parts = [user for user in node.users if prim_name(user) == "slice"]
        if not parts or not hint(whole):
            return len(node.users)
        read = sum(hint(product(self.ctx.shape(part.meta["val"].shape))) for part in parts)
        return len(node.users) - len(parts) + -(-read // hint(whole))

    def _is_stored_anyway(self, node: torch.fx.Node) -> bool:
        """Whether an operator reads the value in another shape, or converted to the dtype to which
        all readers round it.
        """
        dtype = node.meta.get("rounds_to", node.meta["val"].dtype)
        return any(
            prim_name(user) == "reshape"
            or (prim_name(user) == "convert" and user.kwargs["dtype"] == dtype)
            for user in node.users
            if _is_operand(user)
        )

    def _as_operand(self, node: torch.fx.Node, value: Any) -> Strided:
        """Stores an operand in memory with the strides that the graph states, because the layout of
        an operator's result may depend on those of its operands.
        """
        stride = self.ctx.shape(node.meta["val"].stride())
        if any(step == 0 and size != 1 for size, step in zip(value.shape, stride, strict=True)):
            return value if isinstance(value, Strided) else self.ctx.lay_out(value, stride)
        if isinstance(value, Strided) and not self.ctx.is_dense(value.shape, stride):
            return value
        if isinstance(value, Strided):
            return value if self._fits(value, stride) else self.ctx.copy(value, stride)
        return self.ctx.realize(value, stride)

    def _fits(self, value: Strided, stride: tuple) -> bool:
        hint = self.ctx.facts.hint
        return all(
            size == 1 or a == b or hint(a) == hint(b)
            for size, a, b in zip(value.shape, value.stride, stride, strict=True)
        )

    def _is_cheap_again(self, value: Lazy, users: int) -> bool:
        if not self.ctx.options.inline:
            return False
        reads = value.cost.reads
        return (
            reads * users <= reads + 1 + users
            and value.cost.weight * (users - 1) <= MAX_RECOMPUTED
            and (users == 1 or may("lowering", "inline", self.ctx.origin[0]))
        )

    def _realize_output(self, value: Any, stride: tuple) -> Strided:
        if isinstance(value, Strided) and same_strides(value.shape, value.stride, stride):
            return value
        if self.ctx.is_dense(value.shape, stride):
            return self.ctx.realize(value, stride)
        return self.ctx.lay_out(value, stride)

    def _output(self, node: Any, meta: Any) -> Any:
        value = self.env[node] if isinstance(node, torch.fx.Node) else node
        if isinstance(value, torch.SymFloat | torch.SymBool):
            return self._number(value)
        if not is_tensor(value):
            return self.ctx.expr(value) if isinstance(value, torch.SymInt) else value
        stride = (
            self.ctx.shape(meta.stride())
            if hasattr(meta, "stride")
            else contiguous_strides(value.shape)
        )
        result = self._realize_output(value, stride)
        # The caller may write to its results, which must not change a constant.
        if result.buffer in self.ctx.graph.constants:
            is_dense = self.ctx.is_dense(result.shape, stride)
            result = (
                self.ctx.copy(result, stride) if is_dense else self.ctx.lay_out_anew(result, stride)
            )
        # Dims of size 1 can have any stride; the caller gets the stride that the graph states.
        if result.stride != stride:
            stride = tuple(
                s if size == 1 else r
                for size, r, s in zip(result.shape, result.stride, stride, strict=True)
            )
        offset = result.offset
        return View(
            result.buffer,
            result.shape,
            stride,
            offset if offset.is_Integer else sympy.expand(offset),
        )

    def _find_written(self) -> None:
        """Records the results that can be computed in the memory of the input to which they are
        written back.
        """
        graph = self.ctx.graph
        results = [output.buffer for output in graph.outputs if isinstance(output, View)]
        for position, name in self.written.items():
            output, target = graph.outputs[position], graph.buffers[name]
            if (
                isinstance(output, View)
                and results.count(output.buffer) == 1
                and name not in results
            ):
                source = graph.buffers[output.buffer]
                if (source.dtype, source.device, source.shape, source.stride) == (
                    target.dtype, target.device, target.shape, target.stride,
                ):  # fmt: skip
                    graph.written[source.name] = name

    def _number(self, value: torch.SymFloat | torch.SymBool) -> Symbolic | Item:
        """A Python number that the graph returns; the host computes it if only sizes are needed."""
        expr = symbolic(value, self.ctx)
        if all(free.is_integer for free in expr.free_symbols):
            return Symbolic(expr)
        dtype = torch.float64 if isinstance(value, torch.SymFloat) else torch.bool
        made: Any = creation.lower_full(
            self.ctx, None, shape=(), value=value, dtype=dtype, device="cpu"
        )
        result = self.ctx.realize(made)
        return Item(result.buffer, result.shape, result.stride, result.offset)
