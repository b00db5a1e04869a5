"""``torch.autograd.Function``: forward and backward are captured as graphs, and called as one
function.

The attributes of ``ctx`` that forward sets are evaluated with it: tensors that backward needs
become saved values, everything else is constant.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from symshapes import map_inner
from torch.autograd.function import Function, FunctionCtx, once_differentiable
from torch.fx import GraphModule, Node

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.function_table import evaluates_call, evaluates_code
from bytecode_dynamo.graph.builder import NestedGraph
from bytecode_dynamo.graph.opaque import OpaqueCall
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import MISSING, Identity
from bytecode_dynamo.state.protocol import get_attribute, new_value, raise_no_attribute
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.torch_versions import FUNCTION_APPLY
from bytecode_dynamo.variables.base import Args, BoundRuleVariable, Kwargs
from bytecode_dynamo.variables.class_object import ClassVariable
from bytecode_dynamo.variables.constant import NONE
from bytecode_dynamo.variables.sequence import new_tuple
from bytecode_dynamo.variables.tensor import TensorVariable
from bytecode_dynamo.variables.userobject import UserObjectVariable

from . import distributed_tensors, graph_calls
from .subgraph import nested_graph, parameter, without_effects

_ONCE = once_differentiable(lambda ctx: None).__code__
MOST_OPTIONAL = 3
HIGHEST_ORDER = 4
"""Limit of nesting: functions may call each other in their backwards without end."""
Backwards = dict[tuple[bool, ...], tuple[GraphModule, list[int]]]
_LISTS = {
    "save_for_backward": "saved",
    "save_for_forward": "forward",
    "mark_dirty": "dirty",
    "mark_non_differentiable": "constant",
}


@dataclass(frozen=True, slots=True, eq=False)
class FunctionContextVariable(UserObjectVariable):
    """``ctx``, from forward to backward."""

    needs: tuple[bool, ...] = ()

    def noted(self, ctx: Context, name: str) -> list[VariableTracker]:
        """The tensors passed to a method of ``ctx``."""
        return list(ctx.effects.read((self.key, f".{name}"), ()))

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        if name in _LISTS or name == "set_materialize_grads":
            return BoundRuleVariable(self, name)
        if name == "needs_input_grad":
            return new_value(ctx, self.needs)
        if name in ("saved_tensors", "to_save"):
            return new_tuple(self.noted(ctx, "saved"))
        written = ctx.effects.read((self.key, name))
        if written is MISSING and not hasattr(FunctionCtx, name):
            return raise_no_attribute(ctx, self.key.cls, name)
        if written is MISSING:
            raise GraphBreak("BD018", f"{name} of an autograd.Function's ctx")
        return written

    def set_attr(self, ctx: Context, name: str, value: VariableTracker) -> None:
        ctx.effects.write((self.key, name), value)

    def call_method(self, ctx: Context, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
        if name in _LISTS:
            ctx.effects.write((self.key, f".{_LISTS[name]}"), tuple(args))
            return NONE
        if name == "set_materialize_grads":
            ctx.effects.write((self.key, ".materialize"), args[0].truth(ctx))
            return NONE
        return UserObjectVariable.call_method(self, ctx, name, args, kwargs)


@evaluates_call(FUNCTION_APPLY)
def apply(
    ctx: Context, cls: VariableTracker, *args: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    if not isinstance(cls, ClassVariable) or kwargs:
        raise GraphBreak("BD018", f"{cls.describe()}.apply")
    if distributed_tensors.is_single_call(cls.value):
        return distributed_tensors.call_function(ctx, cls.value, args)
    return _Capture(ctx, cls, args).run()


evaluates_code(_ONCE)(
    lambda ctx, function, args, kwargs: get_attribute(ctx, function, "__wrapped__").call(
        ctx, args, kwargs
    )
)


class _Capture:
    """One call of ``apply``."""

    def __init__(self, ctx: Context, cls: ClassVariable, args: Args) -> None:
        self.ctx = ctx
        self.cls = cls
        self.args = args
        self.tensors = [arg for arg in args if isinstance(arg, TensorVariable)]
        needs = tuple(isinstance(arg, TensorVariable) and arg.fake.requires_grad for arg in args)
        # Whether a backward is differentiated is known only when it runs.
        in_backward = 0 < ctx.graph.order < HIGHEST_ORDER
        needs = (
            tuple(isinstance(arg, TensorVariable) and is_differentiable(arg.fake) for arg in args)
            if in_backward
            else needs
        )
        self.differentiable = any(needs) and (in_backward or ctx.modes.grad_enabled(ctx))
        own = {
            name: getattr(cls.value, name) is not getattr(Function, name)
            for name in ("setup_context", "vmap")
        }
        self.transformed = (
            isinstance(ctx.graph, NestedGraph) and own["setup_context"] and not own["vmap"]
        )
        self.function = FunctionContextVariable(
            Identity(FunctionCtx), needs if self.differentiable else (False,) * len(args)
        )

    def run(self) -> VariableTracker:
        ctx = self.ctx
        ctx.effects.write((self.function.key, ".saved"), ())
        with ctx.modes.grad_off(ctx), nested_graph(ctx) as graph:
            inner = [
                parameter(ctx, graph, self._alias(arg)) if isinstance(arg, TensorVariable) else arg
                for arg in self.args
            ]
            result = self._forward(inner)
            outputs = result.unpack(ctx) if issubclass(result.python_type(), tuple) else [result]
            backward, saved = self._backwards(outputs) if self.differentiable else ({}, [])
            kept = [node for node in saved if graph.sees(node) and node.graph is graph.graph]
            outer = [node for node in saved if node not in kept]
            tensors = [out for out in outputs if isinstance(out, TensorVariable)]
            forward, lifted = graph.close([*(out.node for out in tensors), *kept])
        plan = Plan(
            self.cls.value.__name__,
            forward,
            backward,
            len(tensors),
            not issubclass(result.python_type(), tuple),
        )
        plan.arguments = [isinstance(arg, TensorVariable) for arg in self.args]
        plan.outer_saved = len(outer)
        plan.saved_order = [
            kept.index(node) if node in kept else len(kept) + outer.index(node) for node in saved
        ]
        plan.checked = {saved.index(t.node) for t in self._noted("saved") if t.node in saved}
        inner_tensors = [tracker.fake for tracker in inner if isinstance(tracker, TensorVariable)]
        plan.dirty = [
            k
            for t in self._noted("dirty")
            for k, fake in enumerate(inner_tensors)
            if fake is t.fake
        ]
        plan.constant = [
            k
            for t in self._noted("constant")
            for k, out in enumerate(tensors)
            if out.fake is t.fake
        ]
        plan.materialize = ctx.effects.read((self.function.key, ".materialize"), True)
        plan.once = getattr(self.cls.value.backward, "__code__", None) is _ONCE
        plan.transformed = self.transformed and not plan.dirty
        plan.vmaps = self.cls.value.generate_vmap_rule
        target = OpaqueCall(
            plan.build(), plan.name, (forward, *(module for module, _ in backward.values()))
        )
        found = graph_calls.call_nodes(ctx, target, self.tensors, [*lifted, *outer])
        return self._result(result, outputs, found)

    def _noted(self, name: str) -> list[TensorVariable]:
        noted = self.function.noted(self.ctx, name)
        if not all(isinstance(t, TensorVariable) or (t.is_none and name == "saved") for t in noted):
            raise GraphBreak(
                "BD018",
                f"{self.cls.describe()} saves or marks what is no tensor: eager mode refuses that",
                "eager mode refuses this call, too; correct its arguments",
            )
        return [t for t in noted if isinstance(t, TensorVariable)]

    def _alias(self, arg: TensorVariable) -> Any:
        with self.ctx.mode, torch.enable_grad():
            return arg.fake.detach().requires_grad_(arg.fake.requires_grad)

    def _forward(self, inner: list[VariableTracker]) -> VariableTracker:
        ctx, cls = self.ctx, self.cls.value
        if cls.setup_context is Function.setup_context:
            return get_attribute(ctx, self.cls, "forward").call(ctx, [self.function, *inner], {})
        result = get_attribute(ctx, self.cls, "forward").call(ctx, inner, {})
        get_attribute(ctx, self.cls, "setup_context").call(
            ctx, [self.function, new_tuple(inner), result], {}
        )
        return result

    def _backwards(self, outputs: list[VariableTracker]) -> tuple[Backwards, list[Node]]:
        """The backward graphs by the set of gradients that are defined, and the values that they
        need.
        """
        tensors = [isinstance(out, TensorVariable) for out in outputs]
        patterns: list[tuple[bool, ...]] = [tuple(tensors)]
        if not self.ctx.effects.read((self.function.key, ".materialize"), True):
            if sum(tensors) > MOST_OPTIONAL:
                raise GraphBreak(
                    "BD018",
                    f"{self.cls.describe()}: set_materialize_grads(False) with {sum(tensors)} "
                    f"outputs",
                )
            patterns = [
                p
                for p in itertools.product(*((True, False) if t else (False,) for t in tensors))
                if any(p)
            ]
        found: Backwards = {}
        saved: dict[Node, int] = {}
        for pattern in patterns:
            module, needed = self._backward(outputs, pattern)
            found[tuple(itertools.compress(pattern, tensors))] = (
                module,
                [saved.setdefault(node, len(saved)) for node in needed],
            )
        return found, list(saved)

    def _backward(
        self, outputs: list[VariableTracker], defined: tuple[bool, ...]
    ) -> tuple[GraphModule, list[Node]]:
        ctx = self.ctx
        with without_effects(ctx, f"{self.cls.describe()}.backward"), nested_graph(ctx) as graph:
            graph.order += 1
            grads: list[VariableTracker] = []
            for out, given in zip(outputs, defined):
                with ctx.mode:
                    fake = (
                        map_inner(torch.empty_like, out.fake)
                        if given and isinstance(out, TensorVariable)
                        else None
                    )
                grads.append(NONE if fake is None else parameter(ctx, graph, fake))
            result = get_attribute(ctx, self.cls, "backward").call(ctx, [self.function, *grads], {})
            given = (
                result.unpack(ctx) if issubclass(result.python_type(), (tuple, list)) else [result]
            )
            if len(given) < len(self.args) or not all(
                item.is_none for item in given[len(self.args) :]
            ):
                raise GraphBreak(
                    "BD018",
                    f"{self.cls.describe()}.backward returned {len(given)} gradients for "
                    f"{len(self.args)} inputs",
                    "return one gradient or None for each input of forward",
                )
            wanted = [
                item for arg, item in zip(self.args, given) if isinstance(arg, TensorVariable)
            ]
            return graph.close([item.as_proxy(ctx) for item in wanted])

    def _result(
        self, result: VariableTracker, outputs: list[VariableTracker], found: VariableTracker
    ) -> VariableTracker:
        if not issubclass(result.python_type(), tuple):
            return found if isinstance(outputs[0], TensorVariable) else result
        tensors = iter(found.unpack(self.ctx))
        return new_tuple(
            [next(tensors) if isinstance(out, TensorVariable) else out for out in outputs]
        )


def is_differentiable(fake: torch.Tensor) -> bool:
    """Whether its dtype has gradients."""
    return fake.is_floating_point() or fake.is_complex()


class Plan:
    """The layout of the inputs of the combined function.

    Its inputs are the tensor arguments, values that forward captures, and values that only backward
    captures.
    """

    def __init__(
        self, name: str, forward: GraphModule, backward: Backwards, outputs: int, single: bool
    ) -> None:
        self.name = name
        self.forward = forward
        self.backward = backward
        self.outputs = outputs
        self.single = single
        self.arguments: list[bool] = []
        self.outer_saved = 0
        self.saved_order: list[int] = []
        self.checked: set[int] = set()
        self.dirty: list[int] = []
        self.constant: list[int] = []
        self.materialize = True
        self.once = False
        # torch's transforms require ``setup_context``
        self.transformed = False
        self.vmaps = False

    def build(self) -> Any:
        """``apply`` of a subclass of ``torch.autograd.Function``."""
        backward = functools.partial(run_backward, self)
        if self.once:
            backward = once_differentiable(backward)
        forward = run_alone if self.transformed else run_forward
        methods: dict[str, Any] = {
            "forward": staticmethod(functools.partial(forward, self)),
            "backward": staticmethod(backward),
        }
        if not self.transformed:
            return type(self.name, (Function,), methods).apply
        self.checked = set(range(len(self.saved_order)))
        methods |= {
            "setup_context": staticmethod(functools.partial(set_up, self)),
            "generate_vmap_rule": self.vmaps,
        }
        function = type(self.name, (Function,), methods)

        def apply(*inputs: torch.Tensor) -> Any:
            outputs = function.apply(*inputs)[: self.outputs]
            return outputs[0] if self.single and outputs else outputs

        return apply

    def split(self, values: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        """Split the forward graph's results into the outputs and the values that backward needs."""
        return values[: self.outputs], values[self.outputs :]

    def made(self) -> list[bool]:
        """The indices of values for backward that are neither inputs nor outputs."""
        nodes: Any = self.forward.graph.output_node().args[0]
        outputs, kept = self.split(nodes)
        return [node.op != "placeholder" and node not in outputs for node in kept]

    def kept(self, inputs: Sequence[Any], outputs: Sequence[Any], made: Iterable[Any]) -> list[Any]:
        """The values for backward; those at the indices ``made`` are given."""
        nodes: Any = self.forward.graph.output_node().args[0]
        known = dict(
            zip(
                [*self.forward.graph.find_nodes(op="placeholder"), *nodes[: self.outputs]],
                [*inputs, *outputs],
            )
        )
        extra = iter(made)
        return [known[node] if node in known else next(extra) for node in nodes[self.outputs :]]


