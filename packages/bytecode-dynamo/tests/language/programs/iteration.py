# ruff: noqa
"""Comprehensions, generators, iterators, itertools, unpacking."""

import collections
import functools
import itertools
import operator

import torch


def list_comprehension(x):
    return [x + i for i in range(3) if i != 1], [(a, b) for a in range(2) for b in "ab"]


def dict_and_set_comprehension(x):
    return (
        {k: x * k for k in (1, 2)},
        {v % 2 for v in range(5)},
        {k: {j for j in range(k)} for k in range(3)},
    )


def nested_comprehension_with_closure(x):
    k = 2
    return [[x * i + j * k for j in range(2)] for i in range(2)]


def comprehension_shadows_variable(x):
    i = 5
    values = [i for i in range(3)]
    return x + i, values


def conditional_comprehension(x):
    return torch.stack([x if i % 2 else -x for i in range(4) if i])


def comprehension_with_walrus(x):
    return [y for i in range(4) if (y := i * 2) > 2], x + y


def generator_expression(x):
    return (
        sum(x * i for i in range(4)),
        tuple(i for i in range(3)),
        list(i * j for i in range(2) for j in range(2)),
    )


def generator_function(x):
    def numbers(n):
        for i in range(n):
            yield i * 2

    return [x + v for v in numbers(3)]


def generator_with_state(x):
    def fibonacci():
        a, b = 0, 1
        while True:
            yield a
            a, b = b, a + b

    return x + sum(itertools.islice(fibonacci(), 8))


def generator_next(x):
    def steps():
        yield x
        yield x + 1

    g = steps()
    return next(g), next(g), next(g, None)


def generator_stop_iteration(x):
    def one():
        yield 1
        return 7

    g = one()
    next(g)
    try:
        next(g)
    except StopIteration as stop:
        return x + stop.value


def generator_send(x):
    def accumulate():
        total = 0
        while True:
            value = yield total
            if value is None:
                return
            total = total + value

    g = accumulate()
    next(g)
    g.send(x)
    return g.send(2)


def generator_throw(x, log):
    def guarded():
        while True:
            try:
                yield 1
            except ValueError as error:
                log.append(str(error))
                yield 2

    g = guarded()
    return x + next(g) + g.throw(ValueError("inside")), next(g)


def generator_throw_not_caught(x, log):
    def plain():
        try:
            yield 1
        finally:
            log.append("closed")

    g = plain()
    next(g)
    try:
        g.throw(KeyError("k"))
    except KeyError as error:
        return x + 1, error.args


def generator_close(x, log):
    def resource():
        try:
            yield x
        finally:
            log.append("cleanup")

    g = resource()
    value = next(g)
    g.close()
    return value + 1, list(g)


def generator_close_catches_exit(x, log):
    def resource():
        try:
            yield 1
        except GeneratorExit:
            log.append("exit")
            raise

    g = resource()
    next(g)
    g.close()
    return x + 1


def yield_from(x):
    def inner():
        got = yield 1
        yield 2
        return got

    def outer():
        result = yield from inner()
        yield result
        yield from [10, 11]

    g = outer()
    values = [next(g)]
    values.append(g.send("sent"))
    return x + sum(v for v in [*values, 3]), values, list(g)


def yield_from_result(x):
    def inner():
        yield 1
        return x * 2

    def outer(out):
        out.append((yield from inner()))

    out = []
    return list(outer(out)), out


def generator_with_finally(x, log):
    def items():
        try:
            yield 1
            yield 2
        finally:
            log.append("done")

    return x + sum(items()), log


def generator_raises(x):
    def bad():
        yield 1
        raise ValueError("bad")

    total = 0
    try:
        for v in bad():
            total += v
    except ValueError as error:
        return x + total, str(error)


def generator_is_lazy(x, log):
    def noisy():
        for i in range(5):
            log.append(i)
            yield i

    for v in noisy():
        if v == 2:
            break
    return x + v


generator_is_lazy.any_graphs = True


def generator_pipeline(x):
    def double(items):
        for i in items:
            yield i * 2

    def keep(items, n):
        for i in items:
            if i > n:
                yield i

    return torch.stack([x + v for v in keep(double(range(5)), 3)])


