"""Compiles sources to machine code with Triton, on any machine; the artifact store keeps the
results.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from loopir import ArtifactStore, BuildError, KernelSource

from inductor_triton.kernels.heuristics import MULTIPROCESSORS
from inductor_triton.kernels.library import for_capability
from inductor_triton.products.matmul import without_engine
from inductor_triton.spec import LaunchSpec, launch_spec
from inductor_triton.toolchain import execute_kernel, load_part, load_triton, triton_version

from .driver import MOST_EARLY
from .grid import program_counter
from .workers import run_all

ALIGNMENT = 16
FORMAT = "5"
SUFFIX = ".kernel"
MOST_PARSES = 5
EARLY = 90
"""The compute capability with launches that may begin before the one ahead of them has ended."""
WAIT, LET_BEGIN = "tl.extra.cuda.gdc_wait()", "tl.extra.cuda.gdc_launch_dependents()"


@dataclass(frozen=True, slots=True)
class Variant:
    """The assumptions of one compilation: whether indices have 64 bits, and which arguments (by
    position) are multiples of 16.
    """

    wide: bool
    divisible: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Binary:
    """The machine code of one variant and the facts that a launch needs.

    ``early``: it waits at its start for the launches ahead of it, so that it may be launched before
    they have ended.
    """

    name: str
    image: bytes
    shared: int
    num_warps: int
    scratch: int = 0
    ptx: str = ""
    early: bool = False


def argument_types(spec: LaunchSpec, wide: bool) -> dict[str, str]:
    """Triton's signature: the type of each run-time argument by parameter position."""
    types = [
        *spec.signature[: len(spec.signature) - spec.workspace],
        *(["i64" if wide else "i32"] * (len(spec.sizes) + len(spec.numbers))),
        *(["*i32"] if spec.errors else []),
    ]
    return {str(position): kind for position, kind in enumerate(types)}


def usual_variant(spec: LaunchSpec, sizes: Sequence[int] = ()) -> Variant:
    """The variant of an ordinary call: aligned tensors, small sizes, and the divisibility of
    ``sizes``.
    """
    known = [
        *(size % ALIGNMENT == 0 for size in sizes),
        *([False] * (len(spec.sizes) - len(sizes))),
    ]
    flags = [
        *([True] * len(spec.signature)),
        *known,
        *([False] * len(spec.numbers)),
        *([True] if spec.errors else []),
    ]
    return Variant(wide=spec.index == "int64", divisible=tuple(flags))


def example_variant(source: KernelSource) -> Variant:
    """The usual variant for the sizes of the example call."""
    hints = dict(source.kernel.hints)
    return usual_variant(launch_spec(source), [hints.get(size, 1) for size in source.kernel.sizes])


def compile_variant(source: KernelSource, variant: Variant, capability: int) -> Binary:
    """Compiles ``source`` for a compute capability (``90`` for sm_90). Raises :class:`BuildError`
    with the reason and the source.
    """
    triton = load_triton()
    spec = launch_spec(source)
    if spec.config.tma and not all(variant.divisible[: len(spec.signature)]):
        source = without_engine(source)
    compiler, target_type = load_part("compiler"), load_part("backends.compiler").GPUTarget
    language = load_part("language")
    try:
        text = for_capability(source.text, capability)
        beginning = _beginning(source, capability)
        text = _begun(text, spec.function, beginning)
        function: Any = execute_kernel(text, spec.function)
        types = list(argument_types(spec, variant.wide).values())
        signature = dict(zip(function.arg_names, types))
        constants: dict[str, object] = {}
        if spec.index == "dynamic":
            signature["INDEX"] = "constexpr"
            constants["INDEX"] = language.int64 if variant.wide else language.int32
        hints = [["tt.divisibility", ALIGNMENT]]
        divisible = [*variant.divisible]
        if spec.workspace:  # it follows all other arguments
            del divisible[len(spec.signature) - 1]
        attributes = {
            (position,): hints
            for position, flag in enumerate(divisible)
            if flag and position < len(signature)
        }
        compiled = _parsed_again(
            triton.compile,
            compiler.ASTSource(function, signature, constants, attributes),
            target=target_type("cuda", capability, 32),
            options={
                "num_warps": spec.config.num_warps,
                "num_stages": spec.config.num_stages,
                "sanitize_overflow": False,
            },
        )
    except Exception as error:
        command = f"triton.compile({source.kernel.name}, sm_{capability})"
        reason = f"{type(error).__name__}: {error}\n{source.text}"
        raise BuildError(
            f"Triton can't compile {source.kernel.name}", command=command, output=reason
        ) from error
    metadata = compiled.metadata
    scratch = 0 if spec.workspace else getattr(metadata, "global_scratch_size", 0) or 0
    ptx = compiled.asm["ptx"]
    return Binary(
        metadata.name,
        compiled.asm["cubin"],
        metadata.shared,
        metadata.num_warps,
        scratch,
        ptx,
        bool(beginning),
    )


