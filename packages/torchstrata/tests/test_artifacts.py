"""Saved programs: what ``load`` gives computes what the model does, or says why it can't."""

from __future__ import annotations

import json
import logging
import os
import random
import stat
import zipfile

import bytecode_dynamo
import pytest
import torch
import torchstrata
from safetensors.torch import save_file
from torch import nn
from torchstrata import ArtifactError, UsageError
from torchstrata.artifacts.archive import read_archive, write_archive


class Model(nn.Module):
    """Parameters, buffers that it writes, a constant, nested results and arguments."""

    def __init__(self, width: int = 4, scale: int = 3):
        super().__init__()
        self.linear = nn.Linear(4, width)
        self.norm = nn.BatchNorm1d(width)
        self.scale = scale
        self.register_buffer("shift", torch.ones(width))

    def forward(self, x, factor=2.0, *, pairs=None):
        y = self.norm(self.linear(x)) * self.scale + torch.tensor([1.0, 2.0, 3.0, 4.0])
        if pairs is not None:
            y = y + pairs["left"] * pairs["right"][0]
        return {"y": y * factor + self.shift, "given": x, "rest": (y.sum(), None, "end")}


def pairs(rows=3):
    return {"left": torch.full((rows, 4), 2.0), "right": [torch.full((rows, 4), 3.0), "name"]}


def models(**settings):
    """Two equal models."""
    made = []
    for _ in range(2):
        torch.manual_seed(1)
        made.append(Model(**settings))
    return made


def saved(path, model, *calls, training=True, weights=False, dynamic=()):
    """The file of a model compiled for these calls."""
    compiled = torchstrata.compile(model)
    with torch.set_grad_enabled(training):
        for args, kwargs in calls:
            for dim in dynamic:
                torchstrata.mark_dynamic(args[0], dim)
            compiled.precompile(*args, **kwargs)
    torchstrata.save(compiled, path, weights=weights)
    return path


def check_step(program, model, like, *args, **kwargs):
    """Results, gradients and buffers of ``model`` through ``program`` are those of ``like``."""
    for one in (model, like):
        one.zero_grad()
    results, expected = program(*args, **kwargs), like(*args, **kwargs)
    torch.testing.assert_close(results["y"], expected["y"])
    assert results["given"] is args[0] and results["rest"][1:] == (None, "end")
    if torch.is_grad_enabled():
        seed = torch.linspace(-1, 1, expected["y"].numel()).reshape(expected["y"].shape)
        results["y"].backward(seed)
        expected["y"].backward(seed)
        for (name, a), b in zip(model.named_parameters(), like.parameters()):
            assert torch.allclose(a.grad, b.grad, rtol=1e-3, atol=1e-4), name
    for (name, a), b in zip(model.named_buffers(), like.buffers()):
        torch.testing.assert_close(a, b, msg=name)


def test_a_training_program_comes_back(tmp_path):
    x = torch.randn(6, 4)
    path = saved(tmp_path / "model.strata", models()[0], ((x,), {}))
    model, like = models()
    program = torchstrata.load(path, model)
    before = torchstrata.counters["graphs"]
    for _ in range(2):
        check_step(program, model, like, torch.randn(6, 4))
    assert torchstrata.counters["graphs"] == before


def test_precompile_runs_nothing(tmp_path):
    model, like = models()
    saved(tmp_path / "model.strata", model, ((torch.randn(6, 4),), {}))
    for a, b in zip(model.state_dict().values(), like.state_dict().values()):
        assert torch.equal(a, b)


def test_several_signatures(tmp_path):
    x = torch.randn(6, 4)
    calls = ((x,), {}), ((torch.randn(3, 4), 0.5), {"pairs": pairs()})
    path = saved(tmp_path / "model.strata", models()[0], *calls)
    model, like = models()
    program = torchstrata.load(path, model)
    check_step(program, model, like, x)
    check_step(program, model, like, torch.randn(3, 4), 0.5, pairs=pairs())
    with pytest.raises(UsageError, match="factor was 2.0, now 3.0"):
        program(x, 3.0)
    with pytest.raises(UsageError, match=r"x.size\(0\) was 6, now 5"):
        program(torch.randn(5, 4))
    with pytest.raises(TypeError, match="unexpected keyword"):
        program(x, other=1)


