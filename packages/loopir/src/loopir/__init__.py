"""Define-by-run loop IR: kernels, fusion, memory plan and host programs."""

from typing import TYPE_CHECKING

from symshapes.lazy import lazy_names

if TYPE_CHECKING:
    from symshapes import Interval, ParseError, VersionError, bound
    from symshapes.choices import choose, decide
    from symshapes.choices import current as current_choices
    from symshapes.choices import using as using_choices
    from symshapes.decisions import may

    from loopir.cache.bundle import export_bundle, import_bundle
    from loopir.cache.cache_key import (
        Undescribed,
        describe,
        describe_constants,
        describe_generators,
        describe_graph,
        devices_of,
        environment_of,
        package_versions,
        process_state,
    )
    from loopir.cache.exclusive import exclusive
    from loopir.cache.last_miss import explain_last_miss, explain_miss, note_miss
    from loopir.cache.optional_file import optional_files
    from loopir.cache.program_cache import ProgramCacheEntry, constants_of
    from loopir.cache.store import ArtifactStore, temporary_root
    from loopir.cache.stored_program import StoredProgram
    from loopir.host.host_builder import build_host, generate
    from loopir.host.host_program import HostProgram, HostText, direct
    from loopir.host.launched import check_launches
    from loopir.host.shared_device import share_devices
    from loopir.host.summary import BufferSummary, CallSummary, ProgramSummary, summarize
    from loopir.ir.body import OpsHandler, Recorder, replay
    from loopir.ir.evaluate import evaluate_kernel
    from loopir.ir.evaluate_program import evaluate_launch, evaluate_program
    from loopir.ir.expr import FloorDiv, Mod, example_value, format_expr, parse_expr, symbol
    from loopir.ir.instruction_rules import (
        Call,
        Rule,
        apply_rules,
        call,
        matches,
        parse_pattern,
        remove_dead,
        rule,
        with_blocks,
        write_call,
    )
    from loopir.ir.kernel import (
        Body,
        Instruction,
        Kernel,
        KernelBuffer,
        Operand,
        Range,
        Value,
        accessed,
        definitions,
        map_steps,
        steps_of,
    )
    from loopir.ir.nest import map_leaves
    from loopir.ir.node import LoweredGraph, Symbolic, View
    from loopir.ir.ops import OPS, REDUCTIONS, Domain, DtypeRule, OpSpec
    from loopir.ir.parse import parse_kernel, parse_kernels
    from loopir.ir.program import (
        Decision,
        ExternCall,
        Launch,
        Program,
        check_program,
    )
    from loopir.ir.program_reader import parse_program
    from loopir.ir.program_text import format_program, format_schedule
    from loopir.ir.simplify import ceil_div, flat_position, points_of, product
    from loopir.ir.template import (
        Stage,
        Template,
        evaluate_template,
        format_any,
        format_template,
        kernel_label,
        kernels_of,
    )
    from loopir.ir.text import format_kernel
    from loopir.ir.verify import check_kernel

    from .backend import (
        Attention,
        CodeGenerator,
        Contraction,
        KernelSource,
        LaunchesParts,
        LinksRuns,
        Offer,
        OffersAttention,
        OffersContractions,
        OffersTemplates,
        Packed,
        Place,
        PointwiseStep,
        PreparesOperators,
        Reproducible,
        Run,
        RunCall,
        SelectsKernels,
        StoresLaunchers,
        TensorInput,
    )
    from .compile import STAGES, Pipeline, PipelineStage, compile_graph, run_stages
    from .element_functions import ElementFunction, lower_functions
    from .entry_points import Installed, find_installed, installed
    from .errors import (
        BuildError,
        ExtensionError,
        ExternError,
        GeneratorError,
        GeneratorWarning,
        LoopIRError,
        LoweringError,
        ScheduleError,
        SettingError,
        StoreError,
        StoreWarning,
        ToolError,
        UnsupportedKernelError,
        VerificationError,
    )
    from .lowering import LoweringTable, lower
    from .lowering.evaluate import evaluate_lowered
    from .options import Options
    from .passes import PASSES, GraphPass, find_passes, keys_of
    from .patterns import freeze, lay_out_images, rewrite_patterns
    from .registry import (
        FoundGenerator,
        code_generators,
        installed_code_generators,
        register_code_generator,
        registered_code_generators,
        unregister_code_generator,
    )
    from .schedule import schedule
    from .source_line import user_line

__version__ = "0.2.0"

__all__ = [
    "OPS", "PASSES", "REDUCTIONS", "STAGES", "ArtifactStore", "Attention", "Body", "BufferSummary",
    "BuildError", "Call", "CallSummary",
    "CodeGenerator", "Contraction", "Decision", "Domain", "DtypeRule", "ElementFunction",
    "ExtensionError",
    "ExternCall",
    "ExternError", "FloorDiv", "FoundGenerator", "GeneratorError", "GeneratorWarning",
    "GraphPass", "HostProgram", "HostText", "Installed", "Instruction", "Interval", "Kernel",
    "KernelBuffer", "KernelSource", "Launch", "LaunchesParts", "LinksRuns",
    "LoopIRError", "LoweredGraph",
    "LoweringError", "LoweringTable", "Mod", "Offer", "OffersAttention", "OffersContractions",
    "OffersTemplates", "OpSpec", "Operand", "OpsHandler", "Options", "Packed", "ParseError",
    "Pipeline",
    "PipelineStage", "Place", "PointwiseStep", "PreparesOperators", "Program",
    "ProgramCacheEntry", "ProgramSummary", "Range",
    "Recorder", "Reproducible", "Rule", "Run", "RunCall", "ScheduleError", "SelectsKernels",
    "SettingError", "Stage", "StoreError", "StoreWarning", "StoredProgram", "StoresLaunchers",
    "Symbolic", "Template", "TensorInput", "ToolError", "Undescribed", "UnsupportedKernelError",
    "Value", "VerificationError", "VersionError", "View", "accessed", "apply_rules", "bound",
    "build_host", "call",
    "ceil_div", "check_kernel", "check_launches", "check_program", "choose", "code_generators",
    "compile_graph", "constants_of", "current_choices", "decide", "definitions",
    "describe", "describe_constants",
    "describe_generators", "describe_graph", "devices_of", "direct", "environment_of",
    "evaluate_kernel", "evaluate_launch", "evaluate_lowered", "evaluate_program",
    "evaluate_template",
    "example_value", "exclusive", "explain_last_miss",
    "explain_miss",
    "export_bundle",
    "find_installed",
    "find_passes", "flat_position", "format_any", "format_expr", "format_kernel",
    "format_program", "format_schedule", "format_template", "freeze", "generate", "import_bundle",
    "installed",
    "installed_code_generators", "kernel_label", "kernels_of", "keys_of", "lay_out_images",
    "lazy_names", "lower",
    "lower_functions",
    "map_leaves", "map_steps", "matches", "may", "note_miss", "optional_files", "package_versions",
    "parse_expr",
    "parse_kernel", "parse_kernels", "parse_pattern", "parse_program", "points_of",
    "process_state", "product",
    "register_code_generator", "registered_code_generators", "remove_dead", "replay",
    "rewrite_patterns", "rule", "run_stages", "schedule", "share_devices", "steps_of", "summarize",
    "symbol",
    "temporary_root", "unregister_code_generator", "user_line", "using_choices",
    "with_blocks", "write_call",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__)
