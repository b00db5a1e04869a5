"""Functions to split: each takes `log` (appends and returns its argument) and a small number."""

# ruff: noqa
import contextlib


class Manager:
    def __init__(self, log, name, suppress=False, fail_exit=False, fail_enter=False):
        self.log, self.name, self.suppress = log, name, suppress
        self.fail_exit, self.fail_enter = fail_exit, fail_enter

    def __enter__(self):
        self.log(("enter", self.name))
        if self.fail_enter:
            raise RuntimeError("enter")
        return self

    def __exit__(self, kind, value, trace):
        self.log(("exit", self.name, kind and kind.__name__, value and value.args))
        if self.fail_exit:
            raise KeyError("exit")
        return self.suppress


def check(n, bad):
    if n == bad:
        raise ValueError(n)
    return n


def f_simple(log, n):
    a = log(n)
    b = log(a + 1)
    return a * b


def f_for(log, n):
    total = 0
    for i in range(n):
        total += log(i)
    return total


def f_for_else(log, n):
    for i in range(4):
        if log(i) == n:
            break
    else:
        return "none"
    return i


def f_for_continue(log, n):
    out = []
    for i in range(6):
        if i % 2 == n % 2:
            continue
        out.append(log(i))
    return out


def f_nested_for(log, n):
    out = []
    for i in range(n):
        for j in range(i):
            out.append(log((i, j)))
            if j > 1:
                break
    return out


def f_triple_for(log, n):
    t = 0
    for i in range(n):
        for j in range(2):
            for k in [1, 2]:
                t += log(i * j + k)
    return t


def f_while(log, n):
    while log(n) > 0:
        n -= 1
    return n


def f_while_else(log, n):
    k = 0
    while k < 3:
        k += 1
        if log(k) == n:
            break
    else:
        log("else")
    return k


def f_while_true(log, n):
    while True:
        n += 1
        if log(n) > 4:
            return n


def f_with(log, n):
    with Manager(log, "a") as m:
        x = check(log(n), 1)
    return x, m.name


def f_with_suppress(log, n):
    x = "unset"
    with Manager(log, "a", suppress=True):
        x = check(log(n), 1)
        log("after")
    return x


def f_with_two(log, n):
    with Manager(log, "a", suppress=n > 2) as a, Manager(log, "b") as b:
        check(n, log(2))
        check(n, log(3))
    return a.name + b.name


def f_with_nested(log, n):
    with Manager(log, "a"):
        with Manager(log, "b", suppress=True):
            check(n, 1)
            log("in b")
        check(n, 2)
        log("in a")
    return log("out")


def f_with_return(log, n):
    with Manager(log, "a"):
        if log(n) == 1:
            return log("early")
        log("late")
    return 0


def f_with_in_loop(log, n):
    for i in range(3):
        with Manager(log, i, suppress=True):
            check(i, n)
            log("ok")
            if i == 1:
                continue
            log("end")
    return i


def f_with_break(log, n):
    for i in range(3):
        with Manager(log, i):
            if log(i) == n:
                break
    else:
        log("no break")
    return i


def f_with_fail_exit(log, n):
    with Manager(log, "a", suppress=True):
        with Manager(log, "b", fail_exit=n > 1):
            check(log(n), 3)
    return n


def f_with_fail_enter(log, n):
    with Manager(log, "a", suppress=n > 1):
        with Manager(log, "b", fail_enter=n > 0):
            log("inside")
    return n


def f_with_try_for(log, n):
    out = []
    for i in range(3):
        with Manager(log, i):
            try:
                out.append(check(log(i), n))
            except ValueError as e:
                out.append(log(e.args))
            finally:
                log("finally")
    return out


def f_try_for_with(log, n):
    try:
        for i in range(3):
            with Manager(log, i):
                check(log(i), n)
    except ValueError as e:
        return log(("caught", e.args))
    else:
        return log("else")
    finally:
        log("finally")


class Holder:
    def __init__(self, log):
        log("holder")


def f_with_target(log, n):
    with Manager(log, "a") as Holder(log).x:
        log(n)
    return n


