"""Derives the effects of a traced program from its functional wrappers: mutations, aliases, and
identities of tensors.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import sympy
import torch
from symshapes import expr_of, is_symbolic, is_wrapper, same_kind
from torch.utils import _pytree as pytree

from aotgrad.effect_plan import (
    Assertion,
    Constant,
    EffectPlan,
    ExternalTensor,
    Mutation,
    Output,
    SameAs,
    Slot,
    View,
    ViewMode,
)
from aotgrad.errors import Unsupported

from .autograd_history import OuterHistory
from .functional import (
    below_functionalisation,
    current_value,
    extent,
    has_own_version,
    is_functional,
    replace_value,
    storage_id,
)
from .tracer import Tracer
from .view_chains import steps_between, view_chain, view_root

_autograd: Any = torch._C._autograd  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class TracedTensor:
    """A tensor that existed before the call: an input or a constant.

    Attributes:
        target: identifies the tensor.
        before: the fake with its value before the program ran.
        wrapper: the functional wrapper that the program used.
        version: the wrapper's version counter before the program ran.
        edge: its gradient edge before the program ran; None if its gradient is not wanted.
        was_leaf: whether it is known to have no history.
        moved: whether the program changed its sizes or strides.
        filled: whether the program resized it and wrote all of it (``out=``).
        line: the user's line that last changed it or wrote to it.
        is_input_view: whether it is a view of another traced tensor, to which its writes count.
    """

    target: ExternalTensor
    before: torch.Tensor
    wrapper: torch.Tensor
    version: int
    edge: Any
    was_leaf: bool = False
    moved: bool = False
    filled: bool = False
    line: str = ""
    is_input_view: bool = False

    def refuse(self, id: str, reason: str) -> NoReturn:
        """Raises Unsupported at the line that wrote to the tensor."""
        raise Unsupported(id, reason, line=self.line)

    @property
    def is_differentiable_input(self) -> bool:
        """Whether it is an input whose gradient is wanted."""
        return self.target.index >= 0 and self.edge is not None

    @property
    def became_leaf(self) -> bool:
        """Whether the program made an input a leaf that requires grad, without any other change."""
        is_leaf = self.wrapper.is_leaf and self.wrapper.requires_grad
        return self.target.index >= 0 and is_leaf and not self.before.requires_grad


@dataclass(frozen=True, slots=True)
class TracedProgram:
    """The live objects of a forward trace: tensors from before the call, the flat outputs, and the
    uses of input histories and storage offsets that a call checks first.
    """

    tensors: tuple[TracedTensor, ...]
    outputs: tuple[Any, ...]
    out_spec: pytree.TreeSpec
    outer_histories: tuple[OuterHistory, ...] = ()
    reads_offset: frozenset[int] = frozenset()


def plan_effects(traced: TracedProgram, tracer: Tracer) -> tuple[EffectPlan, list[Any]]:
    """The plan, and the values (wrappers, SymInts) of its slots."""
    planner = _Planner(traced, tracer)
    mutations = tuple(m for t in traced.tensors if (m := planner.mutation(t)) is not None)
    outputs = planner.outputs()
    differentiable = tuple(
        i
        for i, v in enumerate(planner.values)
        if is_functional(v) and v.requires_grad and i in planner.tracked
    )
    retains_grad_outputs = tuple(
        i for i, o in enumerate(traced.outputs) if is_functional(o) and o.retains_grad
    )
    assertions = tuple(
        Assertion(planner.slot(value, tracked=False), *how) for value, how in tracer.assertions
    )
    plan = EffectPlan(outputs, mutations, differentiable, retains_grad_outputs, assertions)
    inference = tuple(
        i
        for i in sorted(plan.returned_slots)
        if isinstance(v := planner.values[i], torch.Tensor) and v.is_inference()
    )
    return replace(plan, inference=inference), planner.values


class _Planner:
    def __init__(self, traced: TracedProgram, tracer: Tracer) -> None:
        self.traced = traced
        self.tracer = tracer
        self.values: list[Any] = []
        self.tracked: set[int] = set()  # slots that are visible to autograd if they require grad
        self._slot_of: dict[int, Slot] = {}
        # used by views that are created outside the graph
        self._size_slots: dict[sympy.Symbol, Slot] = {}
        self.env = tracer.fake_mode.shape_env
        self._has_gradients = any(t.edge is not None for t in traced.tensors)
        self._moved_in = Counter(
            storage_id(t.wrapper) for t in traced.tensors if t.is_input_view and t.moved
        )

    def node(self, value: torch.Tensor) -> torch.fx.Node:
        return self.tracer.node_of(current_value(value) if is_functional(value) else value)

    def slot(self, value: Any, *, tracked: bool = True) -> Slot:
        slot = self._slot_of.get(id(value))
        if slot is None:
            slot = self._slot_of[id(value)] = Slot(len(self.values))
            self.values.append(value)
        if tracked:
            self.tracked.add(slot.index)
        return slot

    # -- mutations ---------------------------------------------------------------------------------

    def mutation(self, t: TracedTensor) -> Mutation | None:
        wrapper = t.wrapper
        if torch._functionalize_was_storage_changed(wrapper):  # type: ignore[attr-defined]
            t.refuse(
                "AG020", "the program replaces the storage of an input (set_ or .data assignment)"
            )
        root, _ = view_chain(self.node(wrapper))
        written = not t.is_input_view and root is not self.tracer.node_of(t.before)
        layout = _layout_change(t, written) if t.moved else None
        is_same_kind = same_kind(t.before, current_value(wrapper))
        if not is_same_kind or (layout is not None and is_wrapper(t.before)):
            t.refuse("AG034", "the program changes what an input of a wrapper subclass is made of")
        if t.became_leaf and written:
            t.refuse("AG021", "the program writes to an input and calls its requires_grad_()")
        has_changed = wrapper.requires_grad != t.before.requires_grad
        has_changed = has_changed or (layout is not None and wrapper.requires_grad)
        if t.is_input_view and has_changed:
            t.refuse("AG021", "the program changes an input that is a view of another one")
        detached = t.before.requires_grad and not wrapper.requires_grad
        if detached and (written or layout is not None):
            t.refuse("AG021", "the program changes an input and detaches it")
        version_bumps = 0
        if not t.is_input_view:
            version_bumps = wrapper._version - t.version - self._moved_in[storage_id(wrapper)]
        if not written and layout is None and not version_bumps and not detached:
            return None
        differentiable = wrapper.requires_grad and (
            t.edge is None or gradient_edge(wrapper) != t.edge
        )
        slot = self.slot(wrapper, tracked=differentiable) if written else None
        if slot is not None and layout is None and not differentiable and not version_bumps:
            self._mark_memory(t)
        return Mutation(t.target, slot, differentiable, version_bumps, layout, detached)

    def _mark_memory(self, t: TracedTensor) -> None:
        """Notes that backward finds in an input what was written there through ``.data``."""
        if not self._has_gradients or t.target.index < 0 or is_wrapper(t.before):
            return
        node, static = self.node(t.wrapper), self.tracer.node_of(t.before).meta.get("static")
        if view_chain(node)[0] is not node:
            value = current_value(t.wrapper)
            with below_functionalisation(), torch.no_grad():
                replace_value(t.wrapper, torch.ops.aten.copy.default(t.before, value))
            node = self.node(t.wrapper)
        node.meta.update(stored_in=t.target.index, static=static)

    # -- outputs -----------------------------------------------------------------------------------

    def outputs(self) -> tuple[Output, ...]:
        owners: dict[int, list[TracedTensor]] = {}
        for t in sorted(self.traced.tensors, key=lambda t: not t.is_input_view):
            owners.setdefault(storage_id(t.wrapper), []).append(t)
        groups: dict[int, list[torch.Tensor]] = {}
        for o in self.traced.outputs:
            if is_functional(o) and all(o is not other for other in groups.get(storage_id(o), ())):
                groups.setdefault(storage_id(o), []).append(o)
        bases = {
            s: self._base_of(members)
            for s, members in groups.items()
            if s not in owners and len(members) > 1
        }
        found: list[Output] = []
        first: dict[int, int] = {}
        for i, o in enumerate(self.traced.outputs):
            if isinstance(o, torch.Tensor) and id(o) in first:
                found.append(SameAs(first[id(o)]))
                continue
            first[id(o)] = i
            found.append(self._output(o, owners, bases))
        return tuple(found)

    def _output(
        self, o: Any, owners: dict[int, list[TracedTensor]], bases: dict[int, torch.Tensor | None]
    ) -> Output:
        if is_symbolic(o):
            return self.slot(o)
        if not isinstance(o, torch.Tensor):
            return Constant(o)
        if not is_functional(o):
            return self.slot(self.tracer.lift(o))
        if storage_id(o) in owners:
            return self._of_owner(o, owners[storage_id(o)])
        base = bases.get(storage_id(o))
        if base is None or base is o:
            if o.requires_grad and grad_node(o) is None:
                raise Unsupported(
                    "AG025", "an output is a new leaf that requires grad", node=self.node(o)
                )
            if _is_multi_output_view(o):
                return View(self.slot(o), (), ViewMode.MULTI_OUTPUT)
            return self.slot(o)
        return self._view(o, self.slot(base), base)

    def _of_owner(self, o: torch.Tensor, owners: list[TracedTensor]) -> Output:
        for t in owners:
            if o is t.wrapper:
                return t.target
        for t in owners[:-1]:
            if steps_between(self.node(t.wrapper), self.node(o)) is not None and _can_show(
                o, t.wrapper
            ):
                return self._view(o, t.target, t.wrapper)
        return self._view(o, owners[-1].target, owners[-1].wrapper)

    def _view(
        self, o: torch.Tensor, base: ExternalTensor | Slot, base_wrapper: torch.Tensor
    ) -> View | Slot:
        if (
            o.requires_grad
            and base_wrapper.requires_grad
            and _passes_custom_function(grad_node(o), gradient_edge(base_wrapper).node)
        ):
            return self.slot(o)  # views of the base would get other gradients
        steps = steps_between(self.node(base_wrapper), self.node(o))
        if steps is None:
            reason = "an output is a view whose relation to its base is not a chain of views"
            raise Unsupported("AG022", reason, node=self.node(o))
        symbols = {s for step in steps for s in _symbols_in((step.args, step.kwargs))}
        for symbol in sorted(symbols, key=str):
            if self.env.is_unbacked_symint(symbol) and symbol not in self._size_slots:
                self._size_slots[symbol] = self.slot(self.env.wrap(symbol), tracked=False)
        mode = _view_mode(o, base_wrapper, self.node(o))
        return View(base, steps, mode, has_own_version(o, base_wrapper))

    def _base_of(self, members: list[torch.Tensor]) -> torch.Tensor | None:
        """The wrapper of the whole memory of several outputs: one of them, or the tensor that they
        are views of.
        """
        roots = {view_root(self.node(m)) for m in members}
        if len(roots) != 1:
            raise Unsupported("AG024", "outputs share memory but are not views of one value")
        (root,) = roots
        candidates = [*members, *(m._base for m in members if m._is_view())]
        candidates = [c for c in candidates if is_functional(c)]
        whole = [
            c
            for c in candidates
            if all(steps_between(self.node(c), self.node(m)) is not None for m in members)
        ]
        whole.sort(key=lambda c: not c.requires_grad)
        # views of inference tensors don't know their base
        if not whole and all(m.is_inference() for m in members):
            whole = [root.meta["val"]]
        if not whole:
            raise Unsupported(
                "AG024", "outputs share memory with a value that is out of reach", node=root
            )
        return next((c for c in whole if all(m is c or _can_show(m, c) for m in members)), whole[0])


def _symbols_in(value: Any) -> set[Any]:
    if isinstance(value, tuple):
        return set().union(*map(_symbols_in, value))
    return value.free_symbols if isinstance(value, sympy.Basic) else set()


def grad_node(wrapper: torch.Tensor) -> Any:
    """The autograd node of a tensor; None if it has none."""
    try:
        return wrapper.grad_fn
    except RuntimeError:
        # a view made under no_grad, written to since: eager has no history for it either
        return None


def _is_multi_output_view(o: torch.Tensor) -> bool:
    """Whether ``o`` is a view made by an operator like ``split`` and recorded by autograd."""
    several = _autograd.CreationMeta.MULTI_OUTPUT_NODE
    return o.requires_grad and o._is_view() and _autograd._get_creation_meta(o) == several


def _can_show(o: torch.Tensor, base: torch.Tensor) -> bool:
    try:
        _view_mode(o, base)
    except Unsupported:
        return False
    return True


def _view_mode(o: torch.Tensor, base: torch.Tensor, node: torch.fx.Node | None = None) -> ViewMode:
    owner = base._base if base._is_view() else base
    if not o.requires_grad:
        if not o._is_view():
            return ViewMode.NOT_A_VIEW
        if o._base is owner and not base.requires_grad:
            return ViewMode.UNTRACKED
        return ViewMode.DETACHED
    if not base.requires_grad:
        raise Unsupported("AG023", "an output requires grad although its base does not", node=node)
    history = grad_node(o)
    if history is None:
        if not o._is_view():
            raise Unsupported("AG025", "an output is a new leaf that requires grad", node=node)
        if _is_multi_output_view(o):
            raise Unsupported(
                "AG022",
                "an output is one of several views of what was written to, which none may use",
                node=node,
            )
        return ViewMode.NO_GRAD
    if not (
        o._is_view() and o._base is owner and _leads_straight_to(history, gradient_edge(base).node)
    ):
        raise Unsupported(
            "AG023", "an output shares memory with a tensor that is not in its history", node=node
        )
    return ViewMode.RECORDED


def _passes_custom_function(node: Any, ancestor: Any) -> bool:
    """Whether a gradient on its way from ``node`` to ``ancestor`` passes through the backward of an
    ``autograd.Function``.
    """
    while node is not None and node != ancestor:
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            return True
        node = next((n for n, _ in node.next_functions if n is not None), None)
    return False


def _leads_straight_to(node: Any, ancestor: Any) -> bool:
    """Whether a gradient that arrives at ``node`` goes to ``ancestor`` and nowhere else."""
    while node is not None and node != ancestor:
        following = [n for n, _ in node.next_functions if n is not None]
        node = following[0] if len(following) == 1 else None
    return node is not None


def gradient_edge(wrapper: torch.Tensor) -> Any:
    """The edge at which a gradient of the wrapper's current value would arrive."""
    if wrapper.grad_fn is not None:
        return torch.autograd.graph.get_gradient_edge(wrapper)
    with torch.enable_grad(), torch._C._DisableTorchDispatch():  # a view that is not recorded
        node = torch.ops.aten.alias.default(wrapper).grad_fn.next_functions[0][0]
    return torch.autograd.graph.GradientEdge(node, 0)


def _layout_change(
    t: TracedTensor, written: bool
) -> tuple[tuple[Any, ...], tuple[Any, ...] | None, Any] | None:
    now = current_value(t.wrapper)
    old, new = _layout(t.before), _layout(now)
    if old == new:
        return None
    if written and extent(*new[:2]) != extent(*old[:2]):
        if not t.filled or not now.is_contiguous() or new[2] != old[2]:
            t.refuse(
                "AG026",
                "the program resizes an input, or changes the strides of one with gaps in memory "
                "that it writes to",
            )
        return new[0], None, 0
    return new[0], new[1], new[2] - old[2]


def _layout(t: torch.Tensor) -> tuple[tuple[Any, ...], tuple[Any, ...], Any]:
    return (
        tuple(expr_of(s) for s in t.shape),
        tuple(expr_of(s) for s in t.stride()),
        expr_of(t.storage_offset()),
    )
