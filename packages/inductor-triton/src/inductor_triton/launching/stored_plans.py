"""Launch plans as text, for cached programs: launchers with the sources and the launch descriptions
of their kernels, without the kernels themselves (contract G6).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

import sympy
from loopir import Kernel, KernelSource, Place, format_expr, parse_expr, symbol

from inductor_triton.spec import Config, LaunchSpec, launch_spec

from .launch import Launcher
from .launch_plan import Call, Plan, device_index

Expr = sympy.Expr


def describe_plans(plans: Sequence[Plan]) -> str | None:
    """JSON from which ``read_plans`` makes the plans again. None if a kernel uses the copy engine:
    addresses that it can't read need another source, which is generated from the kernel.
    """
    numbers: dict[int, int] = {}
    parts: list[dict[str, Any]] = []
    for launcher in (call.launcher for plan in plans for call in plan.calls):
        if launcher.spec.config.tma:
            return None
        if id(launcher) not in numbers:
            numbers[id(launcher)] = len(parts)
            parts.append(_described_part(launcher.source))
    described = [
        {
            "name": plan.name,
            "device": plan.device,
            "calls": [_described_call(numbers[id(call.launcher)], call) for call in plan.calls],
            "tensors": plan.tensors,
            "sizes": plan.sizes,
            "memory": plan.memory,
        }
        for plan in plans
    ]
    return json.dumps({"parts": parts, "plans": described}, default=format_expr)


def read_plans(text: str, build: Callable[..., list[Launcher]]) -> list[Plan]:
    """The plans of a text; ``build`` builds sources for a device. Raises BuildError."""
    stored = json.loads(text)
    parts = [_read_part(part) for part in stored["parts"]]
    made: dict[int, list[Launcher]] = {}
    plans = []
    for plan in stored["plans"]:
        device = device_index(plan["device"])
        if device not in made:
            made[device] = build(parts, device=device)
        calls = tuple(
            Call(
                made[device][number],
                tuple(Place(parameter, _expr(offset)) for parameter, offset in places),
                tuple(map(_expr, sizes)),
            )
            for number, places, sizes in plan.pop("calls")
        )
        sizes, memory = tuple(plan.pop("sizes")), _expr(plan.pop("memory"))
        plans.append(Plan(**plan, calls=calls, sizes=sizes, memory=memory))
    return plans


def _described_call(number: int, call: Call) -> tuple[Any, ...]:
    return number, [(place.parameter, place.offset) for place in call.places], call.sizes


def _described_part(source: KernelSource) -> dict[str, Any]:
    spec = launch_spec(source)
    described = {field.name: getattr(spec, field.name) for field in fields(spec)}
    return {
        "name": source.kernel.name,
        "text": source.text,
        "hints": [(size.name, value) for size, value in source.kernel.hints],
        "spec": described | {"config": asdict(spec.config)},
    }


def _read_part(part: Mapping[str, Any]) -> KernelSource:
    """A source of a kernel that has a name and sizes only."""
    given = dict(part["spec"])
    spec = LaunchSpec(
        **{name: tuple(given.pop(name)) for name in ("signature", "sizes", "numbers")},
        blocks=tuple((_expr(extent), block) for extent, block in given.pop("blocks")),
        batch=_expr(given.pop("batch")),
        config=Config(**given.pop("config")),
        limits=tuple(map(_expr, given.pop("limits"))),
        **given,
    )
    sizes = tuple(map(symbol, spec.sizes))
    hints = tuple((symbol(name), value) for name, value in part["hints"])
    kernel = Kernel(part["name"], "cuda", (), sizes, (), (), (), hints=hints)
    return KernelSource(kernel, part["text"], (("launch", spec),))


def _expr(text: str | int) -> Expr:
    return sympy.Integer(text) if isinstance(text, int) else parse_expr(text)
