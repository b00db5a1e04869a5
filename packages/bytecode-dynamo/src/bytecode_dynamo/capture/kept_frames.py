"""Entries of frames that travel with the backend's cache: found before a frame is captured, kept
after.

A frame is kept when it is one graph without breaks and its guards, its instructions and the code
that was evaluated for it have a form that another process can check (``kept``). There everything
is checked against the live call before the entry is installed, with guards on that process's
objects: names, contents and values have to be what they were.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import CodeType, FunctionType
from typing import Any

import torch
from symshapes import is_of_handler
from symshapes.text.values import MISSING, Unwritable

from bytecode_dynamo.bytecode import Instruction, encode, replacement
from bytecode_dynamo.bytecode.decode import decoded
from bytecode_dynamo.config import config
from bytecode_dynamo.counters import counters
from bytecode_dynamo.function_table import FUNCTIONS
from bytecode_dynamo.guards.compiler import Loads
from bytecode_dynamo.guards.global_state import GlobalState
from bytecode_dynamo.guards.guards import GuardProgram, compile_guards, explain_failure
from bytecode_dynamo.guards.records import GuardRecord, ShapeGuards
from bytecode_dynamo.guards.references import find_named
from bytecode_dynamo.guards.source import Scope, Source
from bytecode_dynamo.hook.frame_hook import NULL, Entry, FrameView, Region
from bytecode_dynamo.hook.origins import origins, without_entry_handler
from bytecode_dynamo.hook.policy import is_own_file
from bytecode_dynamo.kept.arguments import describe_arguments
from bytecode_dynamo.kept.contents import Contents, patches
from bytecode_dynamo.kept.protocol import FrameSlot, Json
from bytecode_dynamo.kept.table import Changed, TableReader, TableWriter
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.dynamic_shapes import Seen

from .backend_call import checked
from .failing_graphs import CompiledGraph
from .frame_code import FrameCode
from .graph_code import graph_call, input_loader
from .log import log_guards, log_recompile, logs_recompiles
from .observing import FrameReport
from .policy import Kept, Policy
from .recompilation import reason, where
from .rerun import Rerun

log = logging.getLogger("bytecode_dynamo.kept")
_C: Any = torch._C
FORM, VERSION = "bytecode_dynamo.frame", 1


class _NotKept(Exception):
    """A frame can't be kept; says why."""


@dataclass(slots=True)
class FrameParts:
    """What a capture writes of a frame, besides guards.

    Attributes:
        sources: the inputs of the graph.
        drawn: the instructions before the graph.
        position: that of the instructions which call the graph.
        rerun: the plan for a graph that raises.
        calls: how many calls the graph has.
        outputs: how many outputs it has.
        body: the instructions after the graph.
        names: the further local variables.
    """

    sources: Sequence[Source]
    drawn: Sequence[Instruction]
    position: Any
    rerun: Rerun
    calls: int
    outputs: int
    body: Sequence[Instruction] = ()
    names: Sequence[str] = ()


def frame_keeper(
    region: Region, policy: Policy, view: FrameView, report: FrameReport | None
) -> FrameKeeper | None:
    """The keeper of a frame; None if frames are not kept here, or somebody watches the capture."""
    frames = getattr(policy.backend, "frames", None)
    if (
        frames is None
        or report is not None
        or policy.on_capture is not None
        or id(view.code) not in policy.roots
        or id(view.code) in origins.by_code
        or FUNCTIONS.has_overrides
        or _is_surrounded()
        or patches() is not None
    ):
        return None
    contents = Contents()
    number = len(region.entries(view.code))
    try:
        slot = frames(_names(policy, view, contents, number))
    except Exception as error:  # descriptions read objects of the program
        _report(view, error)
        return None
    return None if slot is None else FrameKeeper(slot, policy, view, contents, number)


def _report(view: FrameView, error: Exception) -> None:
    """A defect here costs a capture, never the call."""
    if is_of_handler(error):
        raise error
    log.warning("%s is not kept: %s: %s", where(view.code), type(error).__name__, error)


def _is_surrounded() -> bool:
    """Whether modes or hooks are active that capture looks at."""
    hooks = _C._autograd._top_saved_tensors_default_hooks(False)
    return bool(_C._len_torch_function_stack()) or hooks is not None