def f_exitstack(log, n):
    with contextlib.ExitStack() as stack:
        for i in range(n):
            stack.enter_context(Manager(log, i))
        check(log(n), 2)
    return n


def f_contextmanager(log, n):
    @contextlib.contextmanager
    def managed(x):
        log("before")
        try:
            yield log(x)
        except ValueError as e:
            log(e.args)
        finally:
            log("after")

    with managed(n) as v:
        check(v, 1)
        log("body")
    return v


def f_try_except(log, n):
    try:
        check(log(n), 1)
    except ValueError:
        return log("caught")
    return log("fine")


def f_try_except_as(log, n):
    try:
        check(log(n), 1)
    except ValueError as e:
        x = log(e.args)
    else:
        x = log("else")
    return x


def f_except_name_deleted(log, n):
    e = "before"
    try:
        check(n, 1)
    except ValueError as e:
        log(type(e).__name__)
    try:
        return log(e)
    except UnboundLocalError as error:
        return log(type(error).__name__)


def f_except_multiple(log, n):
    try:
        if n == 0:
            {}["k"]
        elif n == 1:
            int("x")
        elif n == 2:
            [][1]
        log("none")
    except KeyError as e:
        log(("key", e.args))
    except (ValueError, TypeError) as e:
        log(("value", type(e).__name__))
    except:
        log("bare")
        raise
    finally:
        log("finally")
    return log(n)


def f_except_reraise(log, n):
    try:
        check(log(n), 1)
    except ValueError:
        log("handling")
        log("more")
        raise


def f_except_raise_from(log, n):
    try:
        check(log(n), 1)
    except ValueError as e:
        log("handling")
        raise KeyError(log("new")) from e


def f_except_context(log, n):
    try:
        check(n, 1)
    except ValueError:
        log("handling")
        raise RuntimeError(log("second"))
    return log(n)


def f_except_raise_none(log, n):
    try:
        check(n, 2)
    except ValueError:
        raise RuntimeError(log("x")) from None
    return n


def f_exc_info_seen(log, n):
    import sys

    log(sys.exc_info()[0])
    try:
        check(n, 1)
    except ValueError:
        log(sys.exc_info()[1].args)
        try:
            check(n + 1, 2)
        except ValueError:
            log(sys.exc_info()[1].args)
        log(sys.exc_info()[1].args)
    log(sys.exc_info()[0])
    return n


def f_try_in_except(log, n):
    try:
        check(n, 1)
    except ValueError as a:
        try:
            log("inner")
            check(n + 1, 2)
        except ValueError as b:
            return log((a.args, b.args))
        finally:
            log("inner finally")
    return log(n)


def f_except_in_loop(log, n):
    out = []
    for i in range(4):
        try:
            out.append(check(log(i), n))
        except ValueError as e:
            log(e.args)
            continue
        out.append("ok")
    return out


def f_except_break(log, n):
    for i in range(4):
        try:
            check(log(i), n)
        except ValueError:
            log("break")
            break
    else:
        log("all")
    return i


def f_finally(log, n):
    try:
        log(n)
        check(n, 1)
    finally:
        log("finally")
        log("again")
    return n


def f_finally_return(log, n):
    try:
        return log(check(n, 1))
    finally:
        log("finally")


def f_finally_override(log, n):
    try:
        check(log(n), 1)
        return "body"
    finally:
        if log(n) == 1:
            return log("override")


def f_finally_loop(log, n):
    for i in range(3):
        try:
            if log(i) == n:
                continue
            log("body")
        finally:
            log(("finally", i))
    return i


def f_finally_break(log, n):
    while True:
        try:
            n -= 1
            if log(n) < 0:
                break
        finally:
            log("f")
    return n


def f_nested_finally(log, n):
    try:
        try:
            check(log(n), 1)
        finally:
            log("inner")
            check(n, 2)
    finally:
        log("outer")
    return n


def f_finally_raises(log, n):
    try:
        check(n, 1)
    finally:
        log("f")
        if n:
            raise KeyError(log(n))


def f_for_in_finally(log, n):
    out = []
    try:
        check(n, 1)
    finally:
        for i in range(2):
            out.append(log(i))
    return out


