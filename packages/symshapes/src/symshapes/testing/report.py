"""The result of a conformance kit: cases by area, as a table, as JSON, as an exit code."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

MOST_SHOWN = 20


class Refused(Exception):
    """What is checked says that it does not support a case; the text is its reason."""


@dataclass(slots=True)
class Area:
    """Cases that have something in common.

    Attributes:
        cases: how many ran.
        failures: name and message of each that went wrong.
        refusals: the reasons of those that were refused, with their counts.
        seconds: how long they took.
    """

    cases: int = 0
    failures: list[tuple[str, str]] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def refused(self) -> int:
        """How many were refused."""
        return self.refusals.total()

    @property
    def passed(self) -> int:
        """How many went right."""
        return self.cases - self.refused - len(self.failures)


@dataclass(slots=True)
class Report:
    """What a kit found out about ``subject``. ``unit`` is the word for several of its cases."""

    kit: str
    subject: str
    unit: str = "cases"
    areas: dict[str, Area] = field(default_factory=dict)

    @property
    def cases(self) -> int:
        """How many ran."""
        return sum(area.cases for area in self.areas.values())

    @property
    def passed(self) -> int:
        """How many went right."""
        return sum(area.passed for area in self.areas.values())

    @property
    def refused(self) -> int:
        """How many were refused."""
        return sum(area.refused for area in self.areas.values())

    @property
    def failures(self) -> list[tuple[str, str]]:
        """Name and message of each case that went wrong."""
        return [failure for area in self.areas.values() for failure in area.failures]

    def area(self, name: str) -> Area:
        """The area of that name, added where it is new."""
        return self.areas.setdefault(name, Area())

    @contextmanager
    def case(self, area: str, name: str) -> Iterator[None]:
        """One case: an exception inside is its failure, or for ``Refused`` its refusal."""
        with self.timed(area) as known:
            known.cases += 1
            try:
                yield
            except Refused as reason:
                known.refusals[str(reason)] += 1
            except Exception as error:
                what = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
                known.failures.append((name, f"{what}{error}"))

    @contextmanager
    def timed(self, area: str) -> Iterator[Area]:
        """Adds the time inside to an area."""
        known, started = self.area(area), time.perf_counter()
        try:
            yield known
        finally:
            known.seconds += time.perf_counter() - started

    def table(self) -> str:
        """A line per area and for the sum, then the reasons of refusals."""
        lines = [f"{'area':<24}{'cases':>8}{'passed':>8}{'refused':>9}{'wrong':>7}{'seconds':>9}"]
        total = Area(
            self.cases,
            self.failures,
            Counter({"": self.refused}),
            sum(area.seconds for area in self.areas.values()),
        )
        for name, area in {**self.areas, "all": total}.items():
            lines.append(
                f"{name:<24}{area.cases:>8}{area.passed:>8}{area.refused:>9}"
                f"{len(area.failures):>7}{area.seconds:>9.1f}"
            )
        reasons = sum((area.refusals for area in self.areas.values()), Counter())
        lines += [f"refused {count}: {reason}" for reason, count in reasons.most_common()]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "kit": self.kit,
            "subject": self.subject,
            "cases": self.cases,
            "passed": self.passed,
            "refused": self.refused,
            "areas": {
                name: {
                    "cases": area.cases,
                    "passed": area.passed,
                    "refused": dict(area.refusals),
                    "seconds": round(area.seconds, 3),
                    "failures": [{"case": case, "message": text} for case, text in area.failures],
                }
                for name, area in self.areas.items()
            },
        }

    def failures_text(self) -> str:
        """The first failures, each with its message."""
        return "\n\n".join(f"{case}: {text}" for case, text in self.failures[:MOST_SHOWN])

    def show(self) -> int:
        """Prints the table and the failures; returns 1 if something is wrong."""
        print(self.table())
        if self.failures:
            print(f"\n{self.failures_text()}")
        return int(bool(self.failures))

    def raise_if_wrong(self) -> None:
        """Raises AssertionError with the first failures, if there is one."""
        failures = self.failures
        if failures:
            names = ", ".join(dict.fromkeys(case for case, _ in failures))
            raise AssertionError(
                f"{self.subject}: {len(failures)} of {self.cases} {self.unit} are wrong "
                f"({names})\n\n{self.failures_text()}"
            )


def run_kit(
    check: Callable[..., Report], option: str, arguments: Sequence[str] | None = None
) -> int:
    """The command of a kit: ``--OPTION module:attribute`` says what to check, ``--programs`` how
    many random ones to run besides the fixed cases, ``--json`` where to write the result. Prints
    the table and the failures; returns 1 if something is wrong, 2 for a subject that can't be
    loaded.
    """
    parser = argparse.ArgumentParser(description=check.__doc__.strip().splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument(f"--{option}", dest="subject", required=True, metavar="MODULE:ATTRIBUTE")
    parser.add_argument("--programs", type=int, default=200, help="random ones, besides the fixed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result here, too")
    chosen = parser.parse_args(arguments)
    try:
        subject = load_subject(chosen.subject)
    except Exception as error:
        print(f"{chosen.subject} can't be loaded: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    report = check(subject, programs=chosen.programs, strict=False)
    report.show()
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(report.as_dict(), indent=1) + "\n")
    return int(bool(report.failures))


def load_subject(path: str) -> Any:
    """The object that ``module:attribute`` names; a class is called without arguments."""
    module, _, name = path.partition(":")
    if not name:
        raise ValueError("write module:attribute")
    found = attrgetter(name)(importlib.import_module(module))
    return found() if isinstance(found, type) else found