def _names(policy: Policy, view: FrameView, contents: Contents, number: int) -> dict[str, str]:
    """What names a frame: its code, its arguments, the options of its capture, and what earlier
    captures left, of which there are ``number``.
    """
    learned = (view.code in codes for codes in (policy.exact, policy.careful, policy.flat))
    options = (policy.fullgraph, policy.dynamic, policy.on_error, policy.symbolic_floats)
    held = [value for value in view.locals if value is not NULL]
    cells = [_held_by(cell) for cell in view.closure or ()]
    return {
        "function": contents.of_code(view.code),
        "arguments": describe_arguments([*held, *cells], contents),
        "options": repr((*options, policy.host_effects, *asdict(config).items())),
        "state": repr(GlobalState.now()),
        "history": repr((number, policy.seen.get(view.code, Seen()), *learned)),
    }


def _held_by(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


@dataclass(slots=True)
class FrameKeeper:
    """Looks one frame up, and keeps it."""

    slot: FrameSlot
    policy: Policy
    view: FrameView
    contents: Contents
    number: int
    is_open: bool = True
    parts: FrameParts | None = field(default=None)

    def find(self) -> Entry | None:
        """The entry of the frame; None if it has to be captured."""
        stored = self.slot.get()
        if stored is None:
            return self._find_held()
        try:
            return self._revived(stored)
        except Changed as changed:
            log.info("%s is captured again: %s", where(self.view.code), changed)
            return self._find_held(stored)

    def _find_held(self, known: Json = None) -> Entry | None:
        """The entry that another process makes meanwhile; else this one may make it."""
        if not self.slot.hold():
            return None
        stored = self.slot.get()
        if stored is None or stored == known:
            return None
        try:
            return self._revived(stored)
        except Changed as changed:
            log.info("%s is captured again: %s", where(self.view.code), changed)
            return None

    def _revived(self, stored: Json) -> Entry | None:
        if (stored.get("form"), stored.get("version")) != (FORM, VERSION):
            raise Changed("the form of kept frames")
        if "refused" in stored:
            TableReader(stored["table"], self.contents)
            self.is_open = False
            return None
        try:
            return _Revival(self, stored).entry()
        except Changed:
            raise
        except Exception as error:
            if is_of_handler(error):
                raise
            raise Changed(f"{type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Lets other processes go on."""
        self.slot.close()

    # -- keeping -----------------------------------------------------------------------------------

    def refuse(self, ctx: Context, reason: str) -> None:
        """Notes that the frame can't be kept."""
        if not self.is_open:
            return
        self.is_open = False
        log.info("%s is not kept: %s", where(self.view.code), reason)
        writer = TableWriter(self.contents)
        for code, module in ctx.evaluated.codes.values():
            name, found = _named_function(code, module)
            if found is not None:
                writer.names.named[name] = found
        try:
            self._put({"refused": reason}, writer)
        except Exception as error:
            _report(self.view, error)
        self.slot.close()

    def keep(self, ctx: Context, records: Sequence[GuardRecord], shapes: ShapeGuards) -> None:
        """Keeps the frame, if that is possible."""
        if not self.is_open or self.parts is None:
            return
        try:
            frame, writer = self._written(ctx, self.parts, records, shapes)
            self.is_open = False
            self._put(frame, writer)
        except (_NotKept, Unwritable, UnicodeError) as error:
            self.refuse(ctx, str(error))
        except Exception as error:
            self.is_open = False
            _report(self.view, error)
        self.slot.close()

    def _put(self, frame: dict[str, Json], writer: TableWriter) -> None:
        head = {"form": FORM, "version": VERSION, "where": self.view.code.co_qualname}
        self.slot.put({**head, **frame, "table": writer.to_json()})

    def _written(
        self,
        ctx: Context,
        parts: FrameParts,
        records: Sequence[GuardRecord],
        shapes: ShapeGuards,
    ) -> tuple[dict[str, Json], TableWriter]:
        if ctx.evaluated.varies:
            raise _NotKept(ctx.evaluated.varies[0])
        if parts.rerun.drawn_from or ctx.made:
            raise _NotKept("a generator of random numbers, or a class made by the frame")
        writer = TableWriter(self.contents)
        frame = {
            "function": self.contents.of_code(self.view.code),
            "records": [writer.record(record) for record in records],
            "shapes": writer.shapes(shapes),
            "seen": self.policy.seen[self.view.code].to_json(),
            "inputs": [writer.source(source) for source in parts.sources],
            "drawn": writer.instructions(parts.drawn),
            "body": writer.instructions(parts.body),
            "position": parts.position,
            "names": [*parts.names],
            "rerun": _rerun_json(parts.rerun, writer),
            "calls": parts.calls,
            "outputs": parts.outputs,
        }
        self._require_codes(ctx, writer)
        return frame, writer

    def _require_codes(self, ctx: Context, writer: TableWriter) -> None:
        """Sees to it that all code which was evaluated is checked."""
        for value in writer.names.named.values():
            self.contents.of(value)
        for code, module in ctx.evaluated.codes.values():
            if id(code) in self.contents.codes or is_own_file(code.co_filename):
                continue
            name, found = _named_function(code, module)
            if found is None:
                raise _NotKept(f"the code of {code.co_qualname} has no name")
            writer.names.named[name] = found
            self.contents.of(found)


def _named_function(code: CodeType, module: str) -> tuple[str, FunctionType | None]:
    name = f"{module}:{code.co_qualname}"
    found = find_named(name)
    is_it = found is not MISSING and type(found) is FunctionType and found.__code__ is code
    return name, found if is_it else None


_PLAIN_RERUN = (
    *("sound", "grad", "handled", "custom", "on_error", "modes", "contents", "visible", "whole"),
)


def _rerun_json(rerun: Rerun, writer: TableWriter) -> Json:
    given = {name: getattr(rerun, name) for name in _PLAIN_RERUN}
    written = [writer.source(source) for source in rerun.written]
    return {**given, "generators": [*rerun.generators], "written": written}


class _Revival:
    """Makes the entry of a stored frame. Raises ``Changed`` where it isn't for this call."""

    def __init__(self, keeper: FrameKeeper, stored: Mapping[str, Json]) -> None:
        self.keeper = keeper
        self.stored = stored
        self.view = keeper.view
        self.frame = FrameCode(keeper.view)
        self.scope: Scope = self.frame.scope()

    def entry(self) -> Entry:
        """The entry, checked on the call."""
        stored, view = self.stored, self.view
        if stored["function"] != self.keeper.contents.of_code(view.code):
            raise Changed("the code of the function")
        reader = TableReader(stored["table"], self.keeper.contents)
        records = reader.records(stored["records"], self.scope, GlobalState.now())
        sources = [reader.sources[number] for number in stored["inputs"]]
        loads = input_loader(sources, view.code, self.scope)
        shapes = reader.shapes(stored["shapes"])
        guard = compile_guards(records, shapes, view.code, self.scope, loads)
        self._check(guard, records, shapes)
        code = self._code(reader, sources, loads)
        self._note(records, shapes)
        return Entry(guard, code, True)

    def _note(self, records: Sequence[GuardRecord], shapes: ShapeGuards) -> None:
        """Notes the entry as a capture does."""
        policy, code = self.keeper.policy, self.view.code
        if self.keeper.number:
            counters["recompiles"] += 1
            if logs_recompiles():
                log_recompile(code, reason(policy, code, self.scope, GlobalState.now()))
        log_guards(code, records, shapes)
        policy.captured.setdefault(code, []).append((tuple(records), shapes))
        policy.seen[code] = Seen.from_json(self.stored["seen"])
        counters.update(graphs=1, kept_frames=1, captured_calls=self.stored["calls"])

    def _check(
        self, guard: GuardProgram, records: Sequence[GuardRecord], shapes: ShapeGuards
    ) -> None:
        arguments = tuple(value for value in self.view.locals if value is not NULL)
        if not guard.check(self.view.function, arguments):
            raise Changed(explain_failure(records, shapes, self.scope) or "a guard")

    def _code(
        self, reader: TableReader, sources: Sequence[Source], loads: Loads | None
    ) -> CodeType:
        stored, policy = self.stored, self.keeper.policy
        revived = self.keeper.slot.revive(stored)
        if revived is None:
            raise Changed("what the backend made of the graph")
        call, captured = revived
        kept = Kept(where(self.view.code), captured, None, 0.0)
        policy.kept.append(kept)
        compiled = checked(call, policy.backend_name, stored["outputs"])
        plain = getattr(policy.backend, "plain", None)
        graph = CompiledGraph(compiled, captured, (kept,), plain)
        rerun = self._rerun(reader, graph)
        code = decoded(self.view.code).neutral
        position = tuple(stored["position"])
        drawn = reader.instructions(stored["drawn"])
        called = graph_call(code, position, drawn, compiled, sources, loads, rerun)  # type: ignore[arg-type]
        body = [*called, *reader.instructions(stored["body"])]
        return encode(replacement(without_entry_handler(code), body, stored["names"]))

    def _rerun(self, reader: TableReader, graph: CompiledGraph) -> Rerun:
        stored = self.stored["rerun"]
        return Rerun(
            self.frame.flat_code(),
            **{name: stored[name] for name in _PLAIN_RERUN},
            generators=tuple(stored["generators"]),
            written=tuple(reader.sources[number] for number in stored["written"]),
            graph=graph,
        )