def f_with_in_finally(log, n):
    try:
        check(n, 1)
    finally:
        with Manager(log, "f"):
            log("cleanup")
    return n


def f_with_in_except(log, n):
    try:
        check(n, 1)
    except ValueError as e:
        with Manager(log, "h", suppress=True):
            log(e.args)
            raise
    return log(n)


def f_except_star(log, n):
    try:
        if n == 1:
            raise ExceptionGroup("g", [ValueError(1), KeyError(2)])
        if n == 2:
            raise ExceptionGroup("g", [ValueError(1), OSError(2)])
        log("none")
    except* ValueError as g:
        log(len(g.exceptions))
    except* KeyError as g:
        log(("key", len(g.exceptions)))
    return log("end")


def f_closure(log, n):
    x = log(n)

    def inner():
        return x + 1

    x += 1
    return log(inner())


def f_nonlocal(log, n):
    count = 0

    def bump(k):
        nonlocal count
        count += k
        return log(count)

    for i in range(n):
        bump(i)
        count += 10
    return count, bump(1)


def f_closure_param(log, n):
    def inner():
        nonlocal n
        n += 1
        return log(n)

    inner()
    n *= 2
    inner()
    return n


def f_closure_loop(log, n):
    functions = []
    for i in range(n):
        functions.append(lambda: log(i))
    return [f() for f in functions]


def f_cell_deleted(log, n):
    x = log(n)

    def inner():
        return x

    if n == 1:
        del x
    try:
        return log(inner())
    except NameError as e:
        return log(type(e).__name__)


def f_cell_unset(log, n):
    def inner():
        return late

    if n:
        late = log(n)
    try:
        return inner()
    except NameError:
        return log("unset")


def f_deep_closure(log, n):
    a = log(1)

    def one():
        b = log(a + 1)

        def two():
            nonlocal b
            b += a
            log(b)
            return lambda: (log(a), log(b), n)

        return two()

    a = 5
    return one()()


def f_recursion(log, n):
    def fact(k):
        return 1 if log(k) < 2 else k * fact(k - 1)

    return fact(n + 1)


def f_listcomp(log, n):
    return [log(i) for i in range(n) if log(i % 2) == 0]


def f_listcomp_shadow(log, n):
    i = "outer"
    out = [log(i) for i in range(n)]
    return i, out


def f_listcomp_unbound(log, n):
    if n == 1:
        i = "outer"
    out = [log(i) for i in range(n)]
    try:
        return log(i), out
    except UnboundLocalError:
        return log("unbound"), out


def f_listcomp_nested(log, n):
    return [[log(i * j) for j in range(i)] for i in range(n)]


def f_listcomp_two(log, n):
    return [(i, log(j)) for i in range(n) for j in range(i) if log(j) < 2]


def f_listcomp_lambda(log, n):
    return [f() for f in [lambda: log(i) for i in range(n)]]


def f_listcomp_cell_outer(log, n):
    x = log("outer")
    g = lambda: x
    ys = [log(x) for x in range(n)]
    return g(), ys, x


def f_listcomp_cell_both(log, n):
    x = log("outer")
    g = lambda: x
    hs = [(lambda: log(x)) for x in range(n)]
    x = "changed"
    return g(), [h() for h in hs]


def f_listcomp_raise(log, n):
    x = "outer"
    try:
        [check(log(x), n) for x in range(3)]
    except ValueError as e:
        return x, e.args
    return x


def f_dictcomp(log, n):
    return {log(k): log(v) for k, v in zip("abc", range(n))}


def f_setcomp(log, n):
    return sorted({log(k % 2) for k in range(n)})


def f_genexp(log, n):
    return sum(log(k) for k in range(n))


def f_generator_local(log, n):
    def gen():
        for i in range(n):
            got = yield log(i)
            log(got)

    return list(gen())


def f_kwargs(log, n):
    def callee(a, *, b=1, **rest):
        return a, b, sorted(rest.items())

    return callee(log(n), b=log(2), c=log(3)), callee(log(1))