def test_sizes_that_are_marked_are_symbolic(tmp_path):
    path = saved(tmp_path / "model.strata", models()[0], ((torch.randn(6, 4),), {}), dynamic=[0])
    model, like = models()
    program = torchstrata.load(path, model)
    for rows in (6, 11, 3):
        check_step(program, model, like, torch.randn(rows, 4))
    with pytest.raises(UsageError, match=r"s0 >= 2.*does not hold for \{'s0': 1\}"):
        program(torch.randn(1, 4))


def test_nothing_runs_of_a_file_that_is_not_trusted(tmp_path):
    path = saved(tmp_path / "model.strata", models()[0], ((torch.randn(6, 4),), {}), dynamic=[0])
    head, parts = contents(path)
    parts["0/calls.json"] = b"never read"
    parts = {name: data for name, data in parts.items() if not name.startswith("artifacts/")}
    write_archive(path, head, parts)
    path.chmod(0o666)
    model, like = models()
    program = torchstrata.load(path, model, trust=False)
    check_step(program, model, like, torch.randn(5, 4))
    with pytest.raises(ArtifactError, match="others may write"):
        torchstrata.load(path, model)


def contents(path):
    """The manifest of a file as ``write_archive`` takes it, and its parts."""
    archive = read_archive(path, trust=False)
    head = {k: v for k, v in archive.manifest.items() if k not in ("format", "version", "files")}
    return head, dict(archive.parts)


def test_other_versions_and_machines_build_again(tmp_path, caplog):
    path = saved(tmp_path / "model.strata", models()[0], ((torch.randn(6, 4),), {}))
    head, parts = contents(path)
    other = tmp_path / "other.strata"
    with caplog.at_level(logging.WARNING, "torchstrata"):
        write_archive(other, head | {"torch": "1.0"}, parts)
        model, like = models()
        check_step(torchstrata.load(other, model), model, like, torch.randn(6, 4))
        assert [r.message.split(" ")[-5:] for r in caplog.records] == [
            "built again from its texts".split(" ")
        ]
        caplog.clear()
        for what in ("forward", "backward"):
            stored = json.loads(parts[f"0/{what}.json"])
            for described in stored["host"]["launchers"].values():
                described[1] = json.dumps({**json.loads(described[1]), "target": ["another ISA"]})
            parts[f"0/{what}.json"] = json.dumps(stored).encode()
        parts = {name: data for name, data in parts.items() if not name.startswith("artifacts/")}
        for entry in head["signatures"]:
            entry["artifacts"] = []
        write_archive(other, head, parts)
        options = {"cache_dir": str(tmp_path / "cache")}
        with torchstrata.config.patch(**options):
            model, like = models()
            check_step(torchstrata.load(other, model), model, like, torch.randn(6, 4))
        assert len(caplog.records) == 2 and "no kernels for this machine" in caplog.text


def test_weights_without_a_module(tmp_path):
    model, like = models()
    model.eval()
    like.eval()
    x = torch.randn(6, 4)
    plain = saved(tmp_path / "plain.strata", model, ((x,), {}), training=False)
    full = saved(tmp_path / "full.strata", model, ((x,), {}), training=False, weights=True)
    save_file(dict(model.state_dict()), tmp_path / "weights.safetensors")
    with torch.no_grad():
        expected = like(x)["y"]
        for program in (
            torchstrata.load(full),
            torchstrata.load(plain, weights=tmp_path / "weights.safetensors"),
            torchstrata.load(
                plain, weights=dict(model.named_parameters()) | dict(model.named_buffers())
            ),
        ):
            torch.testing.assert_close(program(x)["y"], expected)
    with pytest.raises(UsageError, match="has no weights"):
        torchstrata.load(plain)
    state = {name: t for name, t in model.state_dict().items() if name != "shift"}
    with pytest.raises(UsageError, match="missing weights: shift"):
        torchstrata.load(plain, weights=state)


@pytest.mark.parametrize(
    "other, message",
    [
        (lambda: Model(scale=4), r"model.scale was 3, now 4"),
        (lambda: Model().double(), "dtype was torch.float32, now torch.float64"),
        (lambda: nn.Linear(4, 4), "missing weights"),
    ],
)
def test_another_model_is_refused(tmp_path, other, message):
    path = saved(tmp_path / "model.strata", Model(), ((torch.randn(6, 4),), {}))
    with pytest.raises(UsageError, match=message):
        torchstrata.load(path, other())


