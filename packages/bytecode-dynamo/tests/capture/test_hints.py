"""What the message of a break says to try fits the call that broke."""

from __future__ import annotations

import contextlib
import copy
import datetime
import random

import bytecode_dynamo as bd
import pytest
import torch

X = torch.tensor([1.0, 2.0, 3.0])


def of_eval(x):
    return eval("x + 1", {"x": x})


SEEN = []


def of_import(x):
    SEEN.append(1)
    import this_is_not_loaded  # pyright: ignore

    return this_is_not_loaded.f(x)


@torch.library.custom_op("hints::without_fake", mutates_args=())
def without_fake(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@pytest.mark.parametrize(
    ("f", "id_", "what", "hint"),
    [
        (lambda x: print("text", x.shape), "BD003", "call of print()", "print outside"),
        (lambda x: open("/nowhere").close(), "BD003", "call of open()", "call open() outside"),
        (of_eval, "BD002", "call of eval()", "call eval() outside"),
        (of_import, "BD002", "this_is_not_loaded", "at the top of the module"),
        (lambda x: x * int(x.sum()), "BD004", "int() of", "capture_scalar_outputs"),
        (lambda x: x * x.sum().item(), "BD004", ".item()", "capture_scalar_outputs"),
        (lambda x: f"{x.sum()}", "BD004", "text of", "its shape and dtype"),
        (lambda x: 2.0 in x, "BD001", "contains", "(tensor == value).any()"),
        (lambda x: 1 if x.sum() > 0 else 2, "BD001", "decides", "torch.where"),
        (lambda x: x.requires_grad_().numpy(), "BD005", ".numpy()", "detach().cpu()"),
        (lambda x: random.Random().random() * x, "BD018", "Random", "give random.Random a seed"),
        (lambda x: x[None, None].H, "BD014", ".H", "mH"),
        (lambda x: without_fake(x), "BD011", "without_fake", "torch.library.register_fake"),
        (
            lambda x: datetime.datetime(2020, 1, 1).timestamp() * x,
            "BD003",
            "time zone",
            "give the time a time zone",
        ),
        (lambda x: copy.deepcopy(x.t().requires_grad_()), "BD002", "a copy of", "copy it outside"),
    ],
)
def test_hint_fits_the_call(f, id_, what, hint):
    stops = []
    with contextlib.suppress(Exception):  # some calls are wrong in eager mode, too
        bd.optimize("eager", on_capture=lambda found: stops.append(found.stop))(f)(X.clone())
    record = stops[0]
    assert record.id == id_ and what in record.reason, record
    assert hint in record.hint, record


def test_a_line_that_calls_itself_is_shown_a_few_times():
    def down(x, n):
        return down(x, n - 1) if n else print(x.shape)

    with pytest.raises(bd.Unsupported) as raised:
        bd.optimize("eager", fullgraph=True)(lambda x: down(x, 9))(X)
    text = str(raised.value)
    assert text.count("in down") == 3
    assert "[the line above 7 more times]" in text
