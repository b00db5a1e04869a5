"""The language programs again, their graphs broken at instructions that a hash chooses: that must
change nothing.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import bytecode_dynamo as bd
import pytest
from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.hook.origins import origins
from bytecode_dynamo.tracing import evaluator

from .comparing import check_program, load, programs

THEMES = sorted((Path(__file__).parent / "programs").glob("*.py"))
SHARE = 0.3
SETTING_UP = {
    "LOAD_FAST",
    "LOAD_FAST_CHECK",
    "LOAD_FAST_AND_CLEAR",
    "DELETE_FAST",
    "LOAD_DEREF",
    "STORE_DEREF",
}


def is_broken_at(seed: int, frame) -> bool:
    instruction = frame.decoded.instructions[frame.index]
    if instruction.op in evaluator.QUIET or instruction.op.name in SETTING_UP:
        return False
    origin = origins.by_code.get(id(frame.decoded.native))
    if origin is not None and not any(instruction is item for item in origin.original.instructions):
        return False  # restores the stack at the beginning of a resume function
    text = f"{seed}{frame.code.name}{instruction.op}{instruction.position}"
    return zlib.crc32(text.encode()) % 1000 < 1000 * SHARE


@pytest.mark.parametrize("path", THEMES, ids=lambda path: path.stem)
@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(k, marks=pytest.mark.slow) for k in range(2, 8))]
)
def test_breaks_change_nothing(path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    step = evaluator.step

    def breaking(ctx, frame) -> None:
        if frame.parent is None and is_broken_at(seed, frame):
            frame.current, frame.index = frame.index, frame.index + 1
            raise GraphBreak("BD009", "chosen by the test")
        step(ctx, frame)

    monkeypatch.setattr(evaluator, "step", breaking)
    eager, captured = load(path), load(path)
    for name, program in programs(eager).items():
        if name.startswith("left_"):
            continue  # after a break the function's objects live until it ends
        bd.reset()
        program.any_graphs = True
        with bd.config.patch(recompile_limit=64):
            check_program(eager, captured, name)