def run_alone(plan: Plan, *inputs: torch.Tensor) -> Any:
    """Forward without a context."""
    outputs, kept = plan.split(plan.forward(*inputs[: len(inputs) - plan.outer_saved]))
    return (*outputs, *itertools.compress(kept, plan.made()))


def set_up(
    plan: Plan, ctx: Any, inputs: tuple[torch.Tensor, ...], output: tuple[torch.Tensor, ...]
) -> None:
    """Set up the context of ``run_alone``."""
    outputs, made = plan.split(output)
    own = len(inputs) - plan.outer_saved
    save(plan, ctx, inputs, outputs, [*plan.kept(inputs[:own], outputs, made), *inputs[own:]])
    ctx.mark_non_differentiable(*(outputs[place] for place in plan.constant), *made)


def run_forward(plan: Plan, ctx: Any, *inputs: torch.Tensor) -> Any:
    """Forward of a captured function."""
    own = len(inputs) - plan.outer_saved
    outputs, kept = plan.split(plan.forward(*inputs[:own]))
    save(plan, ctx, inputs, outputs, [*kept, *inputs[own:]])
    return outputs[0] if plan.single and outputs else outputs


def save(
    plan: Plan, ctx: Any, inputs: Sequence[Any], outputs: Sequence[Any], kept: Sequence[Any]
) -> None:
    """Save the values for backward on the context."""
    saved = [kept[place] for place in plan.saved_order]
    is_tensor = [isinstance(value, torch.Tensor) for value in saved]
    ctx.save_for_backward(
        *(value if k in plan.checked and is_tensor[k] else None for k, value in enumerate(saved))
    )
    ctx.others = [
        None if k in plan.checked and is_tensor[k] else value for k, value in enumerate(saved)
    ]
    ctx.inputs = len(inputs)
    ctx.set_materialize_grads(plan.materialize)
    ctx.mark_dirty(*(inputs[place] for place in plan.dirty))
    ctx.mark_non_differentiable(*(outputs[place] for place in plan.constant))


def run_backward(plan: Plan, ctx: Any, *grads: Any) -> Any:
    """Backward of a captured function."""
    saved = [
        other if tensor is None else tensor for tensor, other in zip(ctx.saved_tensors, ctx.others)
    ]
    own, _ = plan.split(grads)
    defined = [grad for grad in own if grad is not None]
    if not plan.backward:
        raise RuntimeError(
            f"{plan.name}: derivatives of an order above {HIGHEST_ORDER} are not captured; call it "
            f"uncompiled"
        )
    module, needed = plan.backward[tuple(grad is not None for grad in own)]
    found = module(*defined, *(saved[place] for place in needed))
    return (*found, *(None,) * (ctx.inputs - len(found)))
