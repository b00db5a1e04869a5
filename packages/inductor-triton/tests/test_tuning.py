"""Tuning with a pretended device: choices, noise, failures, what is kept, and the lock file."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from inductor_triton import Config
from inductor_triton.tuning.autotune import generate_any
from inductor_triton.tuning.candidates import candidates
from inductor_triton.tuning.selection import (
    Tuner,
    TuningWarning,
    format_config,
    median,
    parse_config,
    read_lock,
    shape_class,
)
from loopir import ArtifactStore, BuildError, parse_kernel

SOFTMAX = """
@kernel(device='cuda')
def softmax(x: In('float32', 4096000), out: Out('float32', 1000)):
    for i in range(1000):
        for r in reduce(4096):
            a = load(x, [4096*i + r], 'float32')
            m = reduce('sum', a, 'float32')
        store(out, [i], m)
"""
DYNAMIC = """
@kernel(device='cuda')
def double(x: In('float32', s0), out: Out('float32', s0), s0: Size(hint={hint})):
    for i in range(s0):
        a = load(x, [i], 'float32')
        b = add(a, a)
        store(out, [i], b)
"""


class PretendedDevice:
    """Times by ``cost(config)``, which may raise."""

    name = "PRETENDED"

    def __init__(self, cost):
        self.cost = cost
        self.configs = {}
        self.timed = 0

    def compile(self, source):
        pass

    def time(self, source, repeats):
        self.timed += 1
        return self.cost(self.configs[source.text])


def tuner(tmp_path, cost, **options):
    device = PretendedDevice(cost)

    def generate(kernel, config):
        source = generate_any(kernel, config)
        device.configs[source.text] = config
        return source

    return Tuner(ArtifactStore(tmp_path), device, generate, **options)


def test_the_fastest_is_chosen_and_kept_as_text(tmp_path):
    kernel = parse_kernel(SOFTMAX)
    wanted = candidates(kernel)[3]
    found = tuner(tmp_path, lambda config: 10.0 if config == wanted else 20.0)
    assert found.choose([kernel]) == [wanted]
    (text,) = [path.read_text() for path in tmp_path.rglob("*.txt") if "chosen" in path.read_text()]
    assert text.startswith("softmax on PRETENDED")
    assert f"10.00 us  {format_config(wanted)}  chosen" in text
    again = tuner(tmp_path, lambda config: 1.0)
    assert again.choose([kernel, replace(kernel, name="other")]) == [wanted, wanted]
    assert again.bench.timed == 0


def test_noise_does_not_replace_the_default(tmp_path):
    kernel = parse_kernel(SOFTMAX)
    default = candidates(kernel)[0]
    assert tuner(tmp_path, lambda config: 10.0 if config == default else 9.9).choose([kernel]) == [
        default
    ]


def test_what_does_not_compile_or_fit_is_skipped(tmp_path):
    kernel = parse_kernel(SOFTMAX)
    wanted = candidates(kernel)[-1]

    def cost(config):
        if config == wanted:
            return 30.0
        raise (
            torch.OutOfMemoryError("no memory") if config.num_warps == 8 else BuildError("no code")
        )

    assert tuner(tmp_path, cost).choose([kernel]) == [wanted]


def test_nothing_measurable_keeps_the_default_with_a_warning(tmp_path):
    def cost(config):
        raise torch.OutOfMemoryError("no memory")

    with pytest.warns(TuningWarning, match="softmax: no configuration"):
        assert tuner(tmp_path, cost).choose([parse_kernel(SOFTMAX)]) == [None]


def test_the_lock_file_replays_every_choice(tmp_path):
    kernels = [parse_kernel(SOFTMAX), parse_kernel(DYNAMIC.format(hint=5000))]
    lock = tmp_path / "choices.lock"
    first = tuner(
        tmp_path / "a", lambda config: 1000.0 / config.num_warps + config.x, lock=lock
    ).choose(kernels)
    assert len(lock.read_text().splitlines()) == 2
    again = tuner(tmp_path / "b", lambda config: float(config.num_warps), lock=lock)
    assert again.choose(kernels) == first
    assert again.bench.timed == 0


@pytest.mark.parametrize(("library", "faster"), [(50.0, True), (10.2, False), (None, False)])
def test_the_lock_file_replays_products_against_the_library(tmp_path, library, faster):
    kernel = parse_kernel(SOFTMAX)
    lock = tmp_path / "choices.lock"

    def library_time():
        if library is None:
            raise torch.OutOfMemoryError("no memory")
        return library

    first = tuner(tmp_path / "a", lambda config: 10.0, lock=lock).against_library(
        kernel, library_time
    )
    assert (first == "") == faster
    assert "against the library: " + ("one launch: " if faster else "library: ") in lock.read_text()
    again = tuner(tmp_path / "b", lambda config: 1.0, lock=lock)
    assert again.against_library(kernel, lambda: pytest.fail("measured again")) == first
    assert again.bench.timed == 0


def test_a_damaged_lock_file_is_an_error(tmp_path):
    lock = tmp_path / "choices.lock"
    lock.write_text("PRETENDED/abc: x=4 wings=2\n")
    with pytest.raises(ValueError, match="line 1 of the lock file.*wings"):
        tuner(tmp_path, lambda config: 1.0, lock=lock)


def test_sizes_of_one_class_share_a_choice():
    classes = [shape_class(parse_kernel(DYNAMIC.format(hint=hint))) for hint in (5000, 8000, 9000)]
    assert classes[0] == classes[1] != classes[2]


def test_configurations_and_locks_round_trip():
    for config in (
        Config(x=4),
        Config(x=128, y=64, r=32, persistent=True, num_warps=8, num_stages=3, grid=132, tma=True),
    ):
        assert parse_config(format_config(config)) == config
    assert read_lock("") == {}


def test_interruptions_do_not_count():
    assert median([5.0, 5.1, 5.2, 50.0]) == 5.1


def test_progress_is_reported(tmp_path):
    seen = []
    tuner(tmp_path, lambda config: 1.0, progress=lambda *step: seen.append(step)).choose(
        [parse_kernel(SOFTMAX)]
    )
    assert seen == [(0, 1, "softmax"), (1, 1, "")]
