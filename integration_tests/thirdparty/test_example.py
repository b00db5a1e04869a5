"""Reasons of fusion decisions, and the origins of kernels, are complete."""

import aotgrad
import bytecode_dynamo
import loopir
import primops
import pytest
from loopir.ir.program import Launch

from integration_tests.models.zoo import ZOO


@pytest.fixture(scope="module")
def gpt_training() -> list[loopir.Program]:
    """The programs of a GPT's forward and backward."""
    programs: list[loopir.Program] = []

    def keep(graph, inputs):
        programs.append(
            loopir.schedule(loopir.lower(primops.decompose(loopir.rewrite_patterns(graph))))
        )
        return lambda *args: graph(*args)

    entry = next(entry for entry in ZOO if entry.name == "gpt")
    compiled = bytecode_dynamo.optimize(aotgrad.aot_backend(keep, keep))(entry.build().train())
    compiled(*entry.inputs(2)).square().mean().backward()
    return programs


def test_every_refused_fusion_of_a_training_graph_has_a_reason(gpt_training):
    assert len(gpt_training) == 2
    for program in gpt_training:
        refused = [decision for decision in program.decisions if not decision.accepted]
        text = loopir.format_schedule(program)
        assert refused
        for decision in refused:
            assert (
                decision.reason
                and f"kept apart: {decision.first} and {decision.second}: {decision.reason}" in text
            )


def test_kernels_that_hand_a_buffer_on_say_why_they_are_two(gpt_training):
    """Of every pair of launches where one reads what the other alone has written."""
    for program in gpt_training:
        launches = [step for step in program.steps if isinstance(step, Launch)]
        written = [_buffers(program, launch, "out") for launch in launches]
        alone = {
            name
            for names in written
            for name in names
            if sum(name in other for other in written) == 1
        }
        reasons = [
            (set(d.first.split("+")), set(d.second.split("+")))
            for d in program.decisions
            if not d.accepted
        ]
        for writer, made in zip(launches, written, strict=True):
            for reader, own in zip(launches, written, strict=True):
                for name in (
                    made & alone & _buffers(program, reader, "in") if reader is not writer else ()
                ):
                    assert any(
                        (name in a and own & b) or (name in b and own & a) for a, b in reasons
                    ), (name, own)


def _buffers(program: loopir.Program, launch: Launch, role: str) -> set[str]:
    declared = program.kernels[launch.kernel].buffers
    return {
        name
        for name, buffer in zip(launch.buffers, declared, strict=True)
        if buffer.role in (role, "inout")
    }


def test_kernels_know_their_nodes_and_lines(gpt_training):
    """From a line of the model to a loop body: forward and backward kernels name the operators and
    the user's text.
    """
    for program in gpt_training:
        for kernel in program.kernels:
            assert kernel.origins and loopir.format_kernel(kernel).startswith("# ")
    lines = {
        line for program in gpt_training for kernel in program.kernels for _, line in kernel.origins
    }
    assert any(line.startswith("return x + self.mlp(self.ln2(x))  (zoo.py:") for line in lines)
