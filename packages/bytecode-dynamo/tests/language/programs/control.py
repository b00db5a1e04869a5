# ruff: noqa
"""Exceptions, context managers, pattern matching, assertions."""

import contextlib
import warnings

import torch


def try_except(x):
    try:
        raise ValueError("a", 1)
    except (KeyError, ValueError) as error:
        return x + error.args[1], str(error), repr(error)


def try_else_finally(x, log):
    try:
        log.append("try")
        x = x + 1
    except ValueError:
        log.append("except")
    else:
        log.append("else")
        x = x * 2
    finally:
        log.append("finally")
    return x


def finally_with_return(x, log):
    def f():
        try:
            return log.append("try") or x
        finally:
            log.append("finally")

    return f() + 1


def finally_overrides_return(x):
    def f():
        for _ in range(2):
            try:
                return 1
            finally:
                continue
        return 5

    return x + f()


def nested_handlers(x, log):
    try:
        try:
            {}["k"]
        except KeyError as error:
            log.append(repr(error))
            raise RuntimeError("outer") from error
        finally:
            log.append("inner finally")
    except RuntimeError as error:
        log.append((str(error), type(error.__cause__).__name__, type(error.__context__).__name__))
    return x + 1


def implicit_context(x):
    try:
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError("second")
    except ValueError as error:
        return x + 1, repr(error.__context__), error.__cause__, error.__suppress_context__


def raise_from_none(x):
    try:
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError("second") from None
    except ValueError as error:
        return x + 1, error.__cause__, error.__suppress_context__


def reraise(x, log):
    def f():
        try:
            raise ValueError("v")
        except ValueError:
            log.append("seen")
            raise

    try:
        f()
    except ValueError as error:
        return x + 1, error.args


class Custom(Exception):
    def __init__(self, code, **extra):
        super().__init__(f"code {code}")
        self.code = code
        self.extra = extra

    def __str__(self):
        return f"<{self.code}>"


class Plain(ValueError):
    pass


def custom_exceptions(x):
    try:
        raise Custom(5, a=1)
    except Custom as error:
        return x + error.code, str(error), error.args, error.extra, isinstance(error, Exception)


def exception_class_raised(x):
    try:
        raise Plain
    except ValueError as error:
        return x + 1, type(error).__name__, error.args


def exception_attributes(x):
    error = Plain("a", 2)
    error.note = x
    error.add_note("note")
    return error.note + 1, error.args, error.__notes__, error


def exception_from_builtins(x):
    out = []
    for f in (
        lambda: int("z"), lambda: 1 / 0, lambda: "a" + 1, lambda: [].x, lambda: None(), lambda: {}["a"], lambda: undefined,
        lambda: 1 < "a", lambda: len(5), lambda: next(iter([])), lambda: (1).real.foo, lambda: "a".index("z"), lambda: -"a", lambda: 5[0],
        lambda: iter(3), lambda: [1, 2]["x"], lambda: {}.missing, lambda: "{}".format(), lambda: float("q"), lambda: [] < {}, lambda: set([[]]),
    ):  # fmt: skip
        try:
            f()
        except Exception as error:
            out.append((type(error).__name__, str(error)))
    return x + len(out), out


exception_from_builtins.any_graphs = True


def exception_leaves(x, log):
    y = x + 1
    log.append(y)
    raise Custom(3, y=y)


def exception_leaves_inner(x, log):
    def inner(t):
        log.append("inner")
        raise Plain("deep")

    try:
        return inner(x * 2)
    finally:
        log.append("finally")


def exception_from_torch_is_caught(x):
    try:
        return x @ torch.ones(7, 7)
    except RuntimeError:
        return x + 1


exception_from_torch_is_caught.any_graphs = True


def variable_is_unbound_after_except(x):
    try:
        raise ValueError
    except ValueError as error:
        kept = error
    try:
        error
    except UnboundLocalError:
        return x + 1, type(kept).__name__


def exception_in_loop(x):
    total = 0
    for i in range(5):
        try:
            if i == 3:
                break
            if i % 2:
                raise ValueError(i)
            total += i
        except ValueError as error:
            total += error.args[0] * 10
            continue
        finally:
            total += 100
    return x + total


def deep_exception(x):
    def f(n):
        if n == 0:
            raise KeyError("bottom")
        try:
            return f(n - 1)
        finally:
            out.append(n)

    out = []
    try:
        f(3)
    except KeyError:
        return x + len(out), out


def exception_groups(x, log):
    try:
        raise ExceptionGroup("many", [ValueError(1), TypeError("t"), KeyError("k")])
    except* ValueError as group:
        log.append([repr(e) for e in group.exceptions])
    except* (TypeError, KeyError) as group:
        log.append([repr(e) for e in group.exceptions])
    return x + len(log)