def generator_method(x):
    class Tree:
        def __init__(self, value, *children):
            self.value, self.children = value, children

        def __iter__(self):
            yield self.value
            for child in self.children:
                yield from child

    return x + sum(Tree(1, Tree(2, Tree(3)), Tree(4)))


generator_method.any_graphs = True


def recursive_generator(x):
    def permutations(items):
        if not items:
            yield []
        for i in range(len(items)):
            for rest in permutations(items[:i] + items[i + 1 :]):
                yield [items[i], *rest]

    return x + 1, list(permutations([1, 2, 3]))


def generator_returned(x):
    return (x + i for i in range(3))


generator_returned.any_graphs = True


def zip_and_enumerate(x):
    return [a + b * i for i, (a, b) in enumerate(zip(x, x * 2), start=1)], list(
        zip("ab", [1, 2], strict=True)
    )


def zip_strict_raises(x):
    try:
        return list(zip([1], [1, 2], strict=True))
    except ValueError as error:
        return x + 1, str(error)


def map_and_filter(x):
    return (
        list(map(lambda a, b: a + b, x, [1, 2])),
        list(filter(None, [0, 1, "", 2])),
        [*filter(lambda v: v > 1, (1, 2))],
    )


def reversed_iteration(x):
    return (
        [x + i for i in reversed(range(3))],
        list(reversed([1, 2])),
        "".join(reversed("abc")),
        list(reversed({1: 2, 3: 4})),
    )


def iterate_over_tensor(x):
    total = 0
    for row in x:
        for cell in row:
            total = total + cell * 2
    return total


def unpack_tensor(x):
    a, b = x
    (c, *rest), d = x
    return a - b, c, rest, d


def unpack_forms(x):
    a, *b, c = range(5)
    (d, e), [f, *g] = (1, 2), [3, 4, 5]
    *h, i = "xyz"
    return x + a, b, c, d, e, f, g, h, i, [*b, *h], (*g, 1), {*b, 9}, {**{"a": 1}, "b": 2}


def unpack_errors(x):
    out = []
    for value in ([1], [1, 2, 3], 5):
        try:
            a, b = value
        except (ValueError, TypeError) as error:
            out.append(str(error))
    return x + 1, out


def swap(x):
    a, b = x, x + 1
    a, b = b, a
    return a, b


def for_else(x):
    for i in range(3):
        if i == 5:
            break
    else:
        x = x + 1
    for i in range(3):
        if i == 1:
            break
    else:
        x = x + 100
    return x, i


def while_else(x):
    n = 0
    while n < 3:
        n += 1
        if n == 2:
            continue
        x = x + n
    else:
        x = x * 2
    return x


def nested_loops_with_continue(x):
    for i in range(3):
        for j in range(3):
            if j == i:
                continue
            if j > 1:
                break
            x = x + i * j + 1
    return x


def list_changed_while_iterating(x):
    items, seen = [1, 2, 3], []
    for i in items:
        seen.append(i)
        if len(items) < 6:
            items.append(i * 10)
    return x + len(seen), seen


def dict_changed_while_iterating(x):
    d = {1: 1, 2: 2}
    try:
        for k in d:
            d[k + 10] = 1
    except RuntimeError as error:
        return x + 1, str(error)


def iterator_objects(x):
    it = iter([1, 2, 3])
    first = next(it)
    return x + first, list(it), list(it), next(iter(()), "empty")


def iterator_with_sentinel(x):
    items = [1, 2, 0, 3]
    return x + 1, list(iter(lambda: items.pop(0), 0)), items


def user_iterator(x):
    class Countdown:
        def __init__(self, n):
            self.n = n

        def __iter__(self):
            return self

        def __next__(self):
            if self.n == 0:
                raise StopIteration
            self.n -= 1
            return self.n

    return [x + i for i in Countdown(3)], list(zip(Countdown(2), Countdown(5))), max(Countdown(4))


user_iterator.any_graphs = True


def old_sequence_protocol(x):
    class Squares:
        def __getitem__(self, i):
            if i > 3:
                raise IndexError
            return i * i

    return x + sum(Squares()), list(Squares()), 9 in Squares()


old_sequence_protocol.any_graphs = True