def _beginning(source: KernelSource, capability: int) -> tuple[str, ...]:
    """What a source does before all else, by its sizes in the example, if its launches may begin
    early: it waits until the launches ahead have ended and what they wrote is visible. If it has
    few programs it then lets the next launch begin, which finds room beside them (PTX ISA,
    ``griddepcontrol``).
    """
    hints = dict(source.kernel.hints)
    sizes = [hints.get(size, 1) for size in source.kernel.sizes]
    programs = program_counter(launch_spec(source))(sizes)
    if capability < EARLY or programs > MOST_EARLY:
        return ()
    return (WAIT, LET_BEGIN) if programs <= MULTIPROCESSORS else (WAIT,)


def _begun(text: str, function: str, lines: Sequence[str]) -> str:
    """The text of a source whose function begins with ``lines``."""
    head = re.compile(rf"^def {function}\(.*\):\n", re.MULTILINE)
    added = "".join(f"    {line}\n" for line in lines)
    return head.sub(lambda found: found[0] + added, text)


def _parsed_again(compile: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """The result of ``compile``, which is called again if the parser fails: that of CPython 3.11
    counts the recursion of all threads together, and raises SystemError where they meet.
    """
    for _ in range(MOST_PARSES - 1):
        try:
            return compile(*args, **options)
        except SystemError:
            continue
    return compile(*args, **options)


def compile_ptx(source: KernelSource, capability: int = 90) -> str:
    """The PTX of ``source`` for ``sm_<capability>``; needs Triton but no GPU."""
    return compile_variant(source, example_variant(source), capability).ptx


def variant_key(
    store: ArtifactStore, source: KernelSource, variant: Variant, capability: int
) -> str:
    """The store's key of one compilation."""
    spec = launch_spec(source)
    parts = (
        repr(spec.config),
        repr(spec.signature),
        spec.index,
        repr(variant),
        f"sm_{capability}",
        *_beginning(source, capability),
        triton_version(),
    )
    return store.key("triton", FORMAT, _code(source), *parts)


def _code(source: KernelSource) -> str:
    """The source without comment lines, which say where it comes from, and with a fixed function
    name: kernels that only differ in those compile once.
    """
    lines = "\n".join(line for line in source.text.splitlines() if not line.startswith("#"))
    return lines.replace(f"def {launch_spec(source).function}(", "def kernel(")


def load_or_compile(
    source: KernelSource, variant: Variant, capability: int, store: ArtifactStore
) -> Binary:
    """The binary from ``store``; compiles and stores it on a miss."""
    return compile_all([(source, variant)], capability, store)[0]


def compile_all(
    requests: Sequence[tuple[KernelSource, Variant]], capability: int, store: ArtifactStore
) -> list[Binary]:
    """All binaries, in order: from ``store``, or compiled in parallel and stored."""
    keys = [variant_key(store, source, variant, capability) for source, variant in requests]
    wanted = dict(zip(keys, requests))
    found = _load_all(store, wanted)
    missing = wanted.keys() - found.keys()
    if missing:
        with store.hold(store.key("triton batch", *sorted(missing))) as has_waited:
            if has_waited:
                found |= _load_all(store, missing)
            left = {key: wanted[key] for key in wanted if key not in found}
            found |= _compile_missing(left, capability, store)
    return [found[key] for key in keys]


def _load_all(store: ArtifactStore, keys: Iterable[str]) -> dict[str, Binary]:
    loaded = {key: _load(store, key) for key in keys}
    return {key: binary for key, binary in loaded.items() if binary is not None}


def _compile_missing(
    missing: Mapping[str, tuple[KernelSource, Variant]], capability: int, store: ArtifactStore
) -> dict[str, Binary]:
    # the longest first: they determine the total time
    missing = dict(sorted(missing.items(), key=lambda item: -len(item[1][0].text)))
    tasks = [
        partial(compile_variant, source, variant, capability)
        for source, variant in missing.values()
    ]
    made = dict(zip(missing, run_all(tasks), strict=True))
    for key, binary in made.items():
        store.put(key, SUFFIX, _packed(binary))
    return made


def _packed(binary: Binary) -> bytes:
    """Packs a binary into one artifact. Kernels of one key differ in name; if two processes store
    theirs at the same time, one's metadata must not end up next to the other's machine code.
    """
    facts = {name: value for name, value in asdict(binary).items() if name not in ("image", "ptx")}
    return json.dumps(facts).encode() + b"\n" + binary.image


def _load(store: ArtifactStore, key: str) -> Binary | None:
    path = store.get(key, SUFFIX)
    if path is None:
        return None
    facts, _, image = path.read_bytes().partition(b"\n")
    return Binary(image=image, **json.loads(facts))