exception_groups.any_graphs = True


def exception_group_of_plain(x, log):
    try:
        raise ValueError("single")
    except* ValueError as group:
        log.append(len(group.exceptions))
    return x + 1


exception_group_of_plain.any_graphs = True


def stop_iteration_value(x):
    try:
        raise StopIteration(5)
    except StopIteration as stop:
        return x + stop.value


def assertions(x):
    assert x.dim() == 2, "two dimensions"
    assert isinstance(x, torch.Tensor)
    try:
        assert x.shape[0] == 7, f"shape {x.shape[0]}"
    except AssertionError as error:
        return x + 1, str(error)


class Manager:
    def __init__(self, log, name, swallow=False):
        self.log, self.name, self.swallow = log, name, swallow

    def __enter__(self):
        self.log.append(f"enter {self.name}")
        return self

    def __exit__(self, kind, value, traceback):
        self.log.append((f"exit {self.name}", kind.__name__ if kind else None, str(value)))
        return self.swallow


def user_manager(x, log):
    with Manager(log, "a") as a, Manager(log, "b"):
        x = x + len(a.name)
    return x


def manager_swallows(x, log):
    with Manager(log, "s", True):
        raise ValueError("gone")
    return x + 1


def manager_does_not_swallow(x, log):
    try:
        with Manager(log, "s"):
            raise ValueError("stays")
    except ValueError:
        return x + 1


def manager_with_return(x, log):
    def f():
        with Manager(log, "r"):
            return 5

    return x + f()


def manager_with_break(x, log):
    for i in range(3):
        with Manager(log, str(i)):
            if i == 1:
                break
            continue
    return x + i


@contextlib.contextmanager
def _tag(log, name):
    log.append(f"+{name}")
    try:
        yield name * 2
    except ValueError as error:
        log.append(f"caught {error}")
    finally:
        log.append(f"-{name}")


def generator_manager(x, log):
    with _tag(log, "a") as value:
        log.append(value)
        x = x + 1
    return x


def generator_manager_catches(x, log):
    with _tag(log, "a"):
        raise ValueError("inside")
    return x + 1


def generator_manager_passes_on(x, log):
    try:
        with _tag(log, "a"):
            raise KeyError("k")
    except KeyError:
        return x + 1


def generator_manager_as_decorator(x, log):
    @_tag(log, "d")
    def f(t):
        log.append("body")
        return t * 2

    return f(x)


def suppress(x):
    with contextlib.suppress(KeyError, ValueError):
        {}["a"]
    return x + 1


def null_context_and_closing(x, log):
    class Thing:
        def close(self):
            log.append("closed")

    with contextlib.nullcontext(5) as five, contextlib.closing(Thing()):
        x = x + five
    return x


null_context_and_closing.any_graphs = True


def exit_stack(x, log):
    with contextlib.ExitStack() as stack:
        for name in "ab":
            stack.enter_context(Manager(log, name))
        stack.callback(log.append, "callback")
        x = x + 1
    return x


class Deco(contextlib.ContextDecorator):
    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False


@Deco()
def _in_deco(x):
    return x * 3


def context_decorator(x):
    return _in_deco(x)


def grad_modes(x):
    w = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        a = x * w
    with torch.no_grad(), torch.enable_grad():
        b = x * w
    with torch.set_grad_enabled(False):
        c = x * w
    return a.requires_grad, b.requires_grad, c.requires_grad, a, torch.is_grad_enabled()


def inference_mode(x):
    with torch.inference_mode():
        y = x + 1
    return y.sum() * 1


inference_mode.any_graphs = True


@torch.no_grad()
def _no_grad(x):
    return x * 2


def grad_mode_decorator(x):
    return _no_grad(x), torch.is_grad_enabled()


def autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x.T
        with torch.autocast("cpu", enabled=False):
            z = x @ x.T
    return y, z, torch.is_autocast_enabled("cpu")


def profiler_ranges(x):
    with torch.profiler.record_function("named"):
        x = x + 1
    with torch.autograd.profiler.record_function("other"):
        return x * 2


def grad_mode_in_try(x):
    try:
        with torch.no_grad():
            raise ValueError
    except ValueError:
        return x + 1, torch.is_grad_enabled()