def itertools_finite(x):
    return (
        x + 1,
        list(itertools.chain([1], "ab")), list(itertools.chain.from_iterable([[1], [2, 3]])),
        list(itertools.product([1, 2], "ab")), list(itertools.permutations(range(3), 2)),
        list(itertools.combinations("abc", 2)), list(itertools.combinations_with_replacement("ab", 2)),
        list(itertools.zip_longest([1], [2, 3], fillvalue=0)), list(itertools.accumulate([1, 2, 3])),
        list(itertools.accumulate([1, 2, 3], operator.mul, initial=2)), list(itertools.pairwise([1, 2, 3])),
    )  # fmt: skip


def itertools_lazy(x):
    return (
        x + 1,
        list(itertools.islice(itertools.count(5, 2), 3)), list(itertools.islice(itertools.cycle("ab"), 5)),
        list(itertools.repeat(x, 2)), list(itertools.takewhile(lambda v: v < 3, [1, 2, 3, 1])),
        list(itertools.dropwhile(lambda v: v < 3, [1, 3, 1])), list(itertools.filterfalse(None, [0, 1])),
        list(itertools.compress("abc", [1, 0, 1])), list(itertools.starmap(pow, [(2, 3), (3, 2)])),
        list(itertools.islice(range(10), 2, 8, 3)),
    )  # fmt: skip


def itertools_groupby(x):
    return x + 1, [(k, list(g)) for k, g in itertools.groupby("aabbb")], {
        k: [v for v in g] for k, g in itertools.groupby([1, 3, 2], key=lambda v: v % 2)
    }  # fmt: skip


def itertools_tee(x):
    a, b = itertools.tee([1, 2, 3])
    return x + next(a), list(b), list(a)


def itertools_batched_like(x):
    it = iter(range(5))
    return x + 1, list(iter(lambda: tuple(itertools.islice(it, 2)), ()))


def product_of_tensors(x):
    return [a * b for a, b in itertools.product(x, repeat=2)], functools.reduce(
        torch.add, x.unbind()
    )


def starmap_of_tensors(x):
    return list(itertools.starmap(torch.add, zip(x, x)))


def deque_consumes_iterator(x):
    return (
        x + 1,
        collections.deque((i for i in range(4)), maxlen=2),
        list(collections.deque([1, 2, 3], 2)),
    )


def iterators_advance_together(x):
    it = iter(range(6))
    return x + 1, list(zip(it, it)), [*it]


def lazy_map_keeps_order(x, log):
    def note(v):
        log.append(v)
        return v

    m = map(note, [1, 2, 3])
    log.append("made")
    first = next(m)
    log.append("between")
    return x + first, list(m)


def existing_iterator_argument(x, log):
    log.extend([1, 2, 3])
    it = iter(log)
    return x + next(it), next(it)


def enumerate_over_dict(x):
    d = {"a": x, "b": x + 1}
    return (
        [i * d[k] for i, k in enumerate(d)],
        [k for k, v in d.items()],
        list(enumerate(d.items(), 5))[0][0],
    )


def sorted_items(x):
    return (
        x + 1,
        sorted({"b": 1, "a": 2}.items()),
        sorted([(1, "b"), (1, "a")]),
        sorted("hello", reverse=True),
    )


def range_methods(x):
    r = range(2, 20, 3)
    return (
        x + len(r),
        r[1],
        r[-1],
        r[1:3],
        5 in r,
        r.index(8),
        r.count(5),
        r == range(2, 20, 3),
        r.start,
        list(r[::-1]),
    )


def slices(x):
    s = slice(1, None, 2)
    items = list(range(6))
    items[1:3] = [9]
    del items[::2]
    return x[:, s], [0, 1, 2, 3][s], s.indices(5), items, s == slice(1, None, 2), "abcdef"[::-1]


def in_loop_unrolled_with_break(x):
    while True:
        x = x + 1
        if x.dim() < 5:
            break
    return x


def zip_star_transposes(x):
    pairs = [(1, x), (2, x + 1)]
    numbers, tensors = zip(*pairs)
    return numbers, torch.stack(tensors)


def generator_in_any_stops_early(x, log):
    def check(v):
        log.append(v)
        return v == 2

    return x + any(check(v) for v in [1, 2, 3])


def dict_of_generators_drained(x):
    gens = {k: (x + j for j in range(k)) for k in (1, 2)}
    return {k: list(g) for k, g in gens.items()}


