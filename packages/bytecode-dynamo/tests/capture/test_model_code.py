"""What the code of model libraries does around its tensors: outputs that are dicts, configurations,
messages, copies.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import inspect
import logging
import os
import types
import warnings
import weakref

import bytecode_dynamo as bd
import torch

X = torch.arange(6.0).reshape(2, 3)


class Output(collections.OrderedDict):
    """Fields that are attributes and items."""

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if getattr(self, field.name) is not None:
                self[field.name] = getattr(self, field.name)

    def __getitem__(self, key):
        return (
            dict(self.items())[key]
            if isinstance(key, str)
            else tuple(self[k] for k in self.keys())[key]
        )

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def __setattr__(self, name, value):
        if name in {field.name for field in dataclasses.fields(self)} and value is not None:
            super().__setitem__(name, value)
        super().__setattr__(name, value)


@dataclasses.dataclass
class Pair(Output):
    first: object = None
    second: object = None


class Attributes(dict):
    """Items that are attributes."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Counted(dict):
    def __missing__(self, key):
        return -1


class Config:
    """Some names stand for others."""

    names = {"width": "hidden"}  # noqa: RUF012

    def __init__(self):
        self.hidden = 3
        self.nested = {"scale": [2.0]}

    def __getattribute__(self, name):
        names = super().__getattribute__("names")
        return super().__getattribute__(names.get(name, name))


def same_output(a, b):
    assert type(a) is type(b) and list(a) == list(b) and list(vars(a)) == list(vars(b))
    assert all(torch.equal(a[key], b[key]) for key in a)
    return True


def test_an_output_is_made_read_and_given_back():
    def f(x):
        made = Pair(x + 1)
        made.second = made[0] * 2
        return (
            made,
            len(made),
            list(made),
            "second" in made,
            made["second"] + made.first,
            isinstance(made, dict),
        )

    captured = bd.optimize("eager", fullgraph=True)(f)
    for _ in range(2):
        (made, *rest), (expected, *others) = captured(X), f(X)
        assert same_output(made, expected)
        assert rest[:3] == others[:3] and torch.equal(rest[3], others[3]) and rest[4] is True


def test_an_existing_output_is_read_by_its_own_rules_and_written():
    def f(x, given):
        given["second"] = x * 2
        return given[0] + given["second"]

    captured = bd.optimize("eager", fullgraph=True)(f)
    for value in (X, X + 1, X.double()):
        mine, theirs = Pair(value), Pair(value)
        assert torch.equal(captured(X, mine), f(X, theirs))
        assert same_output(mine, theirs)


def test_the_order_of_an_ordered_subclass_is_guarded():
    given = Pair(X, X + 1)

    def f(x):
        for key in given:
            x = x * 2 + given[key]
        return x

    captured = bd.optimize("eager", fullgraph=True)(f)
    assert torch.equal(captured(X), f(X))
    given.move_to_end("first")
    assert torch.equal(captured(X), f(X))


def test_subclasses_of_dict(check):
    def f(x, d):
        d["n"] = d.a + 1
        d.flag = 3
        made = Counted(z=x, **d)
        return (
            d["a"] * 2,
            made,
            made["none"],
            made.get("a"),
            hasattr(d, "b"),
            made == dict(made),
            Attributes(d).n,
        )

    check(f, lambda: (X, Attributes(a=X)))


def test_own_getattribute(check):
    config = Config()

    def f(x):
        return x * config.width + config.hidden + getattr(config, "absent", 1)

    captured = bd.optimize("eager", fullgraph=True)(f)
    for change in (
        lambda: None,
        lambda: setattr(config, "hidden", 5),
        lambda: setattr(config, "absent", 7),
    ):
        change()
        assert torch.equal(captured(X), f(X))


def test_deepcopy_is_a_new_object(check):
    def f(x, config):
        other = copy.deepcopy(config)
        other.hidden = 4
        other.nested["scale"].append(1.0)
        plain = copy.deepcopy(config.__dict__)
        return (
            x * config.hidden + other.hidden * sum(other.nested["scale"]),
            list(plain),
            copy.copy([x, x]),
        )

    check(f, lambda: (X, Config()))
    config = Config()
    captured = bd.optimize("eager", fullgraph=True)(f)
    captured(X, config)
    config.nested["scale"][0] = 3.0
    assert torch.equal(captured(X, config)[0], f(X, config)[0])


def test_deepcopy_keeps_sharing(check):
    def f(x, items):
        a, b = copy.deepcopy((items, items))
        a.append(1)
        return a is b, len(b), x + len(items)

    check(f, lambda: (X, [0]))


def test_messages_are_reported_once_per_call_after_the_graph(caplog):
    log = logging.getLogger("test_model_code")

    @functools.lru_cache(None)
    def once(self, text):
        self.warning(text)

    logging.Logger.info_once = once
    try:

        def f(x):
            log.warning("rows: %d", x.shape[0])
            y = x + 1
            log.info_once("seldom")
            return y * 2

        captured = bd.optimize("eager", fullgraph=True)(f)
        for _ in range(2):
            assert torch.equal(captured(X), f(X))
    finally:
        del logging.Logger.info_once
    assert [record.getMessage() for record in caplog.records] == [
        "rows: 2",
        "seldom",
        "rows: 2",
        "rows: 2",
        "rows: 2",
    ]
    own = [record for record in caplog.records if record.getMessage() == "rows: 2"]
    assert len({(record.filename, record.lineno, record.funcName) for record in own}) == 1


