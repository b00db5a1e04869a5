"""Instructions that call the compiled graph, and rerun the call in eager mode when it raises."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import CodeType
from typing import Any

from bytecode_dynamo._hook import GuardProgram
from bytecode_dynamo.bytecode import Code, Handler, Instruction, Label, Op
from bytecode_dynamo.guards.compiler import Loads, by_level
from bytecode_dynamo.guards.paths import NoNativePath, PathBuilder
from bytecode_dynamo.guards.source import Scope, Source, SourceEmitter
from bytecode_dynamo.reconstruction.value_builder import KEPT, RESULT

from .rerun import Rerun

WORTHWHILE = 4
"""Minimum extra inputs for the loader call to beat inline loads."""


def input_loader(sources: Sequence[Source], code: CodeType, scope: Scope) -> Loads | None:
    """The loader of the values of ``sources``; None where instructions do as well.

    ``scope`` is the call that was compiled. A source without a native path is passed itself.
    """
    paths = PathBuilder(code, scope)
    arguments: dict[Source, int] = {}

    def argument(source: Source, value: Any) -> Any:
        return paths.root(value, "ARGUMENT", arguments.setdefault(source, len(arguments)))

    wanted = []
    for source in sources:
        root = source.root
        if root not in paths.nodes:
            paths.nodes[root] = argument(root, root.resolve(scope))
        try:
            node = paths.node(source)
        except NoNativePath:
            node = argument(source, None)
        wanted.append(node.register)
    if len(sources) < len(arguments) + WORTHWHILE:
        return None
    program = GuardProgram(tuple(by_level(paths.roots)), paths.count, None, tuple(wanted))
    return Loads(tuple(sources), tuple(arguments), program)


def graph_call(
    code: Code,
    position: Any,
    drawn: Sequence[Instruction],
    compiled: Any,
    inputs: Sequence[Source],
    loads: Loads | None,
    rerun: Rerun,
) -> list[Instruction]:
    """Call the compiled graph and store its outputs; when it raises, rerun the call or raise.

    ``drawn``: what runs between saving state and the graph. ``loads``: the loader of all inputs.
    """
    emitter = SourceEmitter(code, position)
    if rerun.keeps:
        kept = [*rerun.written, *rerun.drawn_from]
        emitter.call_const(rerun.keep, [partial(_push, emitter, value) for value in kept])
        emitter.store_fast(KEPT)
    emitter.instructions.extend(drawn)
    emitter.load_callee_const(compiled)
    if loads is not None:
        inputs = loads.roots
        emitter.load_callee_const(loads.loader.load)
    for source in inputs:
        source.emit(emitter)
    raised, done = Label(), Label()
    if loads is not None:
        emitter.call(len(inputs))
    emitter.handler = Handler(raised, 0, False)
    if loads is not None:
        emitter.call_ex(False)
    else:
        emitter.call(len(inputs))
    emitter.handler = None
    emitter.store_fast(RESULT)
    emitter.jump(done)
    emitter.label(raised)
    _call_again(emitter, code, rerun)
    emitter.label(done)
    emitter.emit(Op.NOP)
    return emitter.instructions


def _push(emitter: SourceEmitter, value: Any) -> None:
    """Push an object, or that of a source."""
    if isinstance(value, Source):
        value.emit(emitter)
    else:
        emitter.load_const(value)


def _call_again(emitter: SourceEmitter, code: Code, rerun: Rerun) -> None:
    """Exception -> nothing: return the rerun's continuation, or raise."""
    names = code.varnames[: code.parameter_count]
    emitter.load_callee_const(rerun)
    emitter.copy(3)
    if rerun.keeps:
        emitter.load_fast(KEPT)
    else:
        emitter.load_const(None)
    for name in code.freevars:
        emitter.load_closure(name)
    emitter.build_tuple(len(code.freevars))
    for name in names:
        emitter.load_argument(name)
    emitter.call(3 + len(names))
    refused = Label()
    emitter.duplicate()
    emitter.emit(Op.POP_JUMP_IF_NONE, refused)
    emitter.swap(2)
    emitter.pop()
    emitter.return_value()
    emitter.label(refused)
    emitter.pop()
    emitter.emit(Op.RERAISE, 0)
