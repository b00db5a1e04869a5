"""The state of one frame's capture."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import sympy
import torch
from symshapes import ShapeEnv, SizeGuard, check

from bytecode_dynamo.config import Config
from bytecode_dynamo.errors import GraphBreak, UserError
from bytecode_dynamo.graph.builder import GraphBuilder, NestedGraph, is_in_place
from bytecode_dynamo.guards.records import Guards, ShapeGuards
from bytecode_dynamo.guards.source import Source, globals_source
from bytecode_dynamo.guards.tensor_source import StrideSource
from bytecode_dynamo.trace import format_places

from .dynamic_shapes import DynamicShapes
from .effects import Deferred, Effects, Identity
from .frame import Frame, GlobalNames, Snapshot, place_stack
from .modes import Modes
from .observed_mode import ObservedMode
from .tracker import VariableTracker


@dataclass(slots=True)
class Evaluated:
    """What an evaluation used, for other processes.

    Attributes:
        codes: by id the code of each function, with the name of its module.
        varies: what is another one in each process, such as the hash of a text.
    """

    codes: dict[int, tuple[CodeType, str]] = field(default_factory=dict)
    varies: list[str] = field(default_factory=list)


class Context:
    """One capture: graph, guards, effects, fake tensors, modes, and the frame being evaluated."""

    chooses = False
    """Whether graphs may compute with a copy of whichever tensor the data chooses."""
    unrolls = False
    """Whether loops that the frame enters in the middle go on in the graph."""
    nests = False
    """Whether a break inside inlined calls ends the graph there, not before the outermost."""
    resumes = False
    """Whether the frame is a resume function's, which may hold the last references to arguments."""
    inner_stop: Any = None
    """Where this evaluation has to break inside of calls."""

    def __init__(
        self,
        config: Config,
        names: GlobalNames,
        dynamic: DynamicShapes,
        *,
        host_effects: bool = True,
    ) -> None:
        self.config = config
        self.root_names = names
        self.other_names: dict[int, GlobalNames] = {}
        self.dynamic = dynamic
        self.host_effects = host_effects
        """Whether the graph may set random generators, settings, memory or hooks."""
        self.frame: Frame | None = None
        self.depth = self.instructions = 0
        self.effects = Effects()
        self.guards = Guards()
        self.env = ShapeEnv(
            allow_unbacked=config.capture_scalar_outputs,
            allow_unbacked_sizes=True,
            provenance=self.user_line,
        )
        self.mode = ObservedMode(self.env)
        self.graph = GraphBuilder(self.stack_trace)
        self.tensors: dict[int, Any] = {}
        self.examples: dict[int, torch.Tensor] = {}
        self.inputs: list[Source] = []
        self.identities: dict[int, Identity] = {}
        self.existing: dict[Source, Any] = {}
        """By their sources: objects whose trackers don't tell whether they are the same."""
        self.from_arrays: dict[int, Any] = {}
        """By the id of its fake: a tensor from ``torch.from_numpy``, in an array's memory."""
        self.symbol_sources: dict[sympy.Symbol, Source] = {}
        self.stride_guards: list[SizeGuard] = []
        self.constant_objects: dict[type, Any] = {}
        self.runs_once = False
        """Whether the graph sets generators, settings, memory or hooks, which can't be undone."""
        self.careful = False
        """Whether the graph must not have such effects."""
        self.written_in_classes: set[tuple[type, str]] = set()
        self.copied: dict[object, dict[object, VariableTracker]] = {}
        """By the memo of a ``copy.deepcopy``: the objects copied so far."""
        self.unrelated: set[tuple[type, type]] = set()
        """Classes that are not (yet) registered with an abstract class."""
        self.modes = Modes(self)
        self.deferred = Deferred(self.effects)
        self.made: dict[int, Any] = {}
        """By the id of its placeholder: a class that the frame creates."""
        self.abandoned: list[Any] = []
        """Generators that the program dropped since the last were closed."""
        self.evaluated = Evaluated()
        self.has_handlers = False
        """Whether a function that was evaluated may catch exceptions."""
        self.assumes = self.assumed = False
        """Whether graphs may assert facts about data, and whether this one does."""
        self.whole = self.reads_numbers = False
        """Whether the program asked for one graph; whether numbers read from inputs are guarded."""

    def close(self) -> None:
        """Release the frame's values; the shape environment lives on in the graph's metadata."""
        self.env.provenance = str
        self.frame = None
        self.graph.release_examples()
        self.examples.clear()
        self.existing.clear()
        self.tensors.clear()
        self.effects = Effects()
        self.deferred = Deferred(self.effects)

    def may_assume(self) -> bool:
        """Whether the graph may assert facts about its data: so far, everything can be undone if
        one is wrong.
        """
        plain = not isinstance(self.graph, NestedGraph) and not torch._C._len_torch_dispatch_stack()
        return self.assumes and plain and not self.runs_once

    def require_once(self, what: str) -> None:
        """Note an effect that can't be undone, or break the graph before it."""
        self.refuse_if_careful(what)
        self.runs_once = True

    def refuse_if_careful(self, what: str) -> None:
        """Break the graph before a lasting effect, if the frame was captured before."""
        if self.careful:
            raise GraphBreak(
                "BD020",
                f"{what}, in a frame whose effects are lost when an operator refuses its data",
            )

    # -- places ------------------------------------------------------------------------------------

    def stack_trace(self) -> str:
        """The user's lines, innermost last."""
        return format_places(place_stack(self.frame))

    def user_line(self) -> str:
        """The innermost user line, for guards on sizes."""
        lines = self.stack_trace().strip().splitlines()
        return " ".join(line.strip() for line in lines[-2:])

    def names_of(self, mapping: dict[str, Any]) -> GlobalNames:
        """The access to a function's globals."""
        if mapping is self.root_names.mapping:
            return self.root_names
        names = self.other_names.get(id(mapping))
        if names is None:
            builtins = mapping.get("__builtins__", self.root_names.builtins)
            builtins = builtins if isinstance(builtins, dict) else vars(builtins)
            names = GlobalNames(mapping, builtins, False, globals_source(mapping))
            self.other_names[id(mapping)] = names
        return names

    def count_instruction(self) -> None:
        """Stop unrolling endless loops."""
        check()
        self.instructions += 1
        if self.instructions > self.config.max_instructions:
            raise GraphBreak(
                "BD021", f"more than {self.config.max_instructions} instructions were evaluated"
            )

    # -- sizes -------------------------------------------------------------------------------------

    def bind_symbol(self, size: Any, source: Source, example: Any) -> None:
        """Record the source of a new size symbol."""
        symbol = size.node.expr
        self.symbol_sources[symbol] = source
        self.graph.add_symbol(symbol, source, size, example)

    def require_stride(self, source: Source, dim: int, stride: torch.SymInt) -> None:
        """Guard on a stride that is an expression of sizes or of other strides."""
        place = StrideSource(source, dim)
        if self.symbol_sources.get(stride.node.expr) != place:
            self.require_number(place, stride)

    def require_number(self, source: Source, value: torch.SymInt) -> None:
        """Guard on a size or stride that is an expression of other sizes."""
        symbol = sympy.Symbol(f"stride{len(self.stride_guards)}", integer=True)
        self.symbol_sources[symbol] = source
        self.stride_guards.append(SizeGuard(sympy.Eq(symbol, value.node.expr, evaluate=False)))

    def shape_guards(self) -> ShapeGuards:
        """All conditions on sizes."""
        guards = [*self.env.input_guards(), *self.env.guards, *self.stride_guards]
        used: set[Any] = set().union(*(guard.expr.free_symbols for guard in guards))
        symbols = {
            symbol: source for symbol, source in self.symbol_sources.items() if symbol in used
        }
        return ShapeGuards(symbols, guards)

    def check_marks(self) -> None:
        """Raise UserError if a dimension named by ``mark_dynamic`` was specialised."""
        for symbol, name in self.dynamic.marked.items():
            low, high = self.env.bounds(symbol)
            if low == high:
                lines = [
                    guard.provenance
                    for guard in self.env.guards
                    if symbol in guard.expr.free_symbols
                ]
                raise UserError(
                    f"mark_dynamic: {name} was marked dynamic, but the program works for {low} "
                    f"only. "
                    f"It was specialised by: {'; '.join(lines) or 'an equality with another size'}"
                )

    # -- snapshots ---------------------------------------------------------------------------------

    def snapshot(self, frame: Frame) -> tuple[Snapshot, Any]:
        """A snapshot of the state before the current instruction of the root frame."""
        return frame.snapshot(), (self.effects.mark(), self.graph.mark())

    def rollback(self, frame: Frame, point: tuple[Snapshot, Any]) -> bool:
        """Go back to a snapshot; True if metadata of fake tensors changed in place, which stays."""
        snapshot, (effects, graph) = point
        frame.restore(snapshot)
        self.frame = frame
        self.effects.rollback(effects)
        erased = self.graph.rollback(graph)
        self.modes.resync(self)
        return any(map(is_in_place, erased))