def f_star_call(log, n):
    def callee(*args, **kwargs):
        return args, kwargs

    return callee(log(1), *[log(2)] * n, x=log(3), **{"y": log(4)})


def f_own_star(log, n, *args, flag=False, **kwargs):
    log((args, flag, sorted(kwargs)))
    if flag:
        return args
    return log(n), args, kwargs


def f_defaults(log, n, extra=(1, 2), /, named=3):
    return log(n), log(extra), named


def f_call_nesting(log, n):
    return max(log(n), min(log(3), log(n + 1)), abs(log(-2)))


def f_method_chain(log, n):
    return str(log(n)).upper().replace(str(log(1)), "one").join([log("a"), log("b")])


def f_method_attribute(log, n):
    class Holder:
        def __init__(self):
            self.call = log

        def own(self, x, y=0):
            return log((x, y))

    h = Holder()
    return h.call(log(n)), h.own(log(1), y=log(2)), h.own(x=log(3))


def f_getattr_method(log, n):
    class Dynamic:
        def __getattr__(self, name):
            log(name)
            return lambda *a: log((name, a))

    return Dynamic().foo(log(n), log(2)), Dynamic().bar()


def f_fstring(log, n):
    return f"{log(n)!r:>5} and {log(n + 1):0{log(4)}d} {log('x')!s}{n=}"


def f_percent(log, n):
    return "%s-%r" % (log(n), log("q"))


def f_match(log, n):
    for value in ([log(1), n], {"k": n, "z": 1}, n, "text", (1, 2, 3)):
        match value:
            case [1, x] if log(x) > 1:
                log(("pair", x))
            case [a, *rest]:
                log(("seq", a, rest))
            case {"k": y, **more}:
                log(("map", y, more))
            case int(z) | bool(z):
                log(("int", z))
            case str() as s:
                log(s)
            case _:
                log("other")
    return n


def f_match_class(log, n):
    class P:
        __match_args__ = ("x", "y")

        def __init__(self, x, y):
            self.x, self.y = log(x), y

    match P(n, 2):
        case P(1, y=b):
            return log(b)
        case P(a, b):
            return log((a, b))


def f_walrus(log, n):
    if (y := log(n)) > 1 and (z := log(y + 1)):
        return y, z
    while (k := log(n)) < 3:
        n += 1
    return k


def f_walrus_comp(log, n):
    out = [last := log(i) for i in range(n)]
    try:
        return out, last
    except UnboundLocalError:
        return "unbound"


def f_ternary(log, n):
    return log("a") if log(n) > 1 else log("b")


def f_bool_ops(log, n):
    a = log(n) and log(n - 1) or log("z")
    b = not log(n) or log(a)
    return a, b, log(0) < log(n) < log(3) <= log(n)


def f_compare_chain(log, n):
    if log(1) < log(n) <= log(2):
        return log("in")
    return log("out")


def f_none_checks(log, n):
    x = None if n == 1 else log(n)
    if x is None:
        return log("none")
    if x is not None and log(x):
        return "some"
    return "falsy"


def f_unpack(log, n):
    a, (b, *c), d = log(1), [log(2), *range(n)], log(4)
    try:
        e, g = range(log(n))
    except ValueError:
        e = g = log("bad")
    return a, b, c, d, e, g


def f_slices(log, n):
    x = list(range(10))
    x[log(1) : log(n + 2)] = [log("s")]
    y = x[log(n) :: log(2)]
    del x[log(0)]
    return x, y, x[log(1) : log(3)]


def f_augmented(log, n):
    d = {"k": [1]}
    d["k"] += [log(n)]
    d[log("j")] = log(n)
    o = Manager(log, "o")
    o.name += str(log(n))
    return d, o.name


def f_delete(log, n):
    x = log(n)
    y = log(2)
    del x
    try:
        return x
    except UnboundLocalError:
        return log(y)


def f_maybe_unbound(log, n):
    if n > 1:
        x = log("bound")
    log("middle")
    try:
        return log(x)
    except UnboundLocalError:
        return log("unbound")


def f_maybe_unbound_loop(log, n):
    for i in range(n):
        last = log(i)
    log("end")
    return last, i


