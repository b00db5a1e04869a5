"""torch.func: the function is captured as a nested graph that the transform calls in the graph."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.function_table import evaluates_call, evaluates_code
from bytecode_dynamo.graph.builder import NestedGraph
from bytecode_dynamo.polyfills import control_flow
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import Identity
from bytecode_dynamo.state.protocol import get_attribute, pairs_of, written_as
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.base import Args, Kwargs, Variable, realize
from bytecode_dynamo.variables.constant import ConstantVariable
from bytecode_dynamo.variables.function import FunctionVariable
from bytecode_dynamo.variables.mapping import DictVariable
from bytecode_dynamo.variables.sequence import new_tuple

from .subgraph import Subgraph, call_subgraph, capture_subgraph, inner_fake

FUNCTION_TRANSFORMS: tuple[Any, ...] = (
    torch.func.grad, torch.func.grad_and_value, torch.func.jacrev, torch.func.jacfwd,
    torch.func.hessian,
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class TransformVariable(Variable):
    """``torch.func.grad(function, **options)`` and its relatives, not called yet."""

    transform: Callable[..., Any]
    function: VariableTracker
    options: dict[str, Any]

    def python_type(self) -> type:
        return types.FunctionType

    def describe(self) -> str:
        return f"torch.func.{self.transform.__name__} of {self.function.describe()}"

    def call(self, ctx: Context, args: Args, kwargs: Kwargs) -> VariableTracker:
        fakes = [arg.as_fake(ctx) for arg in args]
        graph = capture_subgraph(ctx, self.function, args, self.inner_fakes(ctx, fakes), kwargs)
        return call_transform(
            ctx, self.transform.__name__, lambda f: self.transform(f, **self.options), args, graph
        )

    def inner_fakes(self, ctx: Context, fakes: list[Any]) -> list[Any]:
        """The fakes that the function receives as arguments."""
        return inner_fakes(ctx, fakes)

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        return self.function.get_attr(ctx, name)


@evaluates_call(torch._C._are_functorch_transforms_active)
def are_transforms_active(ctx: Context) -> VariableTracker:
    """False: frames under a transform run in eager mode, which a guard sees."""
    if isinstance(ctx.graph, NestedGraph):
        raise GraphBreak("BD018", "asking for transforms in a function that may be under one")
    return ConstantVariable(False)


def inner_fakes(ctx: Context, fakes: Any) -> Any:
    """Fakes like the arguments that the function may differentiate."""
    return pytree.tree_map(functools.partial(inner_fake, ctx), fakes)


def call_transform(
    ctx: Context, name: str, transform: Callable[[Any], Any], args: Args, graph: Subgraph
) -> VariableTracker:
    """Record ``transform(function)(*args)``."""
    count = len(args)

    def run(*values: Any) -> Any:
        return transform(graph.bind(values[count:]))(*values[:count])

    return call_subgraph(ctx, name, run, args, graph)


@dataclass(frozen=True, slots=True, eq=False)
class VmapVariable(TransformVariable):
    """``torch.vmap(function, in_dims, out_dims, ...)``."""

    def inner_fakes(self, ctx: Context, fakes: list[Any]) -> list[Any]:
        dims = pytree.tree_map(lambda dim: dim, self.options.get("in_dims", 0))
        leaves, spec = pytree.tree_flatten(tuple(fakes))
        flat_dims = pytree._broadcast_to_and_flatten(
            tuple(dims) if isinstance(dims, list) else dims, spec
        )
        if flat_dims is None:
            raise GraphBreak(
                "BD018",
                "in_dims of vmap do not fit its arguments",
                "eager mode refuses this call, too; correct its arguments",
            )
        with ctx.mode:
            inner = [
                _example(leaf, dim) if isinstance(leaf, torch.Tensor) and dim is not None else leaf
                for leaf, dim in zip(leaves, flat_dims)
            ]
        return list(pytree.tree_unflatten(inner, spec))

    def call(self, ctx: Context, args: Args, kwargs: Kwargs) -> VariableTracker:
        graph, before = ctx.graph, ctx.graph.in_batch
        graph.in_batch = True  # nested graphs inherit it
        try:
            return TransformVariable.call(self, ctx, args, kwargs)
        finally:
            graph.in_batch = before


def _example(batch: torch.Tensor, dim: int) -> torch.Tensor:
    """An example element of a batch, which may be empty."""
    if batch.shape[dim] != 0:
        return batch.select(dim, 0)
    kept = list(batch.shape)
    del kept[dim]
    return batch.new_empty(kept)


def _making(variable: type[TransformVariable], transform: Any, *names: str) -> Any:
    """The rule of a transform whose positional options have these names."""

    def rule(
        ctx: Context, func: VariableTracker, *args: VariableTracker, **kwargs: VariableTracker
    ) -> VariableTracker:
        options = {
            name: value.as_constant(ctx)
            for name, value in {**dict(zip(names, args)), **kwargs}.items()
        }
        return variable(transform, func, options)

    return rule


_OWN = ("eager_transforms", "reapply_views")  # other contents of their closures


def _of_made(rule: Any) -> Any:
    """The rule for functions that the transform created in eager mode, which hold the original and
    options.
    """

    def call(
        ctx: Context, function: FunctionVariable, args: Args, kwargs: Kwargs
    ) -> VariableTracker:
        held = {
            name: realize(ctx, cell)
            for name, cell in zip(function.code.co_freevars, function.closure)
            if name not in _OWN
        }
        return rule(
            ctx, **{name: cell.get_attr(ctx, "cell_contents") for name, cell in held.items()}
        ).call(ctx, args, kwargs)

    return call


for _function in FUNCTION_TRANSFORMS:
    _rule = _making(
        TransformVariable,
        _function,
        "argnums",
        *["has_aux"] * (_function is not torch.func.hessian),
    )
    evaluates_call(_function)(_rule)
    if _function is not torch.func.hessian:  # computed from the others
        evaluates_code(_function(lambda x: x))(_of_made(_rule))

_vmap = _making(VmapVariable, torch.func.vmap, "in_dims", "out_dims", "randomness")
for _function in dict.fromkeys((torch.func.vmap, torch.vmap)):
    evaluates_call(_function)(_vmap)
evaluates_code(torch.vmap(lambda x: x))(_of_made(_vmap))


evaluates_call(torch.func.stack_module_state)(written_as(control_flow.stack_module_state))
evaluates_call(torch.func.linearize)(written_as(control_flow.linearize))


@evaluates_call(torch.func.functionalize)
def functionalize(
    ctx: Context, func: VariableTracker, *, remove: VariableTracker | None = None
) -> VariableTracker:
    """The function itself: graphs are functionalised anyway."""
    if remove is not None and remove.as_constant(ctx) not in ("mutations", "mutations_and_views"):
        raise GraphBreak("BD018", "functionalize that removes something else")
    return func


evaluates_code(torch.func.functionalize(lambda x: x))(_of_made(functionalize))


@evaluates_call(torch.func.jvp)
def jvp(
    ctx: Context,
    func: VariableTracker,
    primals: VariableTracker,
    tangents: VariableTracker,
    **options: VariableTracker,
) -> VariableTracker:
    given = {name: value.as_constant(ctx) for name, value in options.items()}
    args = primals.unpack(ctx)
    graph = capture_subgraph(
        ctx, func, args, inner_fakes(ctx, [arg.as_fake(ctx) for arg in args]), {}
    )

    def run(inner_primals: Any, inner_tangents: Any, *lifted: Any) -> Any:
        return torch.func.jvp(graph.bind(lifted), inner_primals, inner_tangents, **given)

    return call_subgraph(ctx, "jvp", run, [primals, tangents], graph)


@evaluates_call(torch.func.vjp)
def vjp(
    ctx: Context,
    func: VariableTracker,
    *primals: VariableTracker,
    has_aux: VariableTracker | None = None,
) -> VariableTracker:
    args, aux = list(primals), has_aux is not None and has_aux.truth(ctx)
    graph = capture_subgraph(
        ctx, func, args, inner_fakes(ctx, [arg.as_fake(ctx) for arg in args]), {}
    )
    result = call_transform(
        ctx,
        "vjp",
        lambda f: lambda *values: _without_pullback(torch.func.vjp(f, *values, has_aux=aux)),
        args,
        graph,
    )
    pullback = PullbackVariable(graph, args, aux)
    if not aux:
        return new_tuple([result, pullback])
    value, extra = result.unpack(ctx)
    return new_tuple([value, pullback, extra])


def _without_pullback(found: tuple[Any, ...]) -> Any:
    return found[0] if len(found) == 2 else (found[0], found[2])


@dataclass(frozen=True, slots=True, eq=False)
class PullbackVariable(Variable):
    """The function that ``torch.func.vjp`` returns; calling it evaluates the primal again."""

    graph: Subgraph
    primals: Args
    aux: bool

    def python_type(self) -> type:
        return types.FunctionType

    def call(self, ctx: Context, args: Args, kwargs: Kwargs) -> VariableTracker:
        if kwargs or len(args) != 1:
            raise GraphBreak("BD018", "a vjp function takes its cotangents as one argument here")
        count = len(self.primals)

        def run(cotangents: Any, *values: Any) -> Any:
            return torch.func.vjp(
                self.graph.bind(values[count:]), *values[:count], has_aux=self.aux
            )[1](cotangents)

        return call_subgraph(ctx, "vjp_pullback", run, [args[0], *self.primals], self.graph)


@evaluates_call(torch.func.functional_call)
def functional_call(
    ctx: Context, module: VariableTracker, dicts: VariableTracker,
    args: VariableTracker | None = None,
    kwargs: VariableTracker | None = None, **options: VariableTracker,
) -> VariableTracker:  # fmt: skip
    mappings = [dicts] if isinstance(dicts, DictVariable) else dicts.unpack(ctx)
    values = {
        key.as_constant(ctx): realize(ctx, held)
        for mapping in mappings
        for key, held in pairs_of(ctx, mapping)
    }
    if "strict" in options and options["strict"].truth(ctx) and set(values) != _names(module):
        raise GraphBreak(
            "BD018", "functional_call with strict=True and other names than the module's"
        )
    if "tie_weights" not in options or options["tie_weights"].truth(ctx):
        values = {
            tied: value
            for name, value in values.items()
            for tied in (name, *_tied(module, name, values))
        }
    given = (
        []
        if args is None
        else args.unpack(ctx)
        if issubclass(args.python_type(), tuple)
        else [args]
    )
    named = [] if kwargs is None or isinstance(kwargs, ConstantVariable) else pairs_of(ctx, kwargs)
    before = [(*_registry(ctx, module, name), value) for name, value in values.items()]
    old = [(registry.key, ctx.effects.read(registry.key)) for registry, _, _ in before]
    try:
        for registry, label, value in before:
            registry.set_item(ctx, label, value)
        result = module.call(
            ctx, given, {key.as_constant(ctx): realize(ctx, held) for key, held in named}
        )
        if any(registry.get(ctx, label) is not value for registry, label, value in before):
            raise GraphBreak(
                "BD020", "a module assigns to a parameter or buffer that functional_call replaces"
            )
    finally:
        for key, contents in reversed(old):
            ctx.effects.write(key, contents)
    return result


def _names(module: VariableTracker) -> set[str]:
    """The names of all parameters and buffers."""
    key = module.identity()
    real: Any = key.value if isinstance(key, Identity) and key.exists else torch.nn.Module()
    return {
        name
        for name, _ in (
            *real.named_parameters(remove_duplicate=False),
            *real.named_buffers(remove_duplicate=False),
        )
    }


def _tied(module: VariableTracker, name: str, values: dict[str, Any]) -> list[str]:
    """Other names of the same parameter or buffer."""
    key = module.identity()
    if not isinstance(key, Identity) or not key.exists:
        return []
    real = key.value
    tensors = [
        *real.named_parameters(remove_duplicate=False),
        *real.named_buffers(remove_duplicate=False),
    ]
    wanted = next((value for other, value in tensors if other == name), None)
    return [
        other
        for other, value in tensors
        if value is wanted and value is not None and other not in values
    ]


def _registry(
    ctx: Context, module: VariableTracker, name: str
) -> tuple[DictVariable, VariableTracker]:
    """The dict that holds a parameter or buffer, and its key there."""
    *path, last = name.split(".")
    for part in path:
        module = get_attribute(ctx, module, part)
    for registry in ("_parameters", "_buffers"):
        held = get_attribute(ctx, module, registry)
        if isinstance(held, DictVariable) and held.contains(ctx, ConstantVariable(last)):
            return held, ConstantVariable(last)
    raise GraphBreak(
        "BD018",
        f"functional_call: there is no parameter or buffer {name!r}",
        "name a parameter or buffer that the module has",
    )
