"""Operators that fail when the graph runs: exceptions, tracebacks, effects, modes and random
numbers are eager's.
"""

from __future__ import annotations

import contextlib
import copy
import dis
import gc
import traceback
import weakref

import bytecode_dynamo as bd
import pytest
import torch

I = torch.tensor([0, 7])
NET = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 3))
COUNT = 0


class Wrapped(Exception):
    pass


class Box:
    pass


def basic(x, log):
    log.append("a")
    y = x * 2
    log.append(y)
    z = y[I]
    log.append("b")
    return z


def attributes(x, log):
    global COUNT
    COUNT += 1
    box = Box()
    log.append(box)
    box.h, box.n = x + 1, COUNT
    r = torch.index_select(box.h, 0, I)
    box.n = 4
    return r


def writes(x, log):
    x.add_(1)
    log.append(x * 1)
    y = x[I]
    x.add_(10)
    return y


def overlaps_in_part(x, log):
    flat = x.view(-1)
    flat.add_(1)
    log.append(1)
    return torch.add(flat[:2], 1, out=flat[1:3])


def set_items(x, log):
    log.append(1)
    x[I] = 5.0
    log.append(2)


def handled(x, log):
    for k in range(2):
        log.append(k)
        try:
            x = x + 1
            torch.gather(x, 0, I)
        except (RuntimeError, IndexError) as error:
            log.append((type(error).__name__, str(error)))
        else:
            log.append("else")
        finally:
            log.append("finally")
    return x.sum()


def raised_again(x, log):
    try:
        log.append(0)
        return x[I]
    except IndexError as error:
        log.append(1)
        raise Wrapped("wrapped") from error


def random_numbers(x, log):
    log.append(torch.rand(3))
    log.append(torch.dropout(x, 0.5, True))
    z = x[I]
    log.append(torch.rand(2))
    return z


def under_modes(x, log):
    with torch.autocast("cpu", torch.bfloat16):
        log.append(torch.eye(3) @ torch.eye(3))
        with torch.no_grad():
            return x[I]


def under_inference_mode(x, log):
    with torch.inference_mode():
        log.append(1)
        return x[I]


def after_a_break(x, log):
    with torch.no_grad():
        try:
            y = x + 1
            log.append("one")
            print("hello", y)
            log.append("two")
            z = y[I]
        except IndexError as error:
            log.append(("caught", str(error)))
            z = y * 3
            print("again")
            log.append(z + 1)
        finally:
            log.append("finally")
    return z[I]


def pick(x, log):
    log.append("helper")
    return x[I]


def in_a_callee(x, log):
    log.append("outer")
    r = pick(x * 2, log)
    log.append("after")
    return r


def closures(x, log):
    n = 0

    def step(t):
        nonlocal n
        n += 1
        log.append(n)
        return t[I] if n == 2 else t

    return step(step(x))


def variadic(*args, k=3, **more):
    args[1].append((k, more))
    y = args[0][I]
    args[1].append(2)
    return y


def cell_argument(x, log):
    def inner():
        log.append(x.shape)
        return x[I]

    x = x + 1
    return inner()


def in_a_generator(x, log):
    def items():
        for k in range(3):
            log.append(k)
            yield x[I].sum() if k == 1 else x

    total = x
    for item in items():
        total = total + item
    return total


def loss(x, log):
    log.append(1)
    value = torch.nn.functional.cross_entropy(x[None], torch.tensor([9]))
    log.append(2)
    return value


def singular(x, log):
    log.append(1)
    return torch.linalg.inv(x.outer(x) * 0)


def integers(x, log):
    log.append(1)
    return x.long() // x.long()


def module_state(x, log):
    y = NET(x.expand(2, 3).clone())
    log.append(NET[0].running_mean.clone())
    return y[:, I]


def gradients(x, log):
    w = torch.ones(3, requires_grad=True)
    (w * x).sum().backward()
    log.append(w.grad)
    return w[I]


PROGRAMS = [
    basic, attributes, writes, overlaps_in_part, set_items, handled, raised_again, random_numbers,
    under_modes,
    under_inference_mode, after_a_break, in_a_callee, closures, variadic, cell_argument,
    in_a_generator, loss, singular,
    integers, module_state, gradients,
]  # fmt: skip


def modes():
    nesting = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    return (
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_inference_mode_enabled(),
        nesting,
    )


def everything(call, state):
    global COUNT
    COUNT = 0
    NET.load_state_dict(state)
    torch.manual_seed(0)
    x, log = torch.arange(3.0), []
    try:
        result = call(x, log)
    except Exception as error:
        frames = [
            (frame.name, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)
        ][1:]
        result = (type(error), str(error), frames, repr(error.__context__), repr(error.__cause__))
    log = [vars(item) if isinstance(item, Box) else item for item in log]
    return repr((result, x, log, modes(), torch.rand(1), COUNT, NET.state_dict()))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_failing_operator(program, capsys):
    state = copy.deepcopy(NET.state_dict())
    expected = everything(program, state)
    captured = bd.optimize("eager", on_error="error")(program)
    assert [everything(captured, state) for _ in range(2)] == [expected] * 2
    assert bd.counters["reruns"] >= 2
    NET.load_state_dict(state)


def functional(gm, example_inputs):
    """Writes to inputs are made at the end, as a compiler of functional graphs makes them."""

    def run(*inputs):
        copies = [value.clone() for value in inputs]
        outputs = gm.forward(*copies)
        for value, copied in zip(inputs, copies):
            value.copy_(copied)
        return outputs

    return run


