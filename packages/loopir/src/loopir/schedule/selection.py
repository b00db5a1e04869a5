"""What a code generator that selects kernels says about groups before they are fused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from symshapes.choices import using

from loopir.backend import SelectsKernels
from loopir.ir.node import LoweredGraph
from loopir.options import Options

from .build import build_kernel
from .dag import Dag
from .group import Group


@dataclass(slots=True)
class Selection:
    """``codegens``: those that select kernels, by device type."""

    graph: LoweredGraph
    dag: Dag
    codegens: Mapping[str, SelectsKernels]
    options: Options
    _answers: dict[Group, bool] = field(default_factory=dict)

    def takes(self, fused: Group, left: Group, right: Group) -> bool:
        """Whether a fusion takes no kernel away from the generator: it supports what is fused, or
        neither of the two.
        """
        if self.graph.buffers[fused.members[0].node.buffer].device.type not in self.codegens:
            return True
        alone = [self._supports(group, {group.name}) for group in (left, right)]
        return self._supports(fused, {left.name, right.name}) if any(alone) else True

    def _supports(self, group: Group, inside: set[str]) -> bool:
        if group not in self._answers:
            external = self.dag.external(group, inside, self.graph.output_buffers)
            with using(None):  # a kernel that may never be
                kernel, _ = build_kernel(group, self.graph, external, options=self.options)
            self._answers[group] = self.codegens[kernel.device].supports(kernel)
        return self._answers[group]
