"""Captured graphs as programs: their inputs as fakes, and one compiled variant per grad mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from symshapes import FakeTensor, FakeTensorMode, ShapeEnv
from torch.utils import _pytree as pytree

from .compile import Options, compile_joint, optimise_joint
from .errors import Unsupported
from .interpret import run_captured
from .joint import Joint, captured_program, trace_joint
from .plan import InputSpec
from .runtime import Runtime


class CapturedGraph:
    """A captured graph (C1), or any GraphModule with real example inputs, and what is compiled from it."""

    def __init__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], options: Options) -> None:
        self.gm = gm
        self.options = options
        self.placeholders = gm.graph.find_nodes(op="placeholder")
        self.examples = list(example_inputs)
        found = [n.meta["val"].fake_mode for n in self.placeholders if isinstance(n.meta.get("val"), FakeTensor)]
        found += [x.fake_mode for x in self.examples if isinstance(x, FakeTensor)]
        self.fake_mode = found[0] if found else FakeTensorMode(ShapeEnv())
        self.lifted = _owned_tensors(gm)
        self._compiled: dict[bool, Callable[..., Any]] = {}

    def build(self) -> Callable[..., Any]:
        """The callable for the present grad mode; it compiles the other mode when it is first called in that."""
        return self._variant(torch.is_grad_enabled())

    # -- inputs --------------------------------------------------------------------------------------------------

    def inputs(self) -> tuple[InputSpec, ...]:
        """Fresh fakes of every input, owned tensors of the module first."""
        specs = []
        for name, real in self.lifted.items():
            safe = "self_" + name.replace(".", "_")
            specs.append(InputSpec(safe, self._fake(real, real.requires_grad), True, real.requires_grad))
        for node, example in zip(self.placeholders, self.examples):
            specs.append(self._input(node, example))
        return tuple(specs)

    def _input(self, node: torch.fx.Node, example: Any) -> InputSpec:
        value = node.meta.get("val", example)
        if not isinstance(value, torch.Tensor):
            return InputSpec(node.name, value)
        described = example if isinstance(example, torch.Tensor) else value
        requires_grad = described.requires_grad
        static = bool(node.meta.get("static")) or isinstance(example, torch.nn.Parameter)
        return InputSpec(node.name, self._fake(value, requires_grad), static, requires_grad)

    def _fake(self, value: torch.Tensor, requires_grad: bool) -> torch.Tensor:
        if not isinstance(value, FakeTensor):
            value = self.fake_mode.from_real(value.detach())
        like = self.fake_mode.empty(value.shape, value.stride(), dtype=value.dtype, device=value.fake_device)
        return like.requires_grad_(requires_grad)

    # -- variants ------------------------------------------------------------------------------------------------

    def _variant(self, grad_enabled: bool) -> Callable[..., Any]:
        if grad_enabled not in self._compiled:
            self._compiled[grad_enabled] = self._compile(grad_enabled)
        return self._compiled[grad_enabled]

    def _compile(self, grad_enabled: bool) -> Callable[..., Any]:
        joint = self.trace(grad_enabled)
        optimise_joint(joint, self.options)
        depends_on_mode = any(s.requires_grad for s in joint.inputs)

        def other_mode(*inputs: Any) -> Any:
            with self.fake_mode.shape_env.freeze():  # the caller has taken its guards already
                call = self._variant(not grad_enabled)
            return call(*inputs)

        run = Runtime(
            joint,
            tuple(self.lifted.values()),
            self.eager,
            other_mode if depends_on_mode else None,
            grad_enabled,
            torch._C._is_any_autocast_enabled(),
        )
        return compile_joint(joint, run, self.options)

    def trace(self, grad_enabled: bool) -> Joint:
        """The joint graph of the program started in a grad mode."""
        with torch.inference_mode(False):
            joint = trace_joint(self._program(), self.inputs(), self.fake_mode, grad_enabled=grad_enabled)
        return joint

    def _program(self) -> Callable[..., Any]:
        run = captured_program(self.gm)
        if not self.lifted:
            return run
        names = list(self.lifted)

        def program(inputs: Sequence[Any], tracer: Any, wrap_constant: Any) -> Any:
            own = dict(zip(names, inputs))
            with substituted(self.gm, own):
                return run(inputs[len(names) :], tracer, lambda t: t if any(t is o for o in own.values()) else wrap_constant(t))

        return program

    def eager(self, *inputs: Any) -> tuple[Any, ...]:
        """The captured program itself, with flat outputs."""
        return tuple(pytree.tree_leaves(run_captured(self.gm, inputs)))


def _owned_tensors(gm: torch.fx.GraphModule) -> dict[str, torch.Tensor]:
    """Parameters and buffers that the module owns and its graph uses (by ``get_attr`` or ``call_module``)."""
    constants = {str(n.target) for n in gm.graph.find_nodes(op="get_attr")}
    if not gm.graph.find_nodes(op="call_module"):
        owned = {name: p for name, p in gm.named_parameters(remove_duplicate=False) if name in constants}
        owned |= {name: b for name, b in gm.named_buffers(remove_duplicate=False) if name in constants and b.requires_grad}
    else:
        owned = dict([*gm.named_parameters(remove_duplicate=False), *gm.named_buffers(remove_duplicate=False)])
    first: dict[int, str] = {}
    for name, tensor in owned.items():
        first.setdefault(id(tensor), name)
    if len(first) != len(owned):
        raise Unsupported("AG040", "one tensor is registered under two names of a module")
    return owned


class substituted:  # noqa: N801 - reads as a context
    """While active, the module's tensors are the given ones."""

    def __init__(self, module: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> None:
        self._places = []
        for name, tensor in tensors.items():
            owner_name, _, leaf = name.rpartition(".")
            owner = module.get_submodule(owner_name)
            table = owner._parameters if leaf in owner._parameters else owner._buffers
            self._places.append((table, leaf, tensor))

    def __enter__(self) -> None:
        self._originals = [table[leaf] for table, leaf, _ in self._places]
        for table, leaf, tensor in self._places:
            table[leaf] = tensor  # type: ignore[assignment]

    def __exit__(self, *exc: object) -> None:
        for (table, leaf, _), original in zip(self._places, self._originals):
            table[leaf] = original  # type: ignore[assignment]