def warnings_inside(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = x + 1
    return x


warnings_inside.any_graphs = True


def match_literals(x):
    out = []
    for value in (1, "a", None, True, 2.5, -1, (1,)):
        match value:
            case 1 | 2:
                out.append("number")
            case "a":
                out.append("text")
            case None:
                out.append("none")
            case float(f) if f > 2:
                out.append(f)
            case -1:
                out.append("minus")
            case _:
                out.append("other")
    return x + len(out), out


def match_sequences(x):
    def f(v):
        match v:
            case []:
                return "empty"
            case [a]:
                return a
            case [a, b, *rest] if rest:
                return a, b, rest
            case (a, [b, c]) | (a, b, c):
                return a + b + c
            case [_, _]:
                return "two"
            case str():
                return "str"
            case _:
                return None

    return x + 1, [f(v) for v in ([], [1], [1, 2, 3, 4], (1, [2, 3]), (1, 2), "ab", 5, range(2))]


def match_mappings(x):
    def f(v):
        match v:
            case {"kind": "a", "value": n}:
                return n
            case {"kind": str(k), **rest}:
                return k, rest
            case {}:
                return "any"

    return x + f({"kind": "a", "value": 2}), f({"kind": "b", "z": 1}), f({1: 2}), f([])


class P:
    __match_args__ = ("a", "b")

    def __init__(self, a, b):
        self.a, self.b = a, b


def match_classes(x):
    def f(v):
        match v:
            case P(0, b):
                return "zero", b
            case P(a=int() as n, b=P(_, c)):
                return n, c
            case P(a, b=_):
                return a
            case int() | float():
                return "number"
            case torch.Tensor():
                return "tensor"
            case {"p": P(a=1)}:
                return "in dict"

    return x + 1, [
        f(v) for v in (P(0, 1), P(1, P(2, 3)), P("s", 1), 3, 2.5, x, {"p": P(1, 2)}, "none")
    ]


class Consts:
    ONE = 1


def match_values(x):
    match x.dim():
        case Consts.ONE:
            return x
        case n if n == 2:
            return x + n


def while_with_exceptions(x):
    n = 0
    while True:
        try:
            n += 1
            if n > 3:
                raise StopIteration
        except StopIteration:
            break
    return x + n


def exception_in_comprehension(x):
    def f(v):
        if v == 2:
            raise ValueError(v)
        return v

    try:
        return [f(v) for v in range(4)]
    except ValueError as error:
        return x + error.args[0]


def exception_in_property_and_init(x):
    class Bad:
        def __init__(self):
            raise TypeError("init")

        @property
        def p(self):
            raise KeyError("prop")

    out = []
    try:
        Bad()
    except TypeError as error:
        out.append(str(error))
    try:
        object.__new__(Bad).p
    except KeyError as error:
        out.append(str(error))
    return x + 1, out


exception_in_property_and_init.any_graphs = True


def unwinding_order(x, log):
    class M(Manager):
        def __exit__(self, *error):
            super().__exit__(*error)
            if self.name == "b":
                raise TypeError("from exit")

    try:
        with M(log, "a"), M(log, "b"):
            raise ValueError("body")
    except TypeError as error:
        return x + 1, str(error), repr(error.__context__)


unwinding_order.any_graphs = True


def base_exceptions(x):
    try:
        raise KeyboardInterrupt("stop")
    except BaseException as error:
        return x + 1, type(error).__name__


def error_with_traceback(x):
    try:
        raise ValueError("t")
    except ValueError as error:
        again = error.with_traceback(None)
        return x + 1, again is error


def import_inside(x):
    import math
    from os.path import join as j

    return x + math.floor(2.5), j("a", "b")


def import_error_caught(x):
    try:
        import no_such_module_at_all
    except ImportError as error:
        return x + 1, type(error).__name__


import_error_caught.any_graphs = True


def group_of_exceptions(x):
    try:
        raise ExceptionGroup("g", [ValueError(1), TypeError(2)])
    except ExceptionGroup as error:
        return x + len(error.exceptions), error.message


class Watching:
    def __enter__(self):
        return self

    def __exit__(self, cls, value, traceback):
        self.seen = cls is ValueError, traceback is not None, traceback is value.__traceback__
        return True


def tracebacks(x):
    with Watching() as w:
        raise ValueError(1)
    return x + 1, w.seen


class Odd:
    def __eq__(self, other):
        return isinstance(other, Odd)

    def __hash__(self):
        return 1


def not_equal_by_equal(x):
    return Odd() != Odd(), Odd() != 3, Odd() == Odd(), x + 1


def comprehension_variable_named_like_a_free_one(x):
    c, seen = 0, []

    def count(t=x):
        nonlocal c
        c += 1
        seen.append([c for c in (1, 2)])
        print("between", end="")
        seen.append([c for c in (3, 4) if print("within", end="") is None])
        return t * 2 + c

    y = count()
    if y.sum() > 0:
        y = y + count()
    return y, seen, c


comprehension_variable_named_like_a_free_one.any_graphs = True


def except_without_a_class(x):
    try:
        try:
            raise KeyError(1)
        except (KeyboardInterrupt, 3):
            return x
    except TypeError as error:
        return x + 1, str(error), repr(error.__context__)
