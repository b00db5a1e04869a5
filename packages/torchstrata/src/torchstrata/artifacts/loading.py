"""``load``: a saved program as a callable."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import aotgrad
import bytecode_dynamo
import loopir
import safetensors.torch
import symshapes
import torch
from symshapes.text.form import reading

from torchstrata import artifacts
from torchstrata.config import config
from torchstrata.context import Context, open_store, revive
from torchstrata.dump import Dump
from torchstrata.errors import ArtifactError, UsageError
from torchstrata.extensions import Extensions
from torchstrata.generators import own_code_generators

from .archive import Archive, read_archive, sources
from .facts import Json, read_value
from .model_facts import Modes, check_facts, check_state, named_tensors
from .signature import Signature, fetch
from .weights import CONSTANTS, Owners, find_weights

_log = logging.getLogger("torchstrata")
Run = Callable[..., Sequence[Any]]


def load(
    path: str | os.PathLike[str],
    model: torch.nn.Module | None = None,
    *,
    weights: str | os.PathLike[str] | Mapping[str, torch.Tensor] | None = None,
    trust: bool = True,
) -> LoadedProgram:
    """The program that ``save`` wrote, as a callable.

    Its parameters and buffers are those of ``model``, or of ``weights``: a safetensors file or
    tensors by name; without either, those in the file. Nothing is captured or compiled, if torch,
    this package and the instruction set are those of the file; else everything is built again from
    the texts in it.

    A file contains code, and its hashes don't say who made it. It must belong to this user and be
    writable for nobody else; with ``trust=False`` none of its code runs, and everything is built
    from its checked texts.

    Raises ArtifactError for a file that can't be read, is damaged, or can't be trusted, UsageError
    for one of another model.
    """
    archive = read_archive(Path(path), trust)
    try:
        with reading():
            is_same = trust and _is_of(archive.manifest)
            programs = [
                _Program(Signature.from_json(entry["signature"]), archive, number, is_same)
                for number, entry in enumerate(archive.manifest["signatures"])
            ]
    except symshapes.ParseError as error:
        raise ArtifactError(f"{path} can't be read: {error}") from error
    if trust and not is_same:
        _log.warning("%s is of other versions: it is built again from its texts", path)
    need = {name: fact for one in programs for name, fact in one.signature.state.items()}
    shared = {pair for one in programs for pair in one.signature.shared}
    if model is None:
        tensors = find_weights(archive, weights, need)
        check_state(tensors, need, shared)
        return LoadedProgram(programs, Owners({name: (tensors, name) for name in need}))
    check_state(named_tensors(model), need, shared)
    problems = [one.watch(model) for one in programs]
    fitting = [one for one, problem in zip(programs, problems) if problem is None]
    if not fitting:
        raise UsageError(f"the file is for another model: {problems[0]}")
    return LoadedProgram(fitting, Owners.of(model, need))


def _is_of(manifest: Mapping[str, Any]) -> bool:
    """Whether a file was written with this torch and these packages."""
    return manifest["torch"] == str(torch.__version__) and manifest["sources"] == sources()


class LoadedProgram:
    """A saved program: call it as the function or module that was compiled."""

    def __init__(self, programs: Sequence[_Program], owners: Owners) -> None:
        self._programs = programs
        self._owners = owners

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """The parameters and buffers that it reads, by name."""
        return self._owners.now()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Raises UsageError, with the first reason, for arguments that nothing was compiled for."""
        state = self._owners.now()
        problems = []
        for one in self._programs:
            leaves, problem = one.bind(args, kwargs, state)
            if problem is None and one.run is None:
                one.build()  # which may add conditions
                leaves, problem = one.bind(args, kwargs, state)
            if problem is None:
                return one.call(leaves, state)
            problems.append(problem)
        raise UsageError(
            f"nothing in the file was compiled for these arguments: {'; '.join(problems)}. Call "
            f"precompile for such arguments, too, and save again"
        )


