"""Writes the backward function of one traced program: what surrounds the compiled backward
graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from operator import or_
from typing import Any

import torch
from symshapes import inner_tensors, is_wrapper, map_inner

from aotgrad.errors import ContractError
from aotgrad.graphs.donation import ALONE, copied, holders
from aotgrad.graphs.partial_backward import PartialBackward, does_harm, harmful_mixes, readers
from aotgrad.graphs.split import Split
from aotgrad.graphs.tangent_views import gradient_nodes, gradients_shown, tangents_of
from aotgrad.tracing.joint import Joint
from aotgrad.tracing.tangent_layout import KeptZeros, laid_out_as_saved, like_wrapper, restride
from aotgrad.tracing.view_chains import view_chain

from .batched import write_batches
from .double_backward import DoubleBackward
from .emit import EffectWriter, Source, tuple_text
from .retain_graph import read_saved
from .writeback_protocol import keeps_graph, take_kept

Compiled = Callable[..., Sequence[Any]]
aten = torch.ops.aten
_RESHAPES = {aten.view.default: aten.reshape.default}  # a tangent comes with any strides


def wrong_arity(what: str, expected: int, got: Any) -> ContractError:
    """The error for a compiled graph that returns the wrong number of values."""
    count = len(got) if isinstance(got, (tuple, list)) else f"a {type(got).__name__}"
    return ContractError(
        "B1", f"the compiled {what} graph returned {count} values instead of {expected}"
    )


def write_backward(
    out: Source, joint: Joint, split: Split, backward: Compiled, double: DoubleBackward | None,
    partial: PartialBackward | None, lead: list[str], sentinels: int, keeps: bool,
) -> None:  # fmt: skip
    """Writes ``function_backward``.

    Args:
        out: where to.
        joint: the traced program.
        split: its two graphs.
        backward: the compiled backward graph.
        double: makes the gradients differentiable; None when they are tangents as they come.
        partial: computes gradients from some tangents; None where zeros for the others do no harm.
        lead: texts of the gradients of what autograd passes through beside the inputs.
        sentinels: how many saved tensors are there to be checked only.
        keeps: whether the compiled graphs keep what only backward sees (B7); the last sentinel
            stands for it then.
    """
    tangents = tangents_of(joint)
    names = [t.name for t in tangents]
    out.enter(f"def function_backward(ctx, {', '.join(names)}):")
    # as autograd begins with what was made last
    for name, error in reversed([*zip(names, joint.backward_errors)]):
        if error:
            out.enter(f"if {name} is not None:")
            out(f"raise RuntimeError({error!r})")
            out.leave()
    if passes_tangents(joint):
        if split.sizes:
            out(f"{', '.join(n.name for n in split.sizes)}, = ctx.sizes")
        _write_shown(out, joint, split)
        out(f"return {tuple_text([*lead, *_gradient_texts(joint, split)])}")
    else:
        write_batches(out, names)
        _write_leaving_early(out, joint, double, names, lead)
        _write_saved(out, joint, split, backward, double, sentinels, keeps)
        _write_layouts(out, joint, split, keeps)
        _write_tangents(out, joint, split, tangents)
        _write_shown(out, joint, split)
        if partial is not None:
            _write_partial(out, joint, split, partial, lead, keeps)
        if partial is None or not joint.nodes:
            _write_whole(out, joint, split, backward, names, lead, keeps)
    out.leave()
    out()


def _write_whole(
    out: Source,
    joint: Joint,
    split: Split,
    backward: Compiled,
    names: list[str],
    lead: list[str],
    keeps: bool,
) -> None:
    """Writes the call of the backward graph, with zeros for absent tangents."""
    gradients = [g for g in gradient_nodes(joint) if isinstance(g, torch.fx.Node)]
    tangents = tangents_of(joint)
    call = _backward_call(out, split, backward, names, gradients, keeps)
    call_compiled(
        out, "backward", call, [f"d{i}" for i in range(len(split.gradients))], autocast="unknown"
    )
    texts = _gradient_texts(joint, split)
    if len(names) > 1:
        out.enter("if given:")
        behind = tuple(_tangents_behind(joint))
        wrapped = reduce(
            or_, (1 << i for i, t in enumerate(tangents) if is_wrapper(t.meta["val"])), 0
        )
        found = zip(behind, gradient_nodes(joint), joint.gradients_of)
        for bits in sorted(
            {bits for bits, g, i in found if bits & wrapped and _changes_class(joint, g, i)}
        ):
            out.enter(
                f"if given & {bits} and not given & {bits & wrapped}:"
            )  # zeros in the place of tangents would decide what the gradient is
            out(f"raise RuntimeError({_MIXED!r})")
            out.leave()
        masked = f"{out.name('mask', mask_absent)}({behind}, given, {tuple_text(texts)})"
        out(f"return {tuple_text(lead)} + {masked}")
        out.leave()
    out(f"return {tuple_text([*lead, *texts])}")


def _gradient_texts(joint: Joint, split: Split) -> list[str]:
    position = {g: f"d{i}" for i, g in enumerate(split.gradients)}
    position |= {g: f"shown_{g.name}" for g in gradients_shown(joint)}
    texts = [position.get(g, str(g)) for g in gradient_nodes(joint)]
    for k in joint.shared_gradients:
        texts[k] = f"None if {texts[k]} is None else {texts[k]}[...]"
    return texts


def _write_shown(out: Source, joint: Joint, split: Split) -> None:
    """Writes the gradients that are views of tangents."""
    symbols = EffectWriter(out, joint, {})
    symbols.symbols = {n.meta["val"].node.expr: n.name for n in split.sizes}
    shown = gradients_shown(joint)
    for gradient in dict.fromkeys(g for g in gradient_nodes(joint) if g in shown):
        _write_views(symbols, gradient)


def _write_partial(
    out: Source, joint: Joint, split: Split, partial: PartialBackward, lead: list[str], keeps: bool
) -> None:
    """Writes the way that a call takes in which zeros may not take the place of the absent
    tangents.
    """
    names = [t.name for t in tangents_of(joint)]
    if not joint.nodes:  # none of which has all tangents
        mixes = harmful_mixes(split.backward, len(names))
        out.enter(f"if given and {out.name('does_harm', does_harm)}(given, {mixes}):")
    arguments = tuple_text(_backward_arguments(split, names, keeps))
    out(
        f"{', '.join(f'd{i}' for i in range(len(split.gradients)))}, = "
        f"{out.name('partial_backward', partial)}(given, {arguments})"
    )
    behind = tuple(_tangents_behind(joint))
    masked = (
        f"{out.name('mask', mask_absent)}({behind}, given, "
        f"{tuple_text(_gradient_texts(joint, split))})"
    )
    out(f"return {tuple_text(lead)} + {masked}")
    if not joint.nodes:
        out.leave()


def _backward_arguments(split: Split, tangents: list[str], keeps: bool) -> list[str]:
    """Texts of what the backward graph takes."""
    saved = [n.name for n in split.saved if n not in split.sizes]
    if keeps:
        saved[-split.kept :] = ["kept"]
    return [*(n.name for n in split.sizes), *saved, *tangents]


_MIXED = (
    "backward through some results only, where a plain input has gradients of a wrapper subclass "
    "from others: "
    "call backward on all of them together"
)


def _changes_class(joint: Joint, gradient: Any, index: int) -> bool:
    """Whether the gradient of a plain input is of a wrapper subclass."""
    value = gradient.meta["val"] if isinstance(gradient, torch.fx.Node) else None
    return is_wrapper(value) and not is_wrapper(joint.inputs[index].value)


def _write_leaving_early(
    out: Source, joint: Joint, double: DoubleBackward | None, names: list[str], lead: list[str]
) -> None:
    if double is not None:
        out.enter(f"if {out.name('grad_enabled', torch.is_grad_enabled)}():")
        again = f"{out.name('double_backward', double)}(ctx, {tuple_text(names)})"
        out(f"return {tuple_text([*lead, '*' + again])}")
        out.leave()
    out.enter(f"if {' is '.join([*names, 'None'])}:")
    out(f"return {tuple_text([*lead, *['None'] * len(joint.gradients_of)])}")
    out.leave()


def _write_saved(
    out: Source,
    joint: Joint,
    split: Split,
    backward: Compiled,
    double: DoubleBackward | None,
    sentinels: int,
    keeps: bool,
) -> None:
    saved = (
        [n.name for n in split.saved[: -split.kept if keeps else None]]
        + ["_"] * (sentinels - keeps)
        + ["*hooked"] * keeps
    )
    if saved:
        if reads_apart(joint, split):
            names = tuple_text([t.name for t in tangents_of(joint)])
            out(f"{', '.join(saved)}, = {out.name('read_saved', read_saved)}(ctx, {names})")
        else:
            out(f"{', '.join(saved)}, = ctx.saved_tensors")
        if double is not None and double.keeps_tensors:
            out.enter(f"if not {out.name('keeps_graph', keeps_graph)}():")
            out("ctx.primals = None")  # as free as what is saved
            out.leave()
    if keeps:
        out(f"kept = {out.name('take_kept', take_kept)}(ctx, hooked)")
    elif not joint.nodes:  # whose partial graphs overwrite nothing
        _write_donation(out, split, backward)
    if split.sizes:
        out(f"{', '.join(n.name for n in split.sizes)}, = ctx.sizes")


def reads_apart(joint: Joint, split: Split) -> dict[str, int]:
    """For each saved value a bit for each tangent whose gradients need it; nothing where all of
    them do.
    """
    count = len(tangents_of(joint))
    if count < 2:
        return {}
    found = readers(split.backward, count)
    return found if any(found[n.name] != (1 << count) - 1 for n in split.saved) else {}


def _write_layouts(out: Source, joint: Joint, split: Split, keeps: bool) -> None:
    """Writes copies of saved inputs that got other strides through ``.data`` since: autograd saves
    the caller's tensor itself.

    Parameters are left out: there are many of them, and what replaces their data is usually laid
    out like it.
    """
    given = {s.name for s in joint.inputs if s.is_tensor and not s.static}
    symbols = EffectWriter(out, joint, {})
    symbols.symbols = {n.meta["val"].node.expr: n.name for n in split.sizes}
    for node in split.saved[: -split.kept if keeps else None]:
        value = node.meta["val"]
        if (
            node.op != "placeholder"
            or node.name not in given
            or is_wrapper(value)
            or not value.dim()
        ):
            continue
        if not all(
            type(n) is int or _expr(n).free_symbols <= symbols.symbols.keys()
            for n in (*value.shape, *value.stride())
        ):
            continue
        sizes, strides = (
            tuple_text(symbols.size(_expr(n)) for n in numbers)
            for numbers in (value.shape, value.stride())
        )
        is_kept = f"{node.name} is not None and " if joint.nodes else ""
        out.enter(
            f"if {is_kept}({node.name}.stride() != {strides} or {node.name}.shape != {sizes}):"
        )
        out(
            f"{node.name} = {out.name('laid_out_as_saved', laid_out_as_saved)}({node.name}, "
            f"{sizes}, {strides})"
        )
        out.leave()


def _write_tangents(
    out: Source, joint: Joint, split: Split, tangents: Sequence[torch.fx.Node]
) -> None:
    """Writes zeros for absent tangents, copies of lazy ones and of those with other strides than
    the graph was compiled for.
    """
    used = {n.name for n in split.backward.graph.find_nodes(op="placeholder") if n.users}
    used |= {g.name for g in gradient_nodes(joint) if isinstance(g, torch.fx.Node)}
    symbols = EffectWriter(out, joint, {})
    symbols.symbols = {n.meta["val"].node.expr: n.name for n in split.sizes}
    if len(tangents) > 1:
        _fill_absent(out, tangents, symbols)
    for tangent in tangents:
        value = tangent.meta["val"]
        if tangent.name not in used:
            continue
        if is_wrapper(value):
            like = out.name("like", value)
            out(
                f"{tangent.name} = {out.name('like_wrapper', like_wrapper)}({tangent.name}, {like})"
            )
            continue
        strides = tuple_text(symbols.size(_expr(s)) for s in value.stride())
        tests = [f"{tangent.name}.stride() != {strides}"] if value.dim() else []
        tests += [
            f"type({tangent.name}) is not {out.name('Tensor', torch.Tensor)}",
            f"{tangent.name}.is_neg()",
        ]
        tests += [f"{tangent.name}.is_conj()"] if value.is_complex() else []
        out.enter(f"if {' or '.join(tests)}:")
        out(f"{tangent.name} = {out.name('restride', restride)}({tangent.name}, {strides})")
        out.leave()


def passes_tangents(joint: Joint) -> bool:
    """Whether each gradient is a tangent, a view of one, or absent: backward computes nothing."""
    passed = {None, *tangents_of(joint), *gradients_shown(joint)}
    return all(g in passed for g in gradient_nodes(joint))


def _fill_absent(out: Source, tangents: Sequence[torch.fx.Node], symbols: EffectWriter) -> None:
    """Writes zeros for tangents that are None; ``given`` has a bit for each other one, and is 0
    when all are there.
    """
    names = [t.name for t in tangents]
    out("given = 0")
    out.enter(f"if {' or '.join(f'{name} is None' for name in names)}:")
    bits = [f"({name} is not None) << {i}" for i, name in enumerate(names)]
    out(f"given = {' | '.join([*bits, str(1 << len(names))])}")
    zeros = out.name("zeros", KeptZeros())
    for name, value in zip(names, (t.meta["val"] for t in tangents)):
        if is_wrapper(value):
            sizes = tuple_text(
                symbols.size(_expr(s)) for inner in inner_tensors(value) for s in inner.shape
            )
            zeros_like = (
                f"{out.name('wrapped_zeros', wrapped_zeros)}({out.name('like', value)}, {sizes})"
            )
            out(f"{name} = {zeros_like} if {name} is None else {name}")
            continue
        sizes = tuple_text(symbols.size(_expr(s)) for s in value.shape)
        like = (
            f"dtype={out.name(str(value.dtype), value.dtype)}, "
            f"device={out.name(str(value.device), value.device)}"
        )
        out(f"{name} = {zeros}({sizes}, {like}) if {name} is None else {name}")
    out.leave()


def wrapped_zeros(like: Any, sizes: Sequence[int]) -> torch.Tensor:
    """Zeros in a wrapper subclass; ``sizes`` are those of the plain tensors inside, one after the
    other.
    """
    remaining = iter(sizes)

    def zeros(inner: Any) -> torch.Tensor:
        return torch.zeros(
            [next(remaining) for _ in inner.shape], dtype=inner.dtype, device=inner.fake_device
        )

    return map_inner(zeros, like)


def _tangents_behind(joint: Joint) -> Iterator[int]:
    """For each gradient a bit for each tangent that it depends on."""
    tangents = tangents_of(joint)
    behind = {t: 1 << i for i, t in enumerate(tangents)}
    for node in joint.gm.graph.nodes:
        if node not in behind:
            behind[node] = reduce(or_, (behind[a] for a in node.all_input_nodes), 0)
    yield from (behind.get(g, 0) for g in gradient_nodes(joint))


def mask_absent(reach: Sequence[int], given: int, gradients: Sequence[Any]) -> tuple[Any, ...]:
    """``gradients`` without those that depend on tangents but on none of the given ones."""
    return tuple(
        None if bits and not bits & given else gradient for bits, gradient in zip(reach, gradients)
    )


def _backward_call(
    out: Source,
    split: Split,
    backward: Compiled,
    tangents: list[str],
    gradients: list[torch.fx.Node],
    keeps: bool,
) -> str:
    """Text of the compiled graph's call; before a call with a list, the values are let go of."""
    function = out.name("backward", backward)
    arguments = _backward_arguments(split, tangents, keeps)
    if not getattr(backward, "takes_list", False):
        return f"{function}({', '.join(arguments)})"
    returned = {g.name for g in gradients}
    out(f"arguments = [{', '.join(arguments)}]")
    out("".join(f"{name} = " for name in arguments if name not in returned) + "None")
    return f"{function}(arguments)"


