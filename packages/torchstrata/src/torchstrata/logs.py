"""One tree of loggers for all packages, and what of it is shown (STRATA_LOG, STRATA_LOG_FORMAT).

Each package logs to ``<package>.<artifact>`` and knows nothing of the others. Here the packages'
loggers become children of the logger ``torchstrata``, so that one handler and one level serve all.
What only stages know that run (their texts, decisions to fuse) is logged if it is chosen by name
alone: it is long, and meanwhile no graph comes from the cache.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from typing import Any, Literal, get_args

from symshapes.suggestion import did_you_mean

from .errors import UsageError

Format = Literal["text", "json"]

TREE = logging.getLogger("torchstrata")
PACKAGES = (
    "aotgrad", "bytecode_dynamo", "inductor_cpp", "inductor_halide", "inductor_triton", "loopir",
    "primops", "symshapes",
)  # fmt: skip
OFF = logging.CRITICAL + 1


@dataclass(frozen=True, slots=True)
class Artifact:
    """One kind of record: its logger, its level, and what it says."""

    logger: str
    level: Literal["info", "debug"]
    what: str
    needs_stages: bool = False


ARTIFACTS = {
    "graph_breaks": Artifact("bytecode_dynamo.graph_breaks", "info", "why graphs end, and where"),
    "recompiles": Artifact("bytecode_dynamo.recompiles", "info", "what is compiled again, and why"),
    "reruns": Artifact("bytecode_dynamo.reruns", "info", "graphs that raised and ran again"),
    "cache": Artifact("torchstrata.cache", "info", "graphs that were, or were not, in the cache"),
    "progress": Artifact("torchstrata.progress", "info", "compilations that take long"),
    "guards": Artifact("bytecode_dynamo.guards", "debug", "the guards of each compiled function"),
    "failures": Artifact("bytecode_dynamo.failures", "debug", "captures that failed, with trace"),
    "fusion": Artifact("loopir.fusion", "debug", "each decision to fuse or not, and why", True),
    **{
        name: Artifact(f"torchstrata.text.{name}", "debug", f"the text of {what}", True)
        for name, what in {
            "captured": "captured graphs",
            "autograd": "joint and functional graphs",
            "patterns": "graphs after patterns",
            "prims": "prim graphs",
            "loops": "loop programs",
            "kernels": "kernels",
            "host": "host programs",
            "passes": "the results of the caller's passes",
        }.items()
    },
}
_NAMES = {artifact.logger: name for name, artifact in ARTIFACTS.items()}
LAYERS = {
    "dynamo": "bytecode_dynamo",
    "aot": "aotgrad",
    **{name: name for name in PACKAGES},
}
_LEVELS = ("debug", "info", "warning", "error")
_STAGES = {
    "10": "captured",
    "20": "autograd",
    "25": "patterns",
    "30": "prims",
    "35": "passes",
    "40": "loops",
    "45": "passes",
    "50": "kernels",
    "60": "host",
}
"""Artifacts by the number in the name of a stage's text."""


def set_logs(selection: str, format: Format = "text") -> None:
    """Chooses what is logged to stderr, in place of an earlier choice; "" chooses nothing.

    ``selection`` has names between commas: a level ("info") for everything that needs no stages; an
    artifact ("guards", ARTIFACTS), or "-guards" to leave it out; a layer (LAYERS), which is
    "dynamo" from INFO, "+dynamo" from DEBUG and "-dynamo" from ERROR on. Later names win.
    ``format`` "json" writes an object per line. Raises UsageError for other names and formats.
    """
    if format not in get_args(Format):
        raise UsageError(f"the format of logs is {format!r}; it must be 'text' or 'json'")
    levels: dict[str, int] = {}
    for item in filter(None, (part.strip().lower() for part in selection.split(","))):
        levels.update([_chosen(item)])
    silent = {one.logger: logging.WARNING for one in ARTIFACTS.values() if one.needs_stages}
    for name in (TREE.name, *LAYERS.values(), *_NAMES):
        logging.getLogger(name).setLevel({**silent, **levels}.get(name, logging.NOTSET))
    TREE.handlers[:] = [one for one in TREE.handlers if not isinstance(one, _Handler)]
    TREE.propagate = not selection
    if selection:
        TREE.addHandler(_Handler(format))


def _chosen(item: str) -> tuple[str, int]:
    """The logger and the level of one name."""
    sign, name = (item[0], item[1:]) if item[0] in "+-" else ("", item)
    if name in _LEVELS and not sign:
        return TREE.name, getattr(logging, name.upper())
    if name in ARTIFACTS:
        return ARTIFACTS[name].logger, OFF if sign == "-" else logging.DEBUG
    if name in LAYERS:
        level = {"": logging.INFO, "+": logging.DEBUG, "-": logging.ERROR}[sign]
        return LAYERS[name], level
    known = (*_LEVELS, *ARTIFACTS, *LAYERS)
    raise UsageError(
        f"nothing that is logged is called {item!r}; {did_you_mean(name, known)}one of "
        f"{', '.join(known)}"
    )


def configure_logging() -> None:
    """Makes the packages' loggers children of ``torchstrata``, and applies STRATA_LOG and
    STRATA_LOG_FORMAT. Raises UsageError for unknown names in them.
    """
    for name in PACKAGES:
        logging.getLogger(name).parent = TREE
    try:
        format: Any = os.environ.get("STRATA_LOG_FORMAT", "text").lower()
        set_logs(os.environ.get("STRATA_LOG", ""), format)
    except UsageError as error:
        raise UsageError(f"STRATA_LOG, STRATA_LOG_FORMAT: {error}") from None


def logs_stages() -> bool:
    """Whether something is logged that is known only while stages run."""
    return any(
        artifact.needs_stages and logging.getLogger(artifact.logger).isEnabledFor(logging.DEBUG)
        for artifact in ARTIFACTS.values()
    )


def log_text(name: str, text: str) -> None:
    """Logs the text of a stage; ``name`` is its file in a dump (``forward-40-loops.txt``)."""
    number = next(part for part in name.split("-") if part.isdigit())
    log = logging.getLogger(ARTIFACTS[_STAGES[number]].logger)
    log.debug("%s\n%s", name, text, extra={"fields": {"stage": name}})


class _Handler(logging.StreamHandler[Any]):
    """Writes the tree's records to stderr."""

    def __init__(self, format: Format) -> None:
        super().__init__()
        is_json = format == "json"
        self.setFormatter(_Lines() if is_json else logging.Formatter("%(name)s: %(message)s"))


class _Lines(logging.Formatter):
    """A record as one line of JSON.

    Keys: time (seconds since 1970), level, logger, artifact, process, thread, message; what the
    record says in ``fields``; exception, where there is one.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "artifact": _NAMES.get(record.name),
            "process": record.process,
            "thread": record.threadName,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
