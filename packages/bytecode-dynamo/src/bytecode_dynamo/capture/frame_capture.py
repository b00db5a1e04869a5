"""One frame from bytecode to a cache entry: evaluate, call the backend, write the new code."""

from __future__ import annotations

import time
from dataclasses import replace
from types import CodeType
from typing import Any

import torch
from symshapes import quiet
from torch.fx import GraphModule

from bytecode_dynamo.builtins.python_random import draws
from bytecode_dynamo.bytecode import (
    Analysis,
    Instruction,
    UnsupportedCode,
    encode,
    replacement,
)
from bytecode_dynamo.config import config
from bytecode_dynamo.counters import counters
from bytecode_dynamo.errors import (
    BackendCompilerFailed,
    BreakRecord,
    GraphBreak,
    InvariantError,
    LosesEffects,
    RecompileError,
    Retry,
    UnbuildableCallees,
    UnsoundAssumption,
    Unsupported,
    UserError,
)
from bytecode_dynamo.graph.precision import has_float32_products
from bytecode_dynamo.graph.verify import check_captured
from bytecode_dynamo.guards.compiler import Loads
from bytecode_dynamo.guards.global_state import GlobalState, state_masks
from bytecode_dynamo.guards.guards import compile_guards
from bytecode_dynamo.hook.compiling import compiling
from bytecode_dynamo.hook.frame_hook import (
    SKIP,
    Entry,
    FrameView,
    Region,
)
from bytecode_dynamo.hook.origins import without_entry_handler
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.dynamic_shapes import DynamicShapes, Seen
from bytecode_dynamo.state.frame import GlobalNames, place_stack
from bytecode_dynamo.state.protocol import wrap_value
from bytecode_dynamo.state.requirements import require_distinct
from bytecode_dynamo.tracing import calls  # noqa: F401 (implements the protocol)
from bytecode_dynamo.tracing.evaluator import Broken, Restart, Returned, run_root
from bytecode_dynamo.tracing.function_modes import (
    hidden_from,
    mode_source,
    modes_around,
    restack,
    within,
    without,
    without_saved_tensors_hooks,
)
from bytecode_dynamo.variables.chosen import shows_copies
from bytecode_dynamo.variables.existing_iterators import breaks_each_round
from bytecode_dynamo.variables.generator import require_none_started

from . import reports
from .backend_call import call_backend
from .eager_frames import (
    failed,
    has_tensors,
    unsuitable,
)
from .exit_code import ExitCode
from .failing_graphs import CompiledGraph
from .frame_code import FrameCode
from .graph_code import graph_call, input_loader
from .kept_frames import FrameKeeper, FrameParts
from .log import log_break, log_guards, log_recompile, logs_recompiles
from .nested_breaks import push_call, release_locals
from .observing import FrameReport
from .policy import Captured, Kept, Policy
from .recompilation import UNKNOWN, reason
from .rerun_plan import plan_rerun
from .roots import MODULE_CALLS, is_whole

MOST_UNROLLED = 3
"""The most graphs of one code that may depend on where the iterator of its loop stands."""


def capture_frame(
    region: Region,
    policy: Policy,
    view: FrameView,
    report: FrameReport | None,
    keeper: FrameKeeper | None,
) -> Any:
    """Captures a frame: a cache entry, or what else to do with it."""
    compilation = None
    try:
        compilation = Compilation(region, policy, view, report, keeper)
        with without(compilation.function_modes):
            return compilation.run()
    except (BackendCompilerFailed, UnsoundAssumption, LosesEffects, UnbuildableCallees) as error:
        if compilation is None or not compilation.retreats(error):
            raise
    except (Unsupported, RecompileError, UserError):
        raise
    except Exception as error:
        return failed(policy, view.code, error)
    finally:
        if compilation is not None:
            compilation.ctx.close()
    return capture_frame(region, policy, view, report, keeper)