def f_del_in_loop(log, n):
    out = []
    for i in range(3):
        if i != n:
            tmp = log(i)
        try:
            out.append(tmp)
            del tmp
        except UnboundLocalError:
            out.append(log("none"))
    return out


def f_early_returns(log, n):
    if log(n) == 0:
        return "zero"
    for i in range(n):
        if log(i) == 1:
            return "one"
    try:
        if n == 1:
            return log("try")
    finally:
        log("finally")
    return log("end")


def f_assert(log, n):
    assert log(n) < 2, log("message")
    return n


def f_raise(log, n):
    if n == 1:
        raise ValueError(log("x"))
    if n == 2:
        raise KeyError
    return log(n)


def f_class_body(log, n):
    class A:
        x = log(n)

        def m(self):
            return log(self.x), n

        y = [log(i) for i in range(n)]

    return A().m(), A.y


def f_super(log, n):
    class A:
        def m(self, k):
            return log(("A", k))

    class B(A):
        def m(self, k):
            log("B")
            r = super().m(k)
            log(__class__.__name__)
            return r, super().m(log(k + 1))

        def bare(self):
            log("bare")
            s = super()
            log("got")
            return s.m(3)

        def captured(self):
            def inner():
                return self.tag

            self.tag = log("t")
            s = super()
            log(inner())
            return s.m(4), inner()

        @classmethod
        def c(cls):
            log(cls.__name__)
            return super().__name__ if False else log("c")

    b = B()
    return b.m(n), b.bare(), b.captured(), B.c()


def f_decorator(log, n):
    def deco(arg):
        log(arg)

        def wrap(f):
            log(f.__name__)
            return lambda *a: log(f(*a))

        return wrap

    @deco(log("one"))
    @deco(log("two"))
    def g(x: int = log(n), *, y: "str" = log(2)) -> log(3):
        return x + y

    return g(), g(5)


def f_global_store(log, n):
    global GLOBAL_VALUE
    GLOBAL_VALUE = log(n)
    GLOBAL_VALUE += log(1)
    return GLOBAL_VALUE


def f_import(log, n):
    import os.path as p
    from math import floor, ceil as c

    log(p.basename("a/b"))
    return floor(log(1.5)), c(log(n + 0.5))


def f_set_dict_literals(log, n):
    return (
        {log(1), log(n)},
        {log("a"): log(n), **{log("b"): 2}},
        [*[log(1)], log(2)],
        (*[log(3)], 4),
    )


def f_iter_protocol(log, n):
    class It:
        def __init__(self):
            self.k = 0

        def __iter__(self):
            log("iter")
            return self

        def __next__(self):
            self.k += 1
            log(self.k)
            if self.k > n:
                raise StopIteration
            return self.k

    return [x for x in It()], list(It())


def f_bool_raises(log, n):
    class Bad:
        def __bool__(self):
            log("bool")
            return check(n, 1) > 1

    with Manager(log, "w", suppress=True):
        if Bad():
            return log("true")
        log("false")
    return log("end")


def f_binary_ops(log, n):
    x = log(7)
    x -= log(n)
    x **= 2
    x //= log(2)
    x |= 1
    return x, -x, ~x, +x, not x, x @ Mat(log) if n else x << log(1), x in [log(1)], x is log(2)


class Mat:
    def __init__(self, log):
        self.log = log

    def __rmatmul__(self, other):
        return self.log(("matmul", other))


def f_locals(log, n):
    a = log(1)
    for i in range(n):
        log(sorted(k for k in locals() if k != "log"))
    b = 2
    log("x")
    c = lambda: (b, n)
    return sorted((k, v) for k, v in locals().items() if k not in ("log", "c"))


def f_weakref(log, n):
    import weakref

    class Thing:
        pass

    thing = Thing()
    r = weakref.ref(thing)
    log(r() is not None)
    del thing
    log(r() is None)
    return r() is None