def test_a_message_with_values_of_a_tensor_breaks():
    log = logging.getLogger("test_model_code")

    def f(x):
        y = x + 1
        log.info("sum %s", y.sum())
        return y

    assert [reason.id for reason in bd.explain(f)(X).break_reasons] == ["BD003"]


def test_warnings_name_the_line_that_warns():
    def helper():
        warnings.warn("careful", FutureWarning, stacklevel=2)

    def f(x):
        helper()
        return x + 1

    captured = bd.optimize("eager", fullgraph=True)(f)
    found = []
    for function in (f, captured, captured):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            function(X)
        found.append([(str(w.message), w.category, w.filename, w.lineno) for w in caught])
    assert len(found[0]) == 1 and found[0] == found[1] == found[2]


def test_signatures(check):
    class Block:
        def chunk(self, x, y=2):
            return x + y

    block = Block()

    def f(x, function):
        parameters = inspect.signature(function).parameters
        return (
            function(x) * len(parameters),
            list(parameters),
            parameters["y"].default,
            "z" in parameters,
        )

    check(f, lambda: (X, block.chunk))
    check(f, lambda: (X, Block.chunk.__get__(block)))


def test_read_only_mappings(check):
    def f(x, d):
        view = types.MappingProxyType(d)
        return x * view["a"], len(view), list(view.items()), view.get("b", 3), "a" in view

    check(f, lambda: (X, {"a": 2}))


def test_methods_that_c_objects_lack_break_and_do_not_recurse():
    view = types.MappingProxyType({"a": 1})

    def f(x):
        return x + len(view)

    assert torch.equal(bd.optimize("eager")(f)(X), f(X))


def test_sizes_that_a_guard_makes_equal_are_one_input():
    def f(ids, mask):
        return torch.arange(ids.shape[1]) + mask.sum() + torch.zeros(mask.shape[1])

    graphs = []

    def backend(gm, example_inputs):
        graphs.append(gm)
        return gm.forward

    captured = bd.optimize(backend)(f)
    for rows, columns in ((2, 3), (4, 5), (6, 7)):
        x = torch.ones(rows, columns)
        assert torch.equal(captured(x, x + 1), f(x, x + 1))
    assert len(graphs) == 2
    sizes = [
        node.meta["val"].node.expr
        for node in graphs[1].graph.find_nodes(op="placeholder")
        if "size" in node.name
    ]
    assert len(sizes) == len(set(sizes)) > 0


@functools.lru_cache
def platform_name(prefix):
    return prefix + str(os.getpid() > 0)


def test_a_cached_function_that_python_can_not_evaluate_here_is_asked(check):
    def f(x):
        return x * 2 if platform_name("a").endswith("True") else x

    check(f, lambda: (X,))


def test_a_change_of_what_a_cached_function_answers_is_noticed():
    @functools.lru_cache
    def width(scale):
        return os.getpgid(0) * 0 + state[0] * scale

    state = [2]

    def f(x):
        return x * width(3)

    captured = bd.optimize("eager", fullgraph=True)(f)
    for value in (2, 5, 7):
        state[0] = value
        assert torch.equal(captured(X), f(X))
        width.cache_clear()
        assert torch.equal(captured(X), f(X))


@torch.jit.script
def span(x: torch.Tensor, most: int):
    return torch.tensor(min(x.size(-1), most))


def test_scripted_functions_and_known_tensors_as_bounds(check):
    def f(x):
        n = span(x, 2)
        return x[:, 3 - n : n + 5], torch.clamp(x, 0, n * 2 - 1)

    check(f, lambda: (X,))


def test_recurrent_modules_and_their_weak_references():
    model = torch.nn.LSTM(3, 4, 2, batch_first=True).eval()
    graphs = []

    def backend(gm, example_inputs):
        graphs.append(gm)
        return gm.forward

    captured = bd.optimize(backend, fullgraph=True)(model)
    for rows in (2, 3, 4):
        x = torch.randn(rows, 5, 3)
        (y, state), (expected, states) = captured(x), model(x)
        assert torch.equal(y, expected) and all(map(torch.equal, state, states))
    assert len(graphs) == 2


def test_the_referent_of_a_weak_reference_is_guarded():
    class Holder:
        pass

    held = Holder()
    held.scale = 2
    references = [weakref.ref(held)]

    def f(x):
        found = references[0]()
        return x if found is None else x * found.scale

    captured = bd.optimize("eager", fullgraph=True)(f)
    assert torch.equal(captured(X), f(X))
    held.scale = 3
    assert torch.equal(captured(X), f(X))
    held = Holder()
    assert torch.equal(captured(X), X)
    held.scale = 5
    references[0] = weakref.ref(held)
    assert torch.equal(captured(X), X * 5)
