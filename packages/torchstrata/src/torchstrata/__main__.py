"""``python -m torchstrata``: ``doctor`` says what this machine can compile, ``backends`` which code
generators, graph backends, passes and decompositions there are, ``report DIR`` makes a page of a
trace, ``explain DIR`` says in the terminal what a trace or dump has, and ``cache`` what is kept
between processes; ``compile`` and ``inspect`` write and show files of compiled programs; ``help
ID`` shows the page of an error. ``bisect`` finds what makes a compiled program wrong, and
``replay`` runs what it found.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import platform
import sys
from collections.abc import Callable

import inductor_cpp
import loopir
import torch
from bytecode_dynamo.backends import GROUPS as BACKEND_GROUPS

from . import cache_commands, error_pages
from .api import list_code_generators
from .artifacts import commands as artifact_commands
from .backends import list_backends
from .bisect import commands as bisect_commands
from .extensions import DECOMPOSITIONS
from .report import commands as report_commands

KIT = ".kit"
"""The suffix of what the conformance kit said, in the store."""
_VARIABLES = (
    "STRATA_BISECT",
    "STRATA_CACHE_DIR",
    "STRATA_CPU_ISA",
    "STRATA_CXX",
    "STRATA_DUMP",
    "STRATA_LOG",
    "STRATA_LOG_FORMAT",
    "STRATA_OPTIONS",
    "STRATA_TRACE",
    "STRATA_TRACE_PROFILE",
    "STRATA_VERIFY",
)


def doctor() -> dict[str, str]:
    """What a compilation here would use; ``problem`` and ``unknown`` only if something is wrong."""
    store = loopir.ArtifactStore()
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    report = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        **inductor_cpp.doctor(),
        "gpus": ", ".join(gpus) or "none",
        "triton": "installed"
        if importlib.util.find_spec("triton")
        else "missing; needed for GPUs only",
        "cache": str(store.root),
    }
    try:
        store.check()
    except loopir.StoreError as error:
        report["problem"] = "; ".join(filter(None, (report.get("problem"), error.summary)))
    unknown = sorted(
        name for name in os.environ if name.startswith("STRATA_") and name not in _VARIABLES
    )
    if unknown:
        report["unknown"] = (
            f"{', '.join(unknown)}: nothing reads this; known are {', '.join(_VARIABLES)}"
        )
    return report


def backends(check: bool) -> list[str]:
    """A line for everything that can be chosen by name, and for registered code generators: name,
    kind, origin, state. The state of a generator is the conformance kit's last verdict here;
    ``check`` runs the kit.
    """
    store = loopir.ArtifactStore()
    rows = [
        (
            found.name,
            f"kernels for {found.device or '?'}",
            found.origin,
            _state(found, check, store),
        )
        for found in list_code_generators()
    ]
    offers = {offer.name: offer for group in BACKEND_GROUPS for offer in loopir.installed(group)}
    rows += [(name, "graphs", *_origin(offers.get(name))) for name in list_backends()]
    for group, kind in ((loopir.PASSES, "pass"), (DECOMPOSITIONS, "decompositions")):
        rows += [(offer.name, kind, *_origin(offer)) for offer in loopir.installed(group)]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    return [
        "  ".join([*(f"{text:<{width}}" for text, width in zip(row, widths)), row[3]]).rstrip()
        for row in rows
    ]


def _origin(offer: loopir.Installed | None) -> tuple[str, str]:
    if offer is None:
        return "", ""
    return offer.origin, f"can't be loaded: {offer.problem}" if offer.problem else ""


def _state(found: loopir.FoundGenerator, check: bool, store: loopir.ArtifactStore) -> str:
    if found.problem or found.factory is None:
        return f"can't be loaded: {found.problem}"
    try:
        versions = loopir.package_versions("loopir", found.factory.__module__)
    except (loopir.Undescribed, AttributeError):
        versions = None
    key = store.key("torchstrata.kit", found.name, found.origin, repr(versions))
    if not check:
        path = None if versions is None else store.get(key, KIT)
        return "" if path is None else path.read_text()
    verdict = _verdict(found.factory)
    if versions is not None:
        store.put(key, KIT, verdict.encode())
    return verdict


def _verdict(factory: Callable[[], loopir.CodeGenerator]) -> str:
    try:
        kit = importlib.import_module("loopir.testing.conformance")  # needs the extra "testing"
        report = kit.check_code_generator(factory(), strict=False)
    except loopir.BuildError as error:
        return f"can't build here: {str(error).strip().splitlines()[0]}"
    except Exception as error:
        return f"does not conform: {str(error).strip().splitlines()[0]}"
    verdict = "does not conform" if report.failures else "conforms"
    refused = f", {report.refused} refused" if report.refused else ""
    return f"{verdict}: {report.passed} of {report.cases} {report.unit}{refused}"


def main(arguments: list[str] | None = None) -> int:
    """Exits with 1 where ``doctor`` finds a problem."""
    parser = argparse.ArgumentParser(prog="python -m torchstrata", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser(
        "doctor", help="compiler, instruction set, threads, GPUs, variables of the environment"
    )
    commands.add_parser(
        "backends",
        help="code generators, graph backends, passes and decompositions, and where they come from",
    ).add_argument("--check", action="store_true", help="run the conformance kit of generators")
    error_pages.add_command(commands)
    report_commands.add_commands(commands)
    cache_commands.add_commands(commands)
    artifact_commands.add_commands(commands)
    bisect_commands.add_commands(commands)
    chosen = parser.parse_args(arguments)
    if chosen.command in ("compile", "inspect"):
        return artifact_commands.run(chosen)
    if chosen.command in ("bisect", "replay"):
        return bisect_commands.run(chosen)
    if chosen.command == "cache":
        return cache_commands.run(chosen)
    if chosen.command == "help":
        return error_pages.run(chosen)
    if chosen.command in ("report", "explain"):
        return report_commands.run(chosen)
    if chosen.command == "backends":
        print("\n".join(backends(chosen.check)))
        return 0
    report = doctor()
    width = max(map(len, report))
    print("\n".join(f"{name:<{width}}  {text}" for name, text in report.items()))
    return int("problem" in report)


if __name__ == "__main__":
    sys.exit(main())