def f_iterator_released(log, n):
    import weakref

    class Gen:
        def __init__(self):
            self.k = 0

        def __iter__(self):
            return self

        def __next__(self):
            self.k += 1
            if self.k > 2:
                raise StopIteration
            return self.k

    g = Gen()
    r = weakref.ref(g)
    for x in g:
        g = None
        log(x)
    return log(r() is None)


def f_deep_mix(log, n):
    out = []
    try:
        for i in range(3):
            with Manager(log, i, suppress=i == 1) as m:
                try:
                    for j in range(2):
                        with Manager(log, (i, j)):
                            if log(i + j) == n:
                                raise ValueError(log("deep"))
                            out.append((lambda: (i, j, m.name))())
                except KeyError:
                    log("never")
                else:
                    log("else")
                finally:
                    log("inner finally")
    except ValueError as e:
        try:
            out.append(e.args)
            check(n, 2)
        except ValueError:
            log("second")
        finally:
            log("handler finally")
    return out, log("done")


def f_many_locals(log, n):
    a = b = c = d = e = f = g = h = i = j = k = l = m = o = p = q = r = s = log(n)
    t = a + b + c + d + e + f + g + h
    u = log(t)
    return i + j + k + l + m + o + p + q + r + s + u


def f_try_else_finally_loop(log, n):
    k = 0
    while k < 3:
        k += 1
        try:
            check(log(k), n)
        except ValueError:
            log("except")
            continue
        else:
            log("else")
            if k == 2:
                break
        finally:
            log("finally")
    else:
        log("while else")
    return k


def f_return_in_except_in_with(log, n):
    for i in range(2):
        with Manager(log, i):
            try:
                check(log(n), 1)
            except ValueError as e:
                return log(e.args)
    return "end"


def f_yield_from_inner(log, n):
    def inner():
        x = yield from range(n)
        return log(x)

    return [log(v) for v in inner()]


def f_starred_return(log, n):
    return *[log(1)] * n, log(2)


def f_conditional_import_error(log, n):
    try:
        if n:
            import no_such_module_here
        log("ok")
    except ImportError as e:
        log(e.name)
    return n


def f_exception_in_iter(log, n):
    class It:
        def __iter__(self):
            return self

        def __next__(self):
            if n == 1:
                raise ValueError("next")
            raise StopIteration

    try:
        for x in It():
            log("never")
        else:
            log("else")
    except ValueError as e:
        return log(e.args)
    return log("end")


def f_global_name_missing(log, n):
    try:
        log("a")
        if n == 1:
            missing_name
        log("b")
    except NameError as e:
        return log(str(e))


def f_lambda_default(log, n):
    fs = [lambda i=i: log(i) for i in range(n)]
    return [f() for f in fs]


def f_sorted_key(log, n):
    return sorted([3, 1, n], key=lambda v: log(-v), reverse=log(False))


