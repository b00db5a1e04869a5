"""The work of the scheduler by size of the graph, counted in calls: four times the nodes take about
four times the calls, however many groups share a buffer.
"""

import sys

import pytest
import torch
from loopir import Options, lower, schedule
from loopir.schedule.users import Users
from primops import decompose
from primops.testing import trace

SIZE = 150


def branches_of_one_input(count):
    return lambda x: torch.cat([torch.relu(x * (i + 0.5)) for i in range(count)], 1)


def independent_sums(count):
    return lambda x: [(x * (i + 0.5)).sum(1) for i in range(count)]


def readers_of_a_stack(count):
    def program(x):
        stacked = torch.stack([torch.sin(x * (i + 0.5)) for i in range(count)])
        return [torch.cos(stacked[i]) for i in range(count)]

    return program


def chain(count):
    def program(x):
        for _ in range(count):
            x = torch.sin(x) + 1
        return x

    return program


def calls_of(function, *arguments):
    """How many Python functions and builtins are called."""
    count = 0

    def profile(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        function(*arguments)
    finally:
        sys.setprofile(None)
    return count


def scheduling_calls(family, size):
    graph = decompose(trace(family(size), torch.randn(8, 16)))
    lowered = lower(graph, Options())
    return calls_of(schedule, lowered, Options())


@pytest.mark.parametrize(
    "family", [branches_of_one_input, independent_sums, readers_of_a_stack, chain]
)
def test_scheduling_takes_calls_in_proportion_to_the_nodes(family):
    scheduling_calls(family, 20)  # fills caches of expressions
    small, large = scheduling_calls(family, SIZE), scheduling_calls(family, 4 * SIZE)
    assert large < 5.5 * small


def test_users_are_in_program_order_and_near_ones_are_found():
    users = Users()
    for place in (5, 1, 9, 3, 7):
        users.add(f"g{place}", place)
    users.add("g3", 8)  # known
    assert list(users) == ["g1", "g3", "g5", "g7", "g9"]
    assert users.near("g5", 5, 2) == ["g3", "g7"]
    assert users.near("other", 8, 3) == ["g5", "g7", "g9"]
    assert users.near("g1", 1, 9) == ["g3", "g5", "g7", "g9"]
    users.discard("g5")
    users.discard("g5")
    assert users.near("g1", 5, 1) == ["g3"]
    assert len(users) == 4 and "g5" not in users
    assert users.others("g1", "g5") == 3