def test_parameters_are_checked_at_each_call(tmp_path):
    path = saved(tmp_path / "model.strata", Model(), ((torch.randn(6, 4),), {}))
    model = Model()
    program = torchstrata.load(path, model)
    model.linear.weight = nn.Parameter(torch.randn(4, 4))
    program(torch.randn(6, 4))
    model.linear.weight = nn.Parameter(torch.randn(8, 4))
    with pytest.raises(UsageError, match=r"linear.weight.size\(0\) was 4, now 8"):
        program(torch.randn(6, 4))


def test_modes_are_checked_at_each_call(tmp_path):
    x = torch.randn(6, 4)
    compiled = torchstrata.compile(models()[0])
    compiled.precompile(x)
    compiled.eval()
    compiled.precompile(x)
    torchstrata.save(compiled, tmp_path / "model.strata")
    model, like = models()
    program = torchstrata.load(tmp_path / "model.strata", model)
    check_step(program, model, like, x)
    model.eval(), like.eval()
    check_step(program, model, like, x)
    path = saved(tmp_path / "training.strata", models()[0], ((x,), {}))
    with pytest.raises(UsageError, match=r"norm(.*)training was True, now False"):
        torchstrata.load(path, model)(x)


class Tied(nn.Module):
    def __init__(self, tie):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        if tie:
            self.last.weight = self.first.weight

    def forward(self, x):
        return self.last(self.first(x).relu())


def test_tensors_that_were_one_must_be_one(tmp_path):
    compiled, x = torchstrata.compile(Tied(True)), torch.randn(2, 4)
    compiled.precompile(x)
    torchstrata.save(compiled, tmp_path / "tied.strata")
    model = Tied(True)
    torch.testing.assert_close(torchstrata.load(tmp_path / "tied.strata", model)(x), model(x))
    with pytest.raises(UsageError, match="last.weight and first.weight were one tensor"):
        torchstrata.load(tmp_path / "tied.strata", Tied(False))


OUTSIDE = torch.ones(4)


def breaks(x):
    y = x + 1
    print("a break")
    return y * 2


def reads_a_tensor_from_outside(x):
    return x + OUTSIDE


def depends_on_a_size(x):
    return x + 1, x.shape[0]


def draws(x):
    return x + torch.rand(4, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "function, message",
    [
        (breaks, r'line \d+, in breaks'),
        (reads_a_tensor_from_outside, r"OUTSIDE(.|\n)*line \d+, in reads_a_tensor"),
        (depends_on_a_size, "may depend on a symbolic size"),
        (draws, "needs Python between its graphs"),
    ],
)  # fmt: skip
def test_what_no_file_can_hold_is_named(function, message):
    x = torch.randn(3, 4)
    torchstrata.mark_dynamic(x, 0)
    with pytest.raises((UsageError, bytecode_dynamo.Unsupported), match=message):
        torchstrata.compile(function).precompile(x)


def test_usage_errors(tmp_path):
    with pytest.raises(UsageError, match="call compiled.precompile"):
        torchstrata.save(torchstrata.compile(breaks), tmp_path / "x.strata")
    with pytest.raises(UsageError, match="takes what compile"):
        torchstrata.save(breaks, tmp_path / "x.strata")
    with pytest.raises(ArtifactError, match="No such file"):
        torchstrata.load(tmp_path / "x.strata")
    compiled = torchstrata.compile(lambda x: x + 1)
    compiled.precompile(torch.ones(2))
    with pytest.raises(ArtifactError, match="can't write"):
        torchstrata.save(compiled, tmp_path / "none" / "x.strata")


def test_a_failed_save_leaves_the_file(tmp_path, monkeypatch):
    path = saved(tmp_path / "model.strata", Model(), ((torch.randn(6, 4),), {}))
    before = path.read_bytes()
    compiled = torchstrata.compile(Model())
    compiled.precompile(torch.randn(2, 4))

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "writestr", full)
    with pytest.raises(ArtifactError, match="No space left"):
        torchstrata.save(compiled, path)
    assert path.read_bytes() == before and len(os.listdir(tmp_path)) == 1