def f_large(log, n):
    x = n
    x = x + 1 if log(x) else x - 1
    x = (x * 0 + n) % 1009 if x != 0 else x
    x = (x * 1 + n) % 1009 if x != 1 else x
    x = (x * 2 + n) % 1009 if x != 2 else x
    x = (x * 3 + n) % 1009 if x != 3 else x
    x = (x * 4 + n) % 1009 if x != 4 else x
    x = (x * 5 + n) % 1009 if x != 5 else x
    x = (x * 6 + n) % 1009 if x != 6 else x
    x = (x * 7 + n) % 1009 if x != 7 else x
    x = (x * 8 + n) % 1009 if x != 8 else x
    x = (x * 9 + n) % 1009 if x != 9 else x
    x = (x * 10 + n) % 1009 if x != 10 else x
    x = (x * 11 + n) % 1009 if x != 11 else x
    x = (x * 12 + n) % 1009 if x != 12 else x
    x = (x * 13 + n) % 1009 if x != 13 else x
    x = (x * 14 + n) % 1009 if x != 14 else x
    x = (x * 15 + n) % 1009 if x != 15 else x
    x = (x * 16 + n) % 1009 if x != 16 else x
    x = (x * 17 + n) % 1009 if x != 17 else x
    x = (x * 18 + n) % 1009 if x != 18 else x
    x = (x * 19 + n) % 1009 if x != 19 else x
    x = (x * 20 + n) % 1009 if x != 20 else x
    x = (x * 21 + n) % 1009 if x != 21 else x
    x = (x * 22 + n) % 1009 if x != 22 else x
    x = (x * 23 + n) % 1009 if x != 23 else x
    x = (x * 24 + n) % 1009 if x != 24 else x
    x = (x * 25 + n) % 1009 if x != 25 else x
    x = (x * 26 + n) % 1009 if x != 26 else x
    x = (x * 27 + n) % 1009 if x != 27 else x
    x = (x * 28 + n) % 1009 if x != 28 else x
    x = (x * 29 + n) % 1009 if x != 29 else x
    x = (x * 30 + n) % 1009 if x != 30 else x
    x = (x * 31 + n) % 1009 if x != 31 else x
    x = (x * 32 + n) % 1009 if x != 32 else x
    x = (x * 33 + n) % 1009 if x != 33 else x
    x = (x * 34 + n) % 1009 if x != 34 else x
    x = (x * 35 + n) % 1009 if x != 35 else x
    x = (x * 36 + n) % 1009 if x != 36 else x
    x = (x * 37 + n) % 1009 if x != 37 else x
    x = (x * 38 + n) % 1009 if x != 38 else x
    x = (x * 39 + n) % 1009 if x != 39 else x
    for i in range(2):
        with Manager(log, i):
            x = (x * 0 + n) % 1013 if x > 0 else x
            x = (x * 1 + n) % 1013 if x > 1 else x
            x = (x * 2 + n) % 1013 if x > 2 else x
            x = (x * 3 + n) % 1013 if x > 3 else x
            x = (x * 4 + n) % 1013 if x > 4 else x
            x = (x * 5 + n) % 1013 if x > 5 else x
            x = (x * 6 + n) % 1013 if x > 6 else x
            x = (x * 7 + n) % 1013 if x > 7 else x
            x = (x * 8 + n) % 1013 if x > 8 else x
            x = (x * 9 + n) % 1013 if x > 9 else x
            x = (x * 10 + n) % 1013 if x > 10 else x
            x = (x * 11 + n) % 1013 if x > 11 else x
            x = (x * 12 + n) % 1013 if x > 12 else x
            x = (x * 13 + n) % 1013 if x > 13 else x
            x = (x * 14 + n) % 1013 if x > 14 else x
            x = (x * 15 + n) % 1013 if x > 15 else x
            x = (x * 16 + n) % 1013 if x > 16 else x
            x = (x * 17 + n) % 1013 if x > 17 else x
            x = (x * 18 + n) % 1013 if x > 18 else x
            x = (x * 19 + n) % 1013 if x > 19 else x
            x = (x * 20 + n) % 1013 if x > 20 else x
            x = (x * 21 + n) % 1013 if x > 21 else x
            x = (x * 22 + n) % 1013 if x > 22 else x
            x = (x * 23 + n) % 1013 if x > 23 else x
            x = (x * 24 + n) % 1013 if x > 24 else x
            x = (x * 25 + n) % 1013 if x > 25 else x
            x = (x * 26 + n) % 1013 if x > 26 else x
            x = (x * 27 + n) % 1013 if x > 27 else x
            x = (x * 28 + n) % 1013 if x > 28 else x
            x = (x * 29 + n) % 1013 if x > 29 else x
            x = (x * 30 + n) % 1013 if x > 30 else x
            x = (x * 31 + n) % 1013 if x > 31 else x
            x = (x * 32 + n) % 1013 if x > 32 else x
            x = (x * 33 + n) % 1013 if x > 33 else x
            x = (x * 34 + n) % 1013 if x > 34 else x
            x = (x * 35 + n) % 1013 if x > 35 else x
            x = (x * 36 + n) % 1013 if x > 36 else x
            x = (x * 37 + n) % 1013 if x > 37 else x
            x = (x * 38 + n) % 1013 if x > 38 else x
            x = (x * 39 + n) % 1013 if x > 39 else x
            log(x)
    return x


CASES = [value for name, value in list(globals().items()) if name.startswith("f_")]
