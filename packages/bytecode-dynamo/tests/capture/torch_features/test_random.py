"""Random numbers: torch's generators, Python's ``random``, and the states that both leave
behind.
"""

from __future__ import annotations

import collections
import copy
import random

import bytecode_dynamo as bd
import pytest
import torch
from torch.nn import functional as F


def seeded(x):
    torch.manual_seed(3)
    a = torch.rand(4)
    torch.manual_seed(3)
    return x + a, a == torch.rand(4), F.dropout(x, 0.5)


def seeded_result(x):
    return x + torch.rand(4, generator=torch.manual_seed(3))


def state_set_back(x):
    state = torch.get_rng_state()
    a = torch.rand(4)
    torch.set_rng_state(state)
    return x + a, a == torch.rand(4), state


def made(x):
    g = torch.Generator(device="cpu").manual_seed(4)
    return x + torch.rand(4, generator=g), x.clone().normal_(generator=g), g.device


def default(x):
    return x + torch.rand(4, generator=torch.default_generator)


def forked(x):
    with torch.random.fork_rng():
        torch.manual_seed(5)
        a = torch.rand(4)
    return x + a + torch.rand(4)


def initialised(x):
    w = torch.empty(4, 4)
    torch.nn.init.normal_(w, generator=torch.Generator().manual_seed(2))
    return x @ w


def python_seeded(x):
    random.seed(4)
    items = [1, 2, 3, 4]
    random.shuffle(items)
    state = random.getstate()
    first = random.random()
    random.setstate(state)
    return (
        x * random.random(),
        items,
        random.choice("abc"),
        random.sample(range(9), 3),
        random.choices([1, 2], k=3),
        first,
    )


def python_drawn(x):
    k = random.randint(-3, 10)
    return (
        x * random.random() + k,
        random.uniform(2, 3),
        random.gauss(0, 1) + 1,
        random.randrange(5),
        k * 2,
    )


def python_size(x):
    k = random.randint(2, 5)
    return torch.zeros(k) + k, x


def python_made(x):
    r = random.Random(5)
    return x * r.uniform(1, 2), r.random(), r.randint(1, 6), r


def python_then_seeded(x):
    a = random.random()
    random.seed(7)
    return x * a, random.random()


