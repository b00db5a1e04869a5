"""NumPy arrays in captured functions: NumPy's results, types and memory."""

from __future__ import annotations

from typing import Any

import bytecode_dynamo as bd
import numpy as np
import pytest
import torch

TABLE = np.linspace(0, 1, 4).astype(np.float32)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return (
            type(b) is np.ndarray
            and a.dtype == b.dtype
            and a.shape == b.shape
            and np.allclose(a, b, equal_nan=True)
        )
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.allclose(a, b)
    return type(a) is type(b) and (bool(np.isclose(a, b)) if isinstance(a, np.number) else a == b)


def methods(a):
    shape = a.dtype, a.ndim, a.size, len(a), a.shape, a.T.shape
    numbers = a.sum(), a.max(), a.std(), a.argmax(), a.sum(axis=0), a.mean(axis=1, keepdims=True)
    return (
        shape,
        numbers,
        a.astype(np.float32),
        a.astype("int64"),
        a.reshape(4, 3),
        a.flatten(),
        a.transpose(1, 0),
    )


def indexing(a):
    return (
        a[1],
        a[1, 2],
        a[:, ::2],
        a[..., 0],
        a[[0, 2]],
        a[0][1] * 2,
        [row.sum() for row in a],
        a[None].shape,
        a[-1],
    )


def writing(a):
    a[0] = 1
    a += 2
    a[:, 1] *= 3
    b = a.copy()
    b[0, 0] = 9
    return a, b


def arithmetic(a):
    numbers = (
        a + np.float64(1),
        a + np.float32(1),
        a + np.int64(1),
        a / 3,
        a // 2,
        a % 2,
        a**2,
        -a,
        1 - a,
        2**a,
    )
    return numbers, a > 2, a == a, a @ a.T, (a > 2) & (a < 5), ~(a > 2)


def functions(a):
    return (
        *(
            np.dot(a, a.T),
            np.linalg.inv(a[:3, :3] + np.eye(3)),
            np.linalg.norm(a, axis=1),
            np.outer(a[0], a[1]),
        ),
        *(
            np.vstack([a, a]),
            np.split(a, 3),
            np.broadcast_to(a[0], (2, 4)),
            np.tile(a, 2),
            np.meshgrid(a[0], a[1]),
        ),
        *(
            np.sort(a),
            np.cumsum(a, axis=1),
            np.any(a > 3),
            np.var(a),
            np.logical_and(a > 1, a < 4),
            np.minimum(a, 2),
        ),
        *(
            np.where(a > 2, a, -a),
            np.clip(a, 1, 3),
            np.stack([a, a]),
            np.einsum("ij->i", a),
            np.exp(a[0]).sum(),
        ),
    )


def makers(a):
    made = (
        np.zeros_like(a)
        + np.ones(4)
        + np.arange(4)
        + np.full((3, 4), 2.0)
        + np.linspace(0, 1, 4)
        + np.array([1, 2, 3, 4])
    )
    return made, np.zeros((2, 2), dtype=np.float32), np.dtype("float32"), np.eye(2), {"k": a * 2}


@pytest.mark.parametrize(
    "f", (methods, indexing, writing, arithmetic, functions, makers), ids=lambda f: f.__name__
)
@pytest.mark.parametrize("dtype", (np.float64, np.float32))
def test_arrays(f, dtype):
    captured = bd.optimize("eager", fullgraph=True)(f)
    for k in range(2):
        eager_argument, argument = (
            np.arange(k, 12.0 + k, dtype=dtype).reshape(3, 4) for _ in range(2)
        )
        assert same(f(eager_argument), captured(argument))
        assert same(eager_argument, argument)
    assert bd.counters["graphs"] == 1


def test_memory_is_shared():
    def f(x):
        a = x.numpy()
        a += 1
        b = torch.from_numpy(a)
        b.mul_(2)
        return (
            x,
            a,
            b,
            torch.tensor(a),
            torch.as_tensor(a, dtype=torch.float64),
            isinstance(a, np.ndarray),
        )

    x, y = torch.ones(3), torch.ones(3)
    assert same(f(x), bd.optimize("eager", fullgraph=True)(f)(y)) and torch.equal(x, y)


def test_global_tables_and_gradients():
    def f(x):
        return x * torch.from_numpy(np.tanh(x.detach().numpy())) + torch.from_numpy(TABLE)

    captured, x, y = (
        bd.optimize("eager", fullgraph=True)(f),
        *(torch.ones(4, requires_grad=True) for _ in range(2)),
    )
    f(x).sum().backward()
    captured(y).sum().backward()
    assert x.grad is not None and y.grad is not None and torch.equal(x.grad, y.grad)


def test_arrays_of_arrays_and_of_tensors():
    def f(a, t):
        return np.array([a, a + 1]), np.asarray((a,)), np.ones_like(t), np.full_like(t, 2)

    given = np.arange(3.0), torch.ones(2, 3)
    captured = bd.optimize("eager", fullgraph=True)(f)
    for found, expected in zip(captured(*given), f(*given)):
        assert same(found, expected)
    named = bd.optimize("eager")(lambda a, t: (np.array(object=a) + 1, np.ones_like(a=t)))
    for found, expected in zip(named(*given), (given[0] + 1, np.ones((2, 3), np.float32))):
        assert same(found, expected)


BREAKS = {
    "branch": lambda a: a + 1 if a.sum() > 3 else a,
    "mask": lambda a: a[a > 3],
    "nonzero": lambda a: np.nonzero(a),
    "random": lambda a: a + np.random.default_rng(0).random(4),
    "integers": lambda a: a.astype(np.int32) / 2,
    "interp": lambda a: np.interp(a, [0, 4], [1, 3]),
}


@pytest.mark.parametrize("f", BREAKS.values(), ids=BREAKS.keys())
def test_breaks_have_right_results(f):
    captured = bd.optimize("eager")(f)
    for k in range(2):
        array = np.arange(k, 12.0 + k).reshape(3, 4)
        assert same(f(array.copy()), captured(array.copy()))


def test_other_arrays_are_left_alone():
    names = np.array(["a", "b"])
    assert bd.optimize("eager")(lambda x, a: (x + len(a), a))(torch.ones(2), names)[1] is names
