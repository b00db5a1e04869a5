"""``python -m torchstrata cache``: what the cache holds, and how it travels."""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import loopir

from .refusals import refusals

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def add_commands(commands: argparse._SubParsersAction) -> None:
    """Adds ``cache`` with its own commands; each sets ``run``."""
    parser = commands.add_parser("cache", help="what the cache holds; export, import, prune, stats")
    parser.add_argument(
        "--dir", type=Path, metavar="DIR", help="the cache; else that of STRATA_CACHE_DIR"
    )
    kinds = parser.add_subparsers(dest="kind", required=True)

    def add(name: str, run: Callable[..., str], what: str) -> argparse.ArgumentParser:
        command = kinds.add_parser(name, help=what)
        command.set_defaults(run=run)
        return command

    add("stats", _stats, "number and bytes of what is kept, by kind")
    prune = add("prune", _prune, "remove what was used least recently")
    prune.add_argument("--limit", type=_bytes, required=True, metavar="SIZE", help="as 500M or 2G")
    explain = add(
        "explain",
        _explain,
        "which ingredient of two keys differs; without keys, of the last captured graph that was "
        "not found and the nearest one",
    )
    explain.add_argument("keys", nargs="*", metavar="KEY")
    for name, run, what in (
        ("export", _export, "write everything to a bundle"),
        ("import", _import, "add what a bundle has; it contains code that will run"),
    ):
        add(name, run, what).add_argument("bundle", type=Path)


def run(chosen: argparse.Namespace) -> int:
    """Runs the command chosen; 1 with a message if the cache or a bundle can't be used."""
    store = loopir.ArtifactStore(chosen.dir)
    try:
        store.check()
        print(chosen.run(store, chosen))
    except loopir.StoreError as error:
        print(error)
        return 1
    return 0


def _stats(store: loopir.ArtifactStore, chosen: argparse.Namespace) -> str:
    kinds: dict[str, list[int]] = defaultdict(list)
    for artifact in store.artifacts():
        kinds[artifact.suffix].append(artifact.size)
    rows = [(kind, len(sizes), sum(sizes)) for kind, sizes in sorted(kinds.items())]
    rows.append(("total", sum(row[1] for row in rows), sum(row[2] for row in rows)))
    lines = [f"{kind:<10}{count:>8}{size:>14,} bytes" for kind, count, size in rows]
    return "\n".join([str(store.root), *lines])


def _prune(store: loopir.ArtifactStore, chosen: argparse.Namespace) -> str:
    store.limit = chosen.limit
    return f"{store.evict()} artifacts removed"


def _explain(store: loopir.ArtifactStore, chosen: argparse.Namespace) -> str:
    if not chosen.keys:
        return "\n".join([loopir.explain_last_miss(store), *refusals(store)])
    if len(chosen.keys) != 2:
        raise loopir.StoreError("explain takes two keys, or none for the last miss")
    return store.explain_miss(*chosen.keys)


def _export(store: loopir.ArtifactStore, chosen: argparse.Namespace) -> str:
    return f"{loopir.export_bundle(store, chosen.bundle)} artifacts written to {chosen.bundle}"


def _import(store: loopir.ArtifactStore, chosen: argparse.Namespace) -> str:
    return f"{loopir.import_bundle(store, chosen.bundle)} artifacts added to {store.root}"


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+)([KMG]?)", text.upper())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size like 500M or 2G")
    return int(match[1]) * _UNITS[match[2]]