@dataclass(slots=True)
class _Program:
    """One signature of a file, built at its first call."""

    signature: Signature
    archive: Archive
    number: int
    is_same: bool
    modes: Modes = field(default_factory=Modes)
    run: Run | None = None

    def watch(self, model: torch.nn.Module) -> str | None:
        """Notes the modules whose mode the program read. Why it is not for this module, as one
        line, or None.
        """
        self.modes, problem = check_facts(model, self.signature.attributes)
        return problem

    def bind(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], state: Mapping[str, torch.Tensor]
    ) -> tuple[list[Any], str | None]:
        """The leaves of arguments, and why the program is not for this call, as one line, or None.
        Raises TypeError for arguments that don't fit the parameters.
        """
        leaves, problem = self.signature.bind(args, kwargs, state)
        return leaves, problem or self.modes.problem()

    def call(self, leaves: Sequence[Any], state: Mapping[str, torch.Tensor]) -> Any:
        """The result for arguments that fit."""
        assert self.run is not None
        inputs = [fetch(place, leaves, state) for place in self.signature.inputs]
        return self.signature.nest(leaves, state, self.run(*inputs))

    def build(self) -> None:
        """Makes ``run`` from the file. Raises ArtifactError where that is damaged, CompileError."""
        try:
            self.run = self._revive() if self.is_same else self._rebuild()
        except (symshapes.ParseError, KeyError, ValueError) as error:
            raise ArtifactError(f"{self.archive.path} can't be read: {error}") from error

    @property
    def entry(self) -> Json:
        """What the manifest says of it."""
        return self.archive.manifest["signatures"][self.number]

    def _text(self, name: str) -> str:
        return self.archive.text(f"{self.number}/{name}")

    def _revive(self) -> Run:
        settings = config.with_options(self.entry["settings"])
        generators = own_code_generators(settings, self.entry["devices"])
        store = open_store(settings.cache_dir)
        ctx = Context(settings, store, generators, Dump(None), Extensions())
        for key, suffix, parts in self.entry["artifacts"]:
            if ctx.store.get(key, suffix) is None:
                ctx.store.put(key, suffix, self.archive.parts[f"artifacts/{key}{suffix}"], parts)
        constants = self._constants()
        entry = _Entry(self._text("calls.json"), constants, partial(self._program, ctx, constants))
        return aotgrad.load_compiled(
            entry,
            lambda: aotgrad.captured_compilation(
                self._captured(), **artifacts.autograd_options(ctx)
            ),
            grad_enabled=self.signature.thread.grad_mode,
            wrap_backward=bytecode_dynamo.disable,
        )

    def _program(self, ctx: Context, constants: Mapping[str, torch.Tensor], what: str) -> Any:
        meta = self.entry["programs"].get(what)
        if meta is None:
            return None
        stored = loopir.StoredProgram.read(self._text(f"{what}.json"), constants)
        misses = ctx.store.misses
        call = revive(ctx, stored, read_value(meta))
        if ctx.store.misses > misses:
            _log.warning(
                "%s has no kernels for this machine: they are built again from loop IR",
                self.archive.path,
            )
        return call

    def _constants(self) -> dict[str, torch.Tensor]:
        data = self.archive.parts.get(f"{self.number}/{CONSTANTS}")
        return {} if data is None else safetensors.torch.load(data)

    def _captured(self) -> torch.fx.GraphModule:
        return bytecode_dynamo.parse_captured(self._text("captured.txt"), self._constants())

    def _rebuild(self) -> Run:
        """Compiles the captured graph. What that assumes of sizes is added to the conditions."""
        settings = config.with_options(self.entry["settings"])
        graph = self._captured()
        examples = [node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")]
        run = artifacts.compile_captured(settings, graph, examples, Extensions())
        sizes = (value.node.shape_env for value in examples if isinstance(value, torch.SymInt))
        guards = getattr(next(sizes, None), "guards", ())
        added = tuple((symshapes.python_text(guard.expr), guard.provenance) for guard in guards)
        conditions = tuple(dict.fromkeys((*self.signature.conditions, *added)))
        self.signature = replace(self.signature, conditions=conditions)
        return run


@dataclass(slots=True)
class _Entry:
    """What ``aotgrad`` reads (``CacheEntry``)."""

    data: str | None
    constants: Mapping[str, torch.Tensor]
    program: Callable[[str], Any]
    lines: Sequence[str] = ()

    def compiled(self, what: str) -> Any:
        """The compiled functional graph; None if that graph computes nothing."""
        return self.program(what)

    def constant_name(self, tensor: torch.Tensor) -> str | None:
        """Nothing is written."""
        return None

    def put(self, write: Callable[[], str]) -> None:
        """Nothing is written."""