@pytest.mark.parametrize(
    "f",
    (seeded, seeded_result, state_set_back, made, default, forked, initialised, python_seeded,
    python_drawn, python_size,
     python_made, python_then_seeded),
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_one_graph(f, alike):
    runs = []
    for call in (f, bd.optimize("eager", fullgraph=True)(f)):
        torch.manual_seed(1)
        random.seed(1)
        results = [call(torch.ones(4)) for _ in range(3)]
        if f is python_made:
            results = [(*result[:3], result[3].getstate()) for result in results]
        runs.append((results, torch.get_rng_state(), random.getstate()))
    assert alike(*runs)
    assert bd.counters["graphs"] == 1


def test_generator_as_argument(alike):
    def f(x, g, h=None):
        state = g.get_state()
        a = (
            torch.rand(4, generator=g),
            torch.randperm(5, generator=g),
            torch.randint(0, 9, (3,), generator=h),
        )
        g.set_state(state)
        return (
            x + a[0],
            a,
            x.clone().uniform_(generator=g),
            torch.multinomial(x.abs(), 2, generator=g),
        )

    runs = []
    for call in (f, bd.optimize("eager", fullgraph=True)(f)):
        torch.manual_seed(0)
        generators = [torch.Generator().manual_seed(k) for k in range(3)]
        runs.append(
            ([call(torch.ones(4), g) for g in generators], [g.get_state() for g in generators])
        )
    assert alike(*runs)
    assert bd.counters["graphs"] == 1


def test_random_instance_as_argument():
    def f(x, r):
        return x * r.random() + r.randint(1, 5)

    captured = bd.optimize("eager", fullgraph=True)(f)
    for seed in range(4):
        ours, theirs = random.Random(seed), random.Random(seed)
        for _ in range(2):
            assert torch.equal(captured(torch.ones(2), ours), f(torch.ones(2), theirs))
        assert ours.getstate() == theirs.getstate()
    assert bd.counters["graphs"] == 1


def test_what_is_no_list_is_shuffled_as_python_does(alike):
    items = collections.deque([1, 2, 3, 4, 5])

    def f(x, shuffled):
        try:
            random.shuffle(shuffled)
        except TypeError as error:
            return x + 1, str(error)
        return x + 1, list(shuffled)

    for shuffled in (items, bytearray(b"shuffle"), (1, 2, 3), {0: 1, 1: 2, 2: 3}):
        runs = []
        for call in (f, bd.optimize("eager")(f)):
            random.seed(3)
            given = copy.copy(shuffled)
            runs.append((call(torch.ones(2), given), repr(given), random.getstate()))
        assert alike(*runs)
    with pytest.raises(bd.Unsupported, match="shuffle of tuple"):
        bd.optimize("eager", fullgraph=True)(lambda x: (random.seed(3), f(x, (1, 2, 3))))(
            torch.ones(2)
        )


def test_branch_on_a_random_number_breaks(alike):
    def f(x):
        for _ in range(4):
            if random.random() < 0.5:
                x = torch.sin(x)
        return x, random.choice([1, 2, 3])

    runs = []
    for call in (f, bd.optimize("eager")(f)):
        random.seed(0)
        runs.append([call(torch.ones(3)) for _ in range(5)])
    assert alike(*runs)
    with pytest.raises(bd.exc.Unsupported, match="BD001"):
        bd.optimize("eager", fullgraph=True)(f)(torch.ones(3))


def test_a_backend_without_other_inputs(alike):
    def compiler(gm, examples):
        assert all(isinstance(example, (int, torch.Tensor)) for example in examples)
        return gm.forward

    compiler.symbolic_floats = compiler.host_effects = False

    def f(x, g):
        torch.manual_seed(2)
        return x * random.random() + torch.rand(4, generator=g) + torch.rand(4)

    runs = []
    for call in (f, bd.optimize(compiler)(f)):
        random.seed(0)
        runs.append([call(torch.ones(4), torch.Generator().manual_seed(k)) for k in range(3)])
    assert alike(*runs)


def read_settings(x):
    cudnn, cuda = torch.backends.cudnn, torch.backends.cuda
    return (
        x + 1,
        cudnn.enabled,
        cudnn.benchmark,
        cuda.matmul.allow_tf32,
        torch.backends.mkldnn.enabled,
        torch.get_num_threads(),
    )


def default_dtype(x):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    y = torch.ones(4)
    torch.set_default_dtype(before)
    return x + y, torch.ones(1)


def deterministic(x):
    torch.use_deterministic_algorithms(True, warn_only=True)
    inside = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    torch.use_deterministic_algorithms(False)
    return x + 1, inside


def flags(x):
    with torch.backends.cudnn.flags(enabled=False), torch.backends.mkldnn.flags(enabled=False):
        inside = torch.backends.cudnn.enabled, torch.backends.mkldnn.enabled
    return x @ x, inside, torch.backends.cudnn.enabled


def left_set(x):
    torch.set_default_dtype(torch.float64)
    return x + torch.ones(4)


def broken_between(x):
    torch.set_default_dtype(torch.float64)
    y = torch.ones(4)
    bd.graph_break()
    z = torch.ones(4)
    torch.set_default_dtype(torch.float32)
    return x + y, z, torch.ones(2)


@pytest.mark.parametrize(
    "f",
    (read_settings, default_dtype, deterministic, flags, left_set, broken_between),
    ids=lambda f: f.__name__,
)
def test_settings(f, alike):
    runs = []
    for call in (f, bd.optimize("eager", fullgraph=f is not broken_between)(f)):
        try:
            results = [call(torch.ones(4)) for _ in range(2)]
            runs.append((results, torch.get_default_dtype(), torch.backends.cudnn.enabled))
        finally:
            torch.set_default_dtype(torch.float32)
            torch.use_deterministic_algorithms(False)
    assert alike(*runs)