def test_damaged_files(tmp_path):
    x = torch.randn(6, 4)
    path = saved(tmp_path / "model.strata", models()[0], ((x,), {}))
    whole = path.read_bytes()
    draw = random.Random(1)
    broken = tmp_path / "broken.strata"
    for round in range(1000):
        data = bytearray(whole)
        if round % 10 == 0:
            data = data[: draw.randrange(len(data))]
        else:
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        broken.write_bytes(data)
        broken.chmod(stat.S_IRUSR | stat.S_IWUSR)
        model, like = models()
        try:
            program = torchstrata.load(broken, model)
        except ArtifactError:
            continue
        check_step(program, model, like, x)  # the flip is in what nobody reads


def test_newer_versions_and_swapped_parts(tmp_path):
    path = saved(tmp_path / "model.strata", Model(), ((torch.randn(6, 4),), {}))
    archive = read_archive(path, trust=True)
    newer = tmp_path / "newer.strata"
    write_archive(newer, {**contents(path)[0]}, dict(archive.parts))
    with zipfile.ZipFile(newer) as bundle:
        members = {name: bundle.read(name) for name in bundle.namelist()}
    text = members["manifest.json"].replace(b'"version": 1', b'"version": 99')
    rewrite(newer, members | {"manifest.json": text})
    with pytest.raises(ArtifactError, match="not what its hash says"):
        torchstrata.load(newer, Model())
    digest = __import__("hashlib").sha256(text).hexdigest().encode()
    rewrite(newer, members | {"manifest.json": text, "manifest.sha256": digest})
    with pytest.raises(ArtifactError, match="of version 99"):
        torchstrata.load(newer, Model())
    forward, backward = members["0/forward.json"], members["0/backward.json"]
    rewrite(newer, members | {"0/forward.json": backward, "0/backward.json": forward})
    with pytest.raises(ArtifactError, match="0/.*.json is not what its hash says"):
        torchstrata.load(newer, Model())


@pytest.mark.parametrize("damage", ["signature", "need", "torch", "calls", "program"])
def test_complete_files_of_another_form(tmp_path, damage):
    path = saved(tmp_path / "model.strata", Model(), ((torch.randn(6, 4),), {}))
    head, parts = contents(path)
    if damage == "signature":
        del head["signatures"][0]["signature"]["inputs"]
    elif damage == "need":
        head["signatures"][0]["signature"]["arguments"][0][1] = "Need(1)"
    elif damage == "torch":
        del head["torch"]
    else:
        parts["0/calls.json" if damage == "calls" else "0/forward.json"] = b"{"
    write_archive(path, head, parts)
    with pytest.raises(ArtifactError, match="can't be read"):
        torchstrata.load(path, Model())(torch.randn(6, 4))


def rewrite(path, members):
    """A zip file with these members."""
    with zipfile.ZipFile(path, "w") as bundle:
        for name, data in members.items():
            bundle.writestr(name, data)


def test_the_file_names_no_place_of_the_machine(tmp_path):
    path = saved(tmp_path / "model.strata", Model(), ((torch.randn(6, 4),), {}), dynamic=[0])
    for name, data in contents(path)[1].items():
        if not name.startswith("artifacts/"):
            for place in (str(tmp_path), os.path.dirname(__file__), os.path.expanduser("~/")):
                assert place.encode() not in data, name


def test_gradients_twice_and_other_layouts_are_compiled_when_asked_for(tmp_path):
    class Cubes(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.tensor([1.0, 2.0]))

        def forward(self, x, y):
            x.add_(1)
            return (self.weight**3 * x * y).sum()

    model = Cubes()
    path = saved(tmp_path / "cubes.strata", model, ((torch.ones(2), torch.ones(2)), {}))
    program = torchstrata.load(path, model)
    x, y = torch.ones(2), torch.full((2,), 3.0)
    (gradient,) = torch.autograd.grad(program(x, y), model.weight, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), model.weight)
    torch.testing.assert_close(second, 6 * model.weight.detach() * 2 * 3)
    shared = torch.ones(3)
    result = program(shared[:2], shared[1:])
    same = torch.ones(3)
    torch.testing.assert_close(result, model(same[:2], same[1:]))
    torch.testing.assert_close(shared, same)