def coroutine_left_alone(x):
    async def work():
        return x + 1

    coro = work()
    try:
        coro.send(None)
    except StopIteration as stop:
        return stop.value


coroutine_left_alone.any_graphs = True


def iterator_shared_across_break(x):
    it = iter([1, 2, 3, 4])
    next(it)
    pairs = zip(it, it)
    y = x + (1 if x.sum() > 100 else 2)
    return y + next(it), list(pairs), list(it)


iterator_shared_across_break.any_graphs = True


def generator_shared_across_break(x):
    def numbers():
        yield from range(5)

    g = numbers()
    h = g
    y = x + (1 if x.sum() > 100 else 2)
    return y + next(g), next(h), list(g)


generator_shared_across_break.any_graphs = True


def list_iterator_sees_changes_after_break(x, log):
    items, seen = [1, 2], []
    for i in items:
        seen.append(i)
        if x.sum() > 100:
            return None
        if len(items) < 4:
            items.append(i + 10)
    return x + sum(seen), seen


list_iterator_sees_changes_after_break.any_graphs = True


def containers_that_change_while_they_are_iterated(x, log):
    def attempt(make, change, view=lambda c: c):
        held, seen = make(), []
        steps = iter(view(held))
        try:
            for item in steps:
                seen.append(item)
                if len(seen) > 5:
                    break
                change(held)
            log.append((seen, next(steps, "end")))
        except RuntimeError as error:
            log.append((seen, str(error)))

    ordered = functools.partial(collections.OrderedDict, a=1, b=2)
    attempt(lambda: {1: 1}, lambda d: d.update({len(d) + 1: 0}))
    attempt(lambda: {1}, lambda s: s.add(len(s) + 1))
    attempt(lambda: {1: 1}, lambda d: d.update({1: 0}), dict.values)
    attempt(lambda: {1: 1, 2: 2}, lambda d: d.pop(1, None), dict.items)
    attempt(ordered, lambda o: o.move_to_end("a"))
    attempt(ordered, lambda o: o.move_to_end("b"))
    attempt(ordered, lambda o: o.update({len(o): 1}), lambda o: o.values())
    attempt(ordered, lambda o: o.popitem(), lambda o: o.items())
    attempt(ordered, lambda o: o.update(a=5))
    done = iter(d := {1: 1})
    log.append(list(done))
    d[2] = 2
    log.append(next(done, "end"))
    return x + len(log)


def membership_stops_where_it_finds(x):
    items, mapped, generated = iter([1, 2, 3]), map(abs, [1, -2, 3]), (v for v in [1, 2, 3])
    found = 2 in items, 2 in mapped, 1 in generated
    return x + 1, found, list(items), list(mapped), list(generated)


def an_ended_list_iterator_stays_so(x):
    items = [1, 2]
    iterator = iter(items)
    taken = list(iterator)
    items.append(3)
    return x + 1, taken, list(iterator), next(iterator, None), iterator


def iterators_that_are_made_and_returned(x):
    turns, linked, numbered = (
        itertools.cycle([x, 2]),
        itertools.chain([1], [2, 3]),
        enumerate("abc", 1),
    )
    started = next(turns), next(linked), next(numbered)
    again = itertools.cycle("ab")
    letters = [next(again) for _ in range(3)]
    return (
        x + 1,
        started,
        [next(turns) for _ in range(3)],
        linked,
        numbered,
        letters,
        itertools.islice(again, 3),
    )


def groups_end_when_the_next_one_begins(x):
    listed = [list(group) for _, group in list(itertools.groupby("aabb"))]
    steps = iter([1, 1, 2, 3])
    key, group = next(itertools.groupby(steps))
    return (
        x + key,
        listed,
        next(steps),
        list(group),
        [(k, sum(g)) for k, g in itertools.groupby([1, 3, 4], lambda v: v % 2)],
    )


def slices_take_what_they_skip(x):
    steps = iter(range(12))
    taken = list(itertools.islice(steps, 0, 5, 3))
    return (
        x + 1,
        taken,
        next(steps),
        list(itertools.islice(steps, 1, 1)),
        next(steps),
        list(itertools.islice(steps, 4, 2)),
    )
