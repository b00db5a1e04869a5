"""Leaf tensors that a graph creates and gives gradients, and that only a result's history keeps."""

from __future__ import annotations

from symshapes import FakeTensor

from bytecode_dynamo.reconstruction.value_builder import ValueBuilder
from bytecode_dynamo.variables.tensor import TensorVariable


def keep_leaves(gen: ValueBuilder) -> None:
    """Rebuild such leaves after the graph if the program still sees the memory of their gradients:
    backward of a result adds to them in place.
    """
    ctx = gen.ctx
    outputs = [val for node in gen.outputs if isinstance(val := node.meta["val"], FakeTensor)]
    if not any(val.requires_grad for val in outputs):
        return
    seen = {val.untyped_storage()._cdata for val in outputs}
    seen |= {
        val.untyped_storage()._cdata
        for node in ctx.graph.inputs
        if isinstance(val := node.meta["val"], FakeTensor)
    }
    for fake, key in list(ctx.identities.items()):
        gradient, leaf = ctx.effects.read((key, "grad")), ctx.tensors.get(fake)
        if (
            key.exists
            or leaf is None
            or not isinstance(gradient, TensorVariable)
            or not ctx.graph.sees(leaf.node)
        ):
            continue
        if leaf.fake.requires_grad and gradient.fake.untyped_storage()._cdata in seen:
            gen(leaf)
            gen.emitter.pop()
    gen.flush()