class Compilation:
    """The capture of one frame."""

    def __init__(
        self,
        region: Region,
        policy: Policy,
        view: FrameView,
        report: FrameReport | None,
        keeper: FrameKeeper | None,
    ) -> None:
        self.region = region
        self.keeper = keeper
        self.report = report
        self.policy = policy
        self.view = view
        self.started = time.perf_counter()
        with without(modes_around()):
            state_masks()  # the first call probes torch's state
        self.function_modes = modes_around()
        self.state = GlobalState.now()
        self.frame = FrameCode(view)
        self.unrolls = len(region.entries(view.code)) < MOST_UNROLLED
        self.ctx = self._context()
        self.scope = self.frame.scope()
        self.reason: str | None = None
        is_shown = region.entries(view.code) and (report or logs_recompiles())
        if is_shown or policy.on_capture is not None:
            # before the capture, which may fill caches; reading guards may run the program's code
            self.reason = reason(policy, view.code, self.scope, self.state)
        if report is not None:
            report.recompiled = self.reason
        self.loads: Loads | None = None

    # -- evaluation --------------------------------------------------------------------------------

    def run(self) -> Any:
        """Evaluate, then compile what was captured."""
        try:
            with compiling(), quiet, without_saved_tensors_hooks():
                outcome = self._evaluate_twice()
            self.ctx.check_marks()
        except UnsupportedCode as error:
            if self._is_whole():
                raise Unsupported(unsuitable(self.view.code, "BD006", str(error))) from None
            return SKIP
        except GraphBreak as error:
            # raised while closing a generator that the frame's code can no longer close
            return self._unbuildable(error)
        finally:
            self.ctx.modes.restore()
        try:
            if isinstance(outcome, Broken):
                self._not_kept("a graph break")
                return self._finish_broken(outcome)
            if not self.ctx.graph.calls:
                self._not_kept("no graph")
                return self._nothing_captured(outcome)
            return self._kept(self._entry(self._returning(outcome), True))
        except GraphBreak as error:
            if isinstance(outcome, Broken) and outcome.callees:
                raise UnbuildableCallees from None
            return self._unbuildable(error)

    def retreats(self, error: Exception) -> bool:
        """Whether to capture again without the feature that led to an error."""
        policy = self.policy
        learned: dict[type[Exception], set[CodeType]] = {
            UnsoundAssumption: policy.exact,
            LosesEffects: policy.careful,
            UnbuildableCallees: policy.flat,
        }
        if type(error) in learned:
            learned[type(error)].add(self.view.code)
            return True
        if not any(
            isinstance(item.example, (float, torch.Generator))
            for item in self.ctx.graph.inputs.values()
        ):
            return False
        # the backend does not support them: capture a graph per value, or break
        policy.symbolic_floats = policy.host_effects = False
        counters["graphs"] -= 1
        return True

    def _evaluate_twice(self) -> Returned | Broken:
        """Evaluate the frame; again with a known end if a rollback was incomplete, an object was
        completed, or a loop breaks in each round.
        """
        stop: Restart | None = None
        while True:
            try:
                outcome = self._evaluate(stop)
                if not isinstance(outcome, Broken) or not breaks_each_round(
                    self.ctx, outcome.snapshot.stack
                ):
                    return outcome
                stop, self.unrolls = None, False
            except (Restart, Retry) as again:
                stop = again if isinstance(again, Restart) else None
            self.ctx.modes.restore()
            self.ctx.close()
            self.ctx = self._context()

    def _context(self) -> Context:
        names = GlobalNames(self.view.globals, self.view.builtins, True)
        seen = self.policy.seen.setdefault(self.view.code, Seen())
        dynamic = DynamicShapes(self.policy.dynamic, seen, self.policy.symbolic_floats)
        settings = replace(
            config, capture_scalar_outputs=config.capture_scalar_outputs or self.policy.fullgraph
        )
        ctx = Context(settings, names, dynamic, host_effects=self.policy.host_effects)
        ctx.assumes = self.policy.host_effects and self.view.code not in self.policy.exact
        ctx.unrolls, ctx.chooses = self.unrolls, self.view.code not in self.policy.exact
        ctx.reads_numbers = not config.capture_scalar_outputs
        ctx.whole, ctx.resumes, ctx.careful = (
            self._is_whole(),
            self.frame.origin is not None,
            self.view.code in self.policy.careful,
        )
        ctx.nests = self.view.code not in self.policy.flat | MODULE_CALLS
        ctx.modes.begin_in(
            ctx,
            [wrap_value(ctx, mode, mode_source(k)) for k, mode in enumerate(self.function_modes)],
        )
        return ctx

    def _evaluate(self, stop: Restart | None = None) -> Returned | Broken:
        frame = self.frame.begin(self.ctx)
        if self.report is None:
            with torch._C.DisableTorchFunctionSubclass():
                return run_root(self.ctx, frame, stop)
        with torch._C.DisableTorchFunctionSubclass(), self.report.evaluation(self.ctx, frame):
            return run_root(self.ctx, frame, stop)

    # -- outcomes ----------------------------------------------------------------------------------

    def _nothing_captured(self, outcome: Returned) -> Any:
        """The entry of a frame without torch calls.

        The original code runs where its result can't be built, with guards if tensors are among the
        arguments.
        """
        if not self.ctx.graph.inputs and id(self.view.code) not in self.policy.roots:
            return SKIP
        try:  # unlike the original's, its callees are not captured again
            code = self._returning(outcome)
        except GraphBreak as error:
            if self._is_whole():
                return self._unbuildable(error)
            self._report(None, None)
            return self._entry(self.view.code, False)
        return self._entry(code, False)

    def _returning(self, outcome: Returned) -> CodeType:
        """Code that calls the graph, applies the effects and returns the result.

        Raises GraphBreak for values that can't be built.
        """
        code = self.frame.decoded.neutral
        gen = self._exit_code(code.position_at(outcome.index))
        writers = gen.prepare_effects()
        gen(outcome.value)
        gen.flush()
        writers.append(restack(gen, self.ctx))
        gen.write_cells()
        gen.flush()
        for write in writers:
            write()
        gen.emitter.return_value()
        body = [*self._graph(gen, None), *gen.instructions()]
        if self.keeper is not None and self.keeper.parts is not None:
            self.keeper.parts.body, self.keeper.parts.names = gen.instructions(), gen.locals
        return encode(replacement(without_entry_handler(code), body, gen.locals))

    def _exit_code(self, position: Any) -> ExitCode:
        gen = ExitCode(self.ctx, self.frame.decoded.neutral)
        gen.emitter.position = position
        require_none_started(self.ctx)
        gen.load_owners()
        gen.enter_contexts()
        return gen

    def _finish_broken(self, outcome: Broken) -> Any:
        error, user_exception = outcome.error, outcome.error.id == "BD008"
        if (self._is_whole() or error.strict) and not user_exception:
            raise Unsupported(error.record()) from None
        if self._pointless():
            return self._skip()
        if (index := self.frame.original_index(outcome.snapshot.index)) is None:
            return self._unbuildable(error)
        analysis = Analysis(self.frame.original.neutral)
        gen = self._exit_code(self.frame.original.neutral.position_at(index))
        writers = gen.prepare_effects()
        for value in outcome.snapshot.stack:
            gen(value)
        if outcome.callees:
            push_call(gen, self.region, outcome.callees)
        writers.append(restack(gen, self.ctx))
        stores = gen.restore_locals(self.frame, outcome.snapshot.slots, analysis, index)
        gen.flush()
        gen.write_cells()
        gen.flush()
        for store in stores:
            store()
        for write in writers:
            write()
        if outcome.callees:
            release_locals(gen)
        prefix = [*self._graph(gen, error.record()), *gen.instructions()]
        if not user_exception:
            counters["graph_breaks"] += 1
            log_break("graph break", error.record())
        code = self.frame.first_half(
            index,
            prefix,
            analysis,
            gen.locals,
            self.policy.roots,
            calls=bool(outcome.callees),
        )
        self._note("captured" if user_exception else "broke", error.record())
        return self._entry(code, True)

    def _is_whole(self) -> bool:
        """Whether a break is an error. Frames called natively run eagerly after the program's own
        exception.
        """
        return is_whole(self.policy, self.view, self.frame.original.native)

    def _pointless(self) -> bool:
        """Whether splitting the frame would only cost time: a helper without tensors, or a module's
        call of its forward.
        """
        if self.ctx.graph.calls:
            return False
        if self.view.code in MODULE_CALLS:
            return True
        return (
            not self.ctx.graph.inputs
            and id(self.view.code) not in self.policy.roots
            and not has_tensors(self.view)
        )

    def _skip(self) -> Any:
        # every function between a module's call and its ``forward`` would break alike
        if self.view.code in MODULE_CALLS:
            for code in MODULE_CALLS:
                self.region.skip(code)
        return SKIP

    def _unbuildable(self, error: GraphBreak) -> Any:
        error.stack = error.stack or place_stack(self.ctx.frame)
        if self._is_whole():
            raise Unsupported(error.record()) from None
        counters["graph_breaks"] += 1
        log_break("frame runs in eager mode", error.record())
        self._note("skipped", error.record())
        self._report(None, error.record())
        return SKIP

    # -- graph -------------------------------------------------------------------------------------

    def _graph(self, gen: ExitCode, stop: BreakRecord | None) -> list[Instruction]:
        """Compile the graph; returns the instructions that draw and read for it, and call it."""
        ctx, drawn = self.ctx, [*draws(gen), *gen.read_numbers()]
        outputs = tuple(gen.outputs)
        if not ctx.graph.calls:
            if outputs:
                raise InvariantError("an empty graph has outputs")
            self._report(None, stop)
            return drawn
        if shows_copies(ctx, outputs):
            raise UnsoundAssumption
        ctx.modes.close_graph(ctx)
        module, inputs = ctx.graph.finish(outputs)
        if config.verify:
            check_captured(module)
        rerun = plan_rerun(ctx, self.frame.flat_code(), module, inputs, self.policy.on_error)
        counters.update(graphs=1, captured_calls=ctx.graph.calls)
        kept = self._report(module, stop)
        keeper, backend = self.keeper, self.policy.backend
        compiled = call_backend(
            backend if keeper is None or not keeper.is_open else keeper.slot.compile,
            self.policy.backend_name,
            module,
            [item.example for item in inputs],
        )
        plain = getattr(backend, "plain", None)
        rerun = replace(rerun, graph=CompiledGraph(compiled, lambda: module, kept, plain))
        ctx.graph.release_examples()
        sources = [item.source for item in inputs]
        with within(self.function_modes):
            self.loads = input_loader(sources, self.view.code, self.scope)
        compiled = hidden_from(self.function_modes, compiled)
        place = self.frame.decoded.neutral, gen.emitter.position
        if keeper is not None:
            counts = ctx.graph.calls, len(outputs)
            keeper.parts = FrameParts(sources, drawn, gen.emitter.position, rerun, *counts)
        return graph_call(*place, drawn, compiled, sources, self.loads, rerun)

    # -- entry -------------------------------------------------------------------------------------

    def _entry(self, code: CodeType, continues: bool) -> Entry:
        ctx = self.ctx
        require_distinct(ctx)
        ctx.guards.require_global_state(
            self.state if has_float32_products(ctx.graph.graph) else replace(self.state, tf32=None)
        )
        shapes = ctx.shape_guards()
        with within(self.function_modes):
            guard = compile_guards(ctx.guards, shapes, self.view.code, self.scope, self.loads)
        if self.region.entries(self.view.code):
            counters["recompiles"] += 1
            log_recompile(self.view.code, self.reason)
        log_guards(self.view.code, ctx.guards, shapes)
        self.policy.captured.setdefault(self.view.code, []).append((tuple(ctx.guards), shapes))
        entry = Entry(guard, code, continues)
        if self.report is not None:
            self.report.note_entry(entry, self.view, ctx.guards, shapes, self.scope)
        return entry

    def _not_kept(self, reason: str) -> None:
        if self.keeper is not None:
            self.keeper.refuse(self.ctx, reason)

    def _kept(self, entry: Entry) -> Entry:
        if self.keeper is not None:
            self.keeper.keep(self.ctx, tuple(self.ctx.guards), self.ctx.shape_guards())
        return entry

    def _note(self, outcome: str, stop: BreakRecord) -> None:
        if self.report is not None:
            self.report.outcome, self.report.stop = outcome, stop

    def _report(
        self, module: GraphModule | None, stop: BreakRecord | None
    ) -> tuple[Captured | Kept, ...]:
        code = self.view.code
        again = UNKNOWN if self.region.entries(code) else None
        seconds = time.perf_counter() - self.started
        kept = reports.keep(self.policy, code, module, stop, seconds, self.reason or again)
        if self.policy.on_capture is None:
            return (kept,)
        receive = self.policy.on_capture
        return kept, reports.hand_over(receive, self.ctx, code, module, kept, self.reason)