def _write_donation(out: Source, split: Split, backward: Compiled) -> None:
    """Lets go of what is saved; donated values that somebody else holds, or that a second backward
    will read, are copied.
    """
    if split.donated:
        out("ctx.maybe_clear_saved_tensors()")
    if not getattr(backward, "overwrites_donated", True):
        return
    for name in (n.name for n in split.saved if n in split.donated):
        out.enter(f"if {out.name('holders', holders)}({name}) != {out.name('ALONE', ALONE)}:")
        out(f"{name} = {out.name('copied', copied)}({name})")
        out.leave()


def call_compiled(out: Source, what: str, call: str, results: list[str], *, autocast: str) -> None:
    """Writes a call of a compiled graph, which has its casts inside. ``autocast``: "on", "off", or
    "unknown" until the call.
    """
    if not results:
        return
    if autocast == "unknown":
        out.enter(f"if {out.name('autocast_enabled', torch._C._is_any_autocast_enabled)}():")
    if autocast != "off":
        out.enter(f"with {out.name('DisableAutocast', torch._C._DisableAutocast)}():")
        out(f"results = {call}")
        out.leave()
    if autocast == "unknown":
        out.leave()
        out.enter("else:")
    if autocast != "on":
        out(f"results = {call}")
    if autocast == "unknown":
        out.leave()
    out.enter("try:")
    out(f"{', '.join(results)}, = results")
    out.leave()
    out.enter("except (TypeError, ValueError):")
    out(
        f"raise {out.name('wrong_arity', wrong_arity)}({what!r}, {len(results)}, results) from None"
    )
    out.leave()


def _expr(size: Any) -> Any:
    return size if type(size) is int else size.node.expr


def _write_views(writer: EffectWriter, gradient: torch.fx.Node) -> str:
    """Writes a gradient that is shown, None where there is no tangent; the name that it gets."""
    root, steps = view_chain(gradient)
    text = root.name
    for step in steps:
        op = _RESHAPES.get(step.target, step.target)
        arguments = [
            text,
            *map(writer.size, step.args),
            *(f"{name}={writer.size(value)}" for name, value in step.kwargs),
        ]
        text = f"{writer.out.name(str(op), op)}({', '.join(arguments)})"
        text += f"[{step.item}]" if step.item is not None else ""
    name = f"shown_{gradient.name}"
    writer.out(f"{name} = None if {root.name} is None else {text}")
    return name
