"""Leaves that a graph makes and gives gradients, when nothing but the history of a result holds
them afterwards.
"""

from __future__ import annotations

from symshapes import FakeTensor

from bytecode_dynamo.reconstruction.value_builder import ValueBuilder
from bytecode_dynamo.variables.tensor import TensorVariable


def keep_leaves(gen: ValueBuilder) -> None:
    """Build such leaves after the graph, with their gradients, when the program still sees the
    memory of these: backward of a result adds to them in place.
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