def test_backend_that_writes_at_the_end():
    for program in (basic, writes, set_items):
        state = copy.deepcopy(NET.state_dict())
        assert everything(bd.optimize(functional)(program), state) == everything(program, state)


def test_large_tensor_is_written_once():
    def f(x, log):
        log.append("before")
        x.add_(1)
        return x[I + x.shape[0]]

    x, log = torch.zeros(5000), []
    with pytest.raises(IndexError):
        bd.optimize("eager")(f)(x, log)
    # what was written can't be undone, so the graph's own exception is raised
    assert x.eq(1).all() and log == []


def test_function_of_the_program_is_called_once():
    calls = []

    @bd.allow_in_graph
    def counted(x):
        calls.append(type(x))
        return x[I]

    with pytest.raises(IndexError):
        bd.optimize("eager")(lambda x: counted(x + 1))(torch.ones(3))
    assert calls.count(torch.Tensor) == 1


@torch.library.custom_op("failing_graphs::check", mutates_args=())
def check(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        raise Wrapped("refused")
    return x.clone()


@check.register_fake
def _(x):
    return torch.empty_like(x)


def test_exception_of_a_custom_operator():
    def f(x, log):
        log.append(1)
        return check(x)

    log = []
    with pytest.raises(Wrapped, match="refused"):
        bd.optimize("eager", fullgraph=True)(f)(torch.ones(3), log)
    assert log == [1]


def test_exceptions_that_a_backend_defines_are_its_own():
    def backend(gm, example_inputs):
        def run(*inputs):
            raise Wrapped("no compiler")

        return run

    log = []
    with pytest.raises(Wrapped, match="no compiler"):
        bd.optimize(backend)(basic)(torch.ones(3), log)
    assert log == []


def raising_backend(gm, example_inputs):
    def run(*inputs):
        raise RuntimeError("no such kernel")

    return run


def test_failure_of_the_backend_alone_is_reported():
    def f(x, log):
        log.append(1)
        return x + 1

    log = []
    with pytest.warns(
        UserWarning, match=r"\.f \(.*RuntimeError: no such kernel; eager mode does not"
    ):
        assert bd.optimize(raising_backend, on_error="eager")(f)(torch.ones(3), log).eq(2).all()
    assert log == [1] and bd.counters["fallbacks"] == 1
    with pytest.raises(RuntimeError, match="no such kernel"):
        bd.optimize(raising_backend, on_error="error")(f)(torch.ones(3), [])


def test_interrupts_and_errors_of_capture_are_not_run_again():
    class Stop(BaseException):
        pass

    def stopping(gm, example_inputs):
        def run(*inputs):
            raise Stop

        return run

    log = []
    with pytest.raises(Stop):
        bd.optimize(stopping)(basic)(torch.ones(3), log)
    with pytest.raises(bd.exc.BackendCompilerFailed):
        bd.optimize(lambda gm, inputs: lambda *args: 3)(basic)(torch.ones(3), log)
    assert log == [] and not bd.counters["reruns"]


def test_nothing_of_a_failed_call_stays_alive():
    captured = bd.optimize("eager")(basic)
    with contextlib.suppress(IndexError):
        captured(torch.arange(3.0), [])
    gc.collect()
    gc.disable()
    try:
        x = torch.arange(3.0)
        gone = weakref.ref(x)
        with contextlib.suppress(IndexError):
            captured(x, [])
        del x
        assert gone() is None
    finally:
        gc.enable()


def test_calls_after_a_failure_run_the_graph():
    captured = bd.optimize("eager")(lambda x, i: (x * 2)[i])
    x = torch.arange(3.0)
    with pytest.raises(IndexError):
        captured(x, torch.tensor([5]))
    assert torch.equal(captured(x, torch.tensor([1])), torch.tensor([2.0]))
    assert bd.counters["graphs"] == 1 and bd.counters["reruns"] == 1


def test_write_that_fails_while_capturing_is_none_of_the_graph():
    def f(x, i, log):
        log.append("before")
        y = x[i]
        x += y

    log: list[str] = []
    with pytest.raises(IndexError):
        bd.optimize("eager")(f)(torch.ones(3), torch.full((7,), 9), log)
    assert log == ["before"] and bd.counters["reruns"] == 1


# CPython's own instructions without a line: they set a frame up, or clean up after a handler.
LINELESS = {
    "MAKE_CELL", "COPY_FREE_VARS", "PUSH_EXC_INFO", "POP_EXCEPT", "COPY", "RERAISE", "LOAD_CONST",
    "STORE_FAST", "DELETE_FAST",
    "NOP", "JUMP_FORWARD", "POP_TOP", "SWAP", "STORE_DEREF", "DELETE_DEREF",
    "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_BACKWARD",
    "RETURN_CONST", "EXTENDED_ARG", "CACHE",
}  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_generated_instructions_have_lines(program, capsys):
    state = copy.deepcopy(NET.state_dict())
    captured = bd.optimize("eager")(program)
    everything(captured, state)
    for entry in captured.region.entries(program.__code__):
        lines = [position[0] for position in entry.code.co_positions()]
        bare = {
            item.opname
            for item in dis.get_instructions(entry.code)
            if lines[item.offset // 2] is None
        }
        assert bare <= LINELESS
