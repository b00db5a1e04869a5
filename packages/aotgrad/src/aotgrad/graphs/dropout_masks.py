"""Regenerates dropout masks in backward: cheaper on GPUs than a stored byte per element."""

from __future__ import annotations

import torch
from symshapes import is_wrapper

from aotgrad import seeded_ops  # noqa: F401 (defines the operators)
from aotgrad.tracing.view_chains import view_source

from .cost import is_product
from .seeded_random import add_seed

aten = torch.ops.aten
DEVICES = frozenset({"cuda"})
SEEDED_MASK = torch.ops.aotgrad.seeded_mask.default


def redraw_masks(gm: torch.fx.GraphModule) -> None:
    """A pass on joint graphs: dropout draws masks that backward reads by ``aotgrad::seeded_mask``,
    a function of a seed, a size, the probability of True, and the number of the mask in the
    program. The masks differ from eager's.

    It changes contiguous results of known size on devices where that pays (CUDA).
    """
    seeds: dict[torch.device, torch.fx.Node] = {}
    for place, node in enumerate([n for n in gm.graph.nodes if _is_read_by_backward(n)]):
        device = node.meta["val"][0].fake_device
        if device not in seeds:
            seeds[device] = add_seed(node, device)
        draw_mask(node, seeds[device], place)
        for dead in (*node.users, node):
            gm.graph.erase_node(dead)


def draw_mask(node: torch.fx.Node, seed: torch.fx.Node, place: int) -> None:
    """Replaces a dropout by mask number ``place``, and by the elements that the mask keeps."""
    x, p, *_ = node.args
    out, _ = node.meta["val"]
    with node.graph.inserting_before(node):
        mask = node.graph.call_function(SEEDED_MASK, (seed, [*out.shape], 1 - p, place))  # type: ignore[operator]
        scaled = node.graph.call_function(aten.mul.Scalar, (x, 1 / (1 - p)))  # type: ignore[operator]
        kept = node.graph.call_function(aten.where.ScalarOther, (mask, scaled, 0.0))
    drawn = out.fake_mode.empty(out.shape, out.stride(), dtype=torch.bool, device=out.fake_device)
    for new, value in ((mask, drawn), (scaled, out), (kept, out)):
        new.meta |= {k: v for k, v in node.meta.items() if k != "position"} | {"val": value}
    mask.meta |= {k: v for k, v in node.meta.items() if k == "position"}
    for user in list(node.users):
        user.replace_all_uses_with(kept if user.args[1] == 0 else mask)
    kept.meta["read_by_product"] = _is_read_by_product(kept)


def _is_read_by_product(node: torch.fx.Node) -> bool:
    """Whether a matrix product of backward reads a value or a cast of it: a regenerated value would
    be written to memory for it.
    """
    for user in node.users:
        is_same = (
            user.target in (aten._to_copy.default, aten.clone.default)
            or view_source(user, unsafe=True) is not None
        )
        if is_same and _is_read_by_product(user):
            return True
        if not is_same and user.meta.get("is_backward") and is_product(user):
            return True
    return False


def redraw_from(node: torch.fx.Node, drawn: torch.fx.Node, seed: torch.fx.Node) -> None:
    """Makes a random node repeat the numbers of ``drawn``, the same node of an earlier trace, by
    drawing from ``seed``.
    """
    if drawn.target is SEEDED_MASK:
        draw_mask(node, seed, drawn.args[3])  # type: ignore[arg-type]
    else:
        node.target, node.args = drawn.target, (seed, *node.args)


def _is_read_by_backward(node: torch.fx.Node) -> bool:
    if node.target is not aten.native_dropout.default or "recompute" in node.meta:
        return False
    (_, p, train), (out, _) = node.args, node.meta["val"]
    known = (
        not is_wrapper(out)
        and all(type(size) is int for size in out.shape)
        and out.is_contiguous()
        and out.fake_device.type in DEVICES
    )
    masks = (user for user in node.users if user.args[1] == 1)
    return (
        known
        and train is not False
        and 0 < p < 1  # type: ignore[operator]
        and any(r.meta.get("is_backward") for m in masks for r in m.users)
    )
