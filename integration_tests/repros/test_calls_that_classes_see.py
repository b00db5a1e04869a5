"""What a compiled call does for itself is nothing that ``__torch_function__`` sees."""

from __future__ import annotations

import pytest
import torch
import torchstrata
from torch.overrides import TorchFunctionMode


class Recorded(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        seen.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


class Recording(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


seen: list[str] = []


def program(x, y):
    return (x + y).sin()


@pytest.mark.parametrize("by_mode", [False, True], ids=["class", "mode"])
def test_calls_that_are_seen(by_mode):
    torchstrata.reset()
    x = torch.ones(2) if by_mode else torch.ones(2).as_subclass(Recorded)
    y = torch.ones(2)
    found = []
    for call in (program, torchstrata.compile(program)):
        for _ in range(2):
            seen.clear()
            if by_mode:
                with Recording():
                    call(x, y)
            else:
                call(x, y)
            found.append(list(seen))
    assert found == [["add", "sin"]] * 4
