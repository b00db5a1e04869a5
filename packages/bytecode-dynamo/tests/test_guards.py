"""Guards: every kind notices its changes and tolerates others; C and Python agree; nothing is kept
alive or leaks.
"""

from __future__ import annotations

import collections
import functools
import gc
import inspect
import random
import types
import weakref

import pytest
import sympy
import torch
from bytecode_dynamo.guards import tensor_layout
from bytecode_dynamo.guards.guards import (
    ABSENT,
    Answer,
    GlobalState,
    GuardKind,
    Guards,
    ShapeGuards,
    TensorFacts,
    compile_guards,
    explain_failure,
    python_guards,
)
from bytecode_dynamo.guards.source import (
    AttrSource,
    BuiltinSource,
    CellSource,
    ClassDictSource,
    ClosureSource,
    ConstSource,
    DefaultsSource,
    GlobalSource,
    ItemSource,
    LocalSource,
    TypeSource,
    scope_of,
)
from bytecode_dynamo.guards.tensor_source import SizeSource, StrideSource
from bytecode_dynamo.hook.frame_hook import SKIP, Activated, Entry, Region
from symshapes import FloorDiv, Mod, SizeGuard
from torch import nn

X = LocalSource("x")
NO_SHAPES = ShapeGuards()


def called(x):
    return x


class Checked:
    """A program for `called(x)` together with the Python meaning of its records."""

    def __init__(self, x, *records, shapes=NO_SHAPES, function=called, native=True):
        self.function, self.shapes = function, shapes
        self.guards = Guards()
        for record in records:
            self.guards.require(*record)
        self.program = compile_guards(
            self.guards, shapes, function.__code__, scope_of(function, {"x": x})
        )
        assert bool(python_guards(self.program)) is not native, python_guards(self.program)

    def __call__(self, x):
        held = self.program.check(self.function, (x,))
        reason = explain_failure(self.guards, self.shapes, scope_of(self.function, {"x": x}))
        assert held is (reason is None), (held, reason)
        return held

    def reason(self, x):
        return explain_failure(self.guards, self.shapes, scope_of(self.function, {"x": x}))


class Plain:
    shared = "class"

    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


def test_type_is():
    check = Checked(1, (X, GuardKind.TYPE_IS, int))
    assert check(2)
    assert not check(True)
    assert not check(1.0)
    assert check.reason(1.0) == "type(x) was int, now float"


CONSTANTS = [
    *(
        1,
        -1,
        2**80,
        0,
        True,
        False,
        None,
        0.0,
        -0.0,
        1.0,
        float("nan"),
        float("inf"),
        1j,
        "a",
        "b",
        "",
        b"a",
        (),
        (1,),
        (1.0,),
    ),
    *(
        (1, (2, "x")),
        (1, (2, "y")),
        slice(1, 2),
        slice(1, 3),
        range(3),
        range(4),
        Ellipsis,
        torch.float32,
        torch.int64,
    ),
    *(
        torch.device("cpu"),
        torch.device("meta"),
        torch.Size([1]),
        torch.strided,
        torch.channels_last,
    ),
]


def test_equals_holds_for_the_same_constant_only():
    for k, constant in enumerate(CONSTANTS):
        check = Checked(constant, (X, GuardKind.EQUALS, constant))
        assert [check(other) for other in CONSTANTS] == [j == k for j in range(len(CONSTANTS))], (
            constant
        )
    check = Checked(2**80, (X, GuardKind.EQUALS, 2**80))
    assert check(2**79 * 2)
    assert Checked(("a", 1.5), (X, GuardKind.EQUALS, ("a", 1.5)))(("".join(["a"]), 3 / 2))


def test_identity_and_death_of_the_object():
    first, second = Plain(), Plain()
    check = Checked(first, (X, GuardKind.IDENTITY, first))
    assert check(first)
    assert not check(second)
    alive = weakref.ref(first)
    program = check.program
    del first, check
    gc.collect()
    assert alive() is None
    assert not program.valid
    assert not program.check(called, (second,))


@pytest.mark.parametrize(
    ("value", "longer"),
    [
        ([1], [1, 2]),
        ((1,), (1, 2)),
        ({1: 2}, {1: 2, 3: 4}),
        ("a", "ab"),
        ({1}, {1, 2}),
        (range(1), range(2)),
    ],
)
def test_length(value, longer):
    check = Checked(value, (X, GuardKind.LENGTH, 1))
    assert check(value)
    assert not check(longer)
    assert not check(5)
    assert not check(
        value[:0]
        if hasattr(value, "__getitem__") and not isinstance(value, dict)
        else type(value)()
    )


def test_dict_keys_are_ordered_and_typed():
    value = {"a": 1, 2: 3, ("t", 1): 4}
    check = Checked(value, (X, GuardKind.DICT_KEYS, tuple(value)))
    assert check(value)
    value["a"] = 7
    assert check(value)
    assert check({"a": 0, 2: 0, ("t", 1): 0})
    for other in (
        {2: 0, "a": 0, ("t", 1): 0},
        {"a": 0, 2.0: 0, ("t", 1): 0},
        {"a": 0, 2: 0},
        {**value, "b": 1},
        {},
        [1],
    ):
        assert not check(other)
    value["b"] = 1
    assert not check(value)
    del value["b"]
    assert check(value)


def test_ordered_dict_order_counts():
    value = collections.OrderedDict(a=1, b=2)
    check = Checked(value, (X, GuardKind.DICT_KEYS, ("a", "b")))
    assert check(value)
    value.move_to_end("a")
    assert not check(value)
    value.move_to_end("b")
    assert check(value)


def test_attributes_of_the_instance():
    value = Plain(a=1)
    check = Checked(
        value,
        (X, GuardKind.HAS_ATTR, "a"),
        (X, GuardKind.NO_ATTR, "shared"),
        (X, GuardKind.NO_ATTR, "b"),
    )
    assert check(value)
    value.c = 3
    assert check(value)
    value.b = 1
    assert not check(value)
    del value.b
    assert check(value)
    value.shared = 2
    assert not check(value)
    del value.shared
    del value.a
    assert not check(value)


def test_attribute_path_follows_python_rules():
    value = Plain(a=1)
    check = Checked(
        value,
        (AttrSource(X, "a"), GuardKind.EQUALS, 1),
        (AttrSource(X, "shared"), GuardKind.EQUALS, "class"),
    )
    assert check(value)
    value.unread = 5
    assert check(value)
    value.a = 2
    assert not check(value)
    value.a = 1
    assert check(value)
    value.__dict__ = {"a": 1}
    assert check(value)
    value.__dict__ = {"a": 3}
    assert not check(value)
    value.__dict__ = {"a": 1, "shared": "instance"}
    assert not check(value)


def test_class_changes_are_noticed():
    class A:
        limit = 3

    class B(A):
        pass

    value = B()
    check = Checked(value, (X, GuardKind.TYPE_IS, B), (AttrSource(X, "limit"), GuardKind.EQUALS, 3))
    assert check(value)
    A.other = 1
    assert check(value)
    B.limit = 3
    assert check(value)
    B.limit = 4
    assert not check(value)
    del B.limit
    assert check(value)
    A.limit = property(lambda self: 5)
    assert not check(value)


def test_class_gains_a_data_descriptor_or_getattribute():
    class A:
        def __init__(self):
            self.a = 1

    value = A()
    check = Checked(value, (AttrSource(X, "a"), GuardKind.EQUALS, 1))
    assert check(value)
    A.a = property(lambda self: 2)
    assert not check(value)

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.p = 1

    module = M()
    check = Checked(module, (AttrSource(X, "p"), GuardKind.EQUALS, 1))
    assert check(module)
    M.__getattribute__ = lambda self, name: 7
    assert not check.program.check(called, (module,))


def test_class_attr():
    class A:
        def f(self):
            return 1

    original = A.__dict__["f"]
    source = ConstSource(A)
    check = Checked(
        1,
        (source, GuardKind.CLASS_ATTR, ("f", original)),
        (source, GuardKind.CLASS_ATTR, ("g", ABSENT)),
    )
    assert check(1)
    A.h = 1
    assert check(1)
    A.g = 1
    assert not check(1)
    del A.g
    assert check(1)
    A.f = lambda self: 2
    assert not check(1)
    A.f = original
    assert check(1)
    for k in range(2500):  # more changes than a class has version tags
        A.h = k
        assert check.program.check(called, (1,))
    A.g = 1
    assert not check(1)


def test_class_of_an_argument_and_its_dict():
    value = Plain()
    source = ClassDictSource(TypeSource(X), 0, "shared")
    check = Checked(value, (source, GuardKind.EQUALS, "class"))
    assert check(value)
    assert not check(5)


def test_attribute_of_a_cell_that_is_not_its_contents():
    """Only ``cell_contents`` reads the contents; the class of a cell is not that of its contents."""
    value = 1
    cell = (lambda: value).__closure__[0]
    check = Checked(cell, (AttrSource(X, "__class__"), GuardKind.IDENTITY, types.CellType))
    assert check(cell)
    assert not check(value)


def test_slots_and_c_members():
    value = Slotted(1)
    partial = functools.partial(max, 1)
    check = Checked(
        (value, partial),
        (AttrSource(ItemSource(X, 0), "value"), GuardKind.EQUALS, 1),
        (AttrSource(ItemSource(X, 1), "func"), GuardKind.IDENTITY, max),
    )
    assert check((value, partial))
    assert not check((value, functools.partial(min, 1)))
    value.value = 2
    assert not check((value, partial))
    del value.value
    assert not check((value, partial))


def test_items_of_nested_containers():
    value = [{"k": (1, [2, 3])}, 4]
    deep = ItemSource(ItemSource(ItemSource(ItemSource(X, 0), "k"), 1), 1)
    check = Checked(value, (deep, GuardKind.EQUALS, 3), (ItemSource(X, 1), GuardKind.TYPE_IS, int))
    assert check(value)
    assert check([{"k": (0, [0, 3])}, 9])
    value[0]["k"][1].append(5)
    assert check(value)
    value[0]["k"][1][1] = 4
    assert not check(value)
    for other in ([{"k": (1, [2])}, 4], [{}, 4], [], None, [[], 4]):
        assert not check(other)


def test_function_code_and_defaults():
    def make(k, default=1):
        def inner(a, b=default, *, c=2):
            return a + k

        return inner

    first = make(1)
    check = Checked(
        first, (X, GuardKind.FUNCTION_CODE, first), (DefaultsSource(X, 0), GuardKind.EQUALS, 1)
    )
    assert check(first)
    assert check(make(2))
    assert not check(make(1, default=3))
    assert not check(lambda a: a)
    assert not check(len)
    first.__kwdefaults__["c"] = 5
    assert check(first)
    first.__kwdefaults__ = None
    assert not check(first)
    second = make(1)
    second.__defaults__ = (1, 2)
    assert not check(second)
    third = make(1)
    third.__code__ = third.__code__.replace(co_firstlineno=1)
    assert not check(third)
    contents = Checked(
        first, (CellSource(ItemSource(AttrSource(X, "__closure__"), 0)), GuardKind.EQUALS, 1)
    )
    assert contents(first)
    assert not contents(make(2))


def test_bound_method():
    value = [1]
    check = Checked(value.append, (X, GuardKind.TYPE_IS, types.BuiltinMethodType))
    assert check(value.append)

    class A:
        def m(self):
            return self

    a = A()
    check = Checked(
        a.m,
        (AttrSource(X, "__func__"), GuardKind.FUNCTION_CODE, A.m),
        (AttrSource(X, "__self__"), GuardKind.IDENTITY, a),
    )
    assert check(a.m)
    assert not check(A().m)


GLOBAL = 5


def test_globals_builtins_and_free_variables():
    free = 1

    def function(x):
        return x, GLOBAL, len, free

    def rebind(value):
        nonlocal free
        free = value

    space = function.__globals__
    check = Checked(
        1,
        (GlobalSource("GLOBAL"), GuardKind.EQUALS, 5),
        (BuiltinSource("len"), GuardKind.IDENTITY, len),
        (ClosureSource("free"), GuardKind.EQUALS, 1),
        function=function,
    )
    assert check(1)
    try:
        space["unrelated"] = 1
        assert check(1)
        space["GLOBAL"] = 6
        assert not check(1)
        space["GLOBAL"] = 5
        assert check(1)
        space["len"] = len
        assert not check.program.check(function, (1,))
        del space["len"]
        assert check(1)
        rebind(2)
        assert not check(1)
        rebind(1)
        assert check(1)
    finally:
        space["GLOBAL"] = 5
        space.pop("len", None)
        del space["unrelated"]


TENSOR_CHANGES = {
    "dtype": lambda: torch.ones(2, 3, dtype=torch.float64),
    "integer": lambda: torch.ones(2, 3, dtype=torch.int32),
    "device": lambda: torch.ones(2, 3, device="meta"),
    "requires_grad": lambda: torch.ones(2, 3, requires_grad=True),
    "result": lambda: torch.ones(2, 3, requires_grad=True) * 2,
    "rank": lambda: torch.ones(2, 3, 1),
    "scalar": lambda: torch.tensor(1.0),
    "size": lambda: torch.ones(2, 4),
    "strides": lambda: torch.ones(3, 2).t(),
    "parameter": lambda: nn.Parameter(torch.ones(2, 3)),
    "conjugate": lambda: torch.ones(2, 3, dtype=torch.cfloat).conj(),
    "negated": lambda: torch.ones(2, 3, dtype=torch.cfloat).conj().imag,
    "sparse": lambda: torch.ones(2, 3).to_sparse(),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(2, 3), 0.1, 0, torch.qint8),
    "inference": lambda: _inference_tensor(),
    "no tensor": lambda: [1.0],
    "expanded": lambda: torch.ones(1, 3).expand(2, 3),
}


def _inference_tensor():
    with torch.inference_mode():
        return torch.ones(2, 3)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("change", TENSOR_CHANGES)
def test_tensor_change_is_noticed(change):
    check = Checked(torch.ones(2, 3), (X, GuardKind.TENSOR, TensorFacts.of(torch.ones(2, 3))))
    assert check(torch.zeros(2, 3))
    assert not check(TENSOR_CHANGES[change]())


def test_tensor_benign_changes_are_tolerated():
    value = torch.ones(2, 3)
    check = Checked(value, (X, GuardKind.TENSOR, TensorFacts.of(value)))
    value.add_(1)
    assert check(value)
    assert check(torch.ones(20)[5:11].view(2, 3))
    value.grad = torch.ones(2, 3)
    value.note = 1
    assert check(value)
    parameter = nn.Parameter(torch.ones(2))
    check = Checked(parameter, (X, GuardKind.TENSOR, TensorFacts.of(parameter)))
    parameter.data = torch.zeros(2)
    parameter.sum().backward()
    assert check(parameter)
    parameter.requires_grad_(False)
    assert not check(parameter)


def test_tensor_dynamic_dimensions():
    value = torch.ones(4, 3)
    check = Checked(value, (X, GuardKind.TENSOR, TensorFacts.of(value, dynamic_sizes=(0,))))
    assert check(torch.ones(9, 3))
    assert not check(torch.ones(9, 4))
    assert not check(torch.ones(3, 9).t())
    check = Checked(value, (X, GuardKind.TENSOR, TensorFacts.of(value, (0, 1), (0, 1))))
    assert check(torch.ones(7, 5))
    assert check(torch.ones(5, 7).t())
    assert check(torch.ones(1, 1).expand(6, 6))
    assert not check(torch.ones(7, 5, 1))
    assert (
        check.reason(torch.ones(7, 5, dtype=torch.int64))
        == "x.dtype was torch.float32, now torch.int64"
    )


@pytest.mark.parametrize("rank", range(8))
def test_tensor_of_many_dimensions(rank):
    shape = (2, 3, 2, 3, 2, 3, 2, 3)[:rank]
    value = torch.ones(shape)
    check = Checked(value, (X, GuardKind.TENSOR, TensorFacts.of(value)))
    assert check(torch.zeros(shape))
    for d in range(rank):
        assert not check(torch.ones(tuple(n + (k == d) for k, n in enumerate(shape))))


def test_tensor_subclass_is_checked_in_python():
    class Sub(torch.Tensor):
        pass

    value = torch.ones(2).as_subclass(Sub)
    guards = Guards()
    guards.require(X, GuardKind.TENSOR, TensorFacts.of(value))
    program = compile_guards(guards, NO_SHAPES, called.__code__, scope_of(called, {"x": value}))
    assert program.check(called, (value,))
    assert not program.check(called, (torch.ones(2),))
    assert not program.check(called, (torch.ones(3).as_subclass(Sub),))


def test_tensor_example_is_not_kept_alive():
    value = torch.ones(2)
    check = Checked(value, (X, GuardKind.TENSOR, TensorFacts.of(value)))
    alive = weakref.ref(value)
    del value
    gc.collect()
    assert alive() is None
    assert check(torch.ones(2))


def test_aliasing():
    a, b = torch.ones(2), torch.ones(2)
    first, second = ItemSource(X, 0), ItemSource(X, 1)
    check = Checked((a, b), (first, GuardKind.NOT_ALIASED, second))
    assert check((a, b))
    assert not check((a, a))
    check = Checked((a, a), (first, GuardKind.ALIASED, second))
    assert check((b, b))
    assert not check((a, b))


STATE_CHANGES = {
    "grad mode": torch.no_grad,
    "inference mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "default device": lambda: torch.device("meta"),
    "function mode": lambda: torch.overrides.BaseTorchFunctionMode(),
    "torch function disabled": torch._C.DisableTorchFunctionSubclass,
    "deterministic": lambda: _setting(
        torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled()
    ),
    "default dtype": lambda: _setting(
        torch.set_default_dtype, torch.get_default_dtype(), torch.float64
    ),
}


class _setting:
    def __init__(self, setter, before, value=True):
        self.setter, self.before, self.value = setter, before, value

    def __enter__(self):
        self.setter(self.value)

    def __exit__(self, *exception):
        self.setter(self.before)


@pytest.mark.parametrize("change", STATE_CHANGES)
def test_global_state(change):
    guards = Guards()
    guards.require_global_state()
    guards.require_global_state()
    assert len(guards) == 1
    scope = scope_of(called, {"x": 1})
    program = compile_guards(guards, NO_SHAPES, called.__code__, scope)
    assert not python_guards(program)
    assert program.check(called, (1,))
    with STATE_CHANGES[change]():
        assert not program.check(called, (1,))
        assert explain_failure(guards, NO_SHAPES, scope) is not None
        inside = Guards()
        inside.require_global_state()
        program_inside = compile_guards(inside, NO_SHAPES, called.__code__, scope)
        assert program_inside.check(called, (1,))
    assert program.check(called, (1,))
    assert not program_inside.check(called, (1,))


def test_autocast_dtype_is_part_of_the_state():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        state = GlobalState.now()
    with torch.autocast("cpu", dtype=torch.float16):
        assert "autocast" in state.difference(GlobalState.now())


def test_functorch_is_part_of_the_state():
    guards = Guards()
    guards.require_global_state()
    program = compile_guards(guards, NO_SHAPES, called.__code__, scope_of(called, {"x": 1}))
    seen = []

    def inner(x):
        seen.append(program.check(called, (1,)))
        return x

    torch.func.vmap(inner)(torch.ones(2))
    assert seen == [False]


def test_custom_predicate_runs_in_python():
    check = Checked(4, (X, GuardKind.CUSTOM, Answer("{} % 2", lambda v: v % 2, 0)), native=False)
    assert check(6)
    assert not check(7)
    check = Checked({1}, (X, GuardKind.EQUALS, {1}), native=False)
    assert check({1})
    assert not check({2})


def test_property_is_followed_in_python():
    class A:
        def __init__(self, v):
            self.v = v

        @property
        def p(self):
            return self.v

    check = Checked(A(1), (AttrSource(X, "p"), GuardKind.EQUALS, 1), native=False)
    assert check(A(1))
    assert not check(A(2))
    assert not check(5)


s0, s1 = sympy.symbols("s0 s1", integer=True, positive=True)
CONDITIONS = [
    sympy.Eq(s0, s1, evaluate=False),
    sympy.Ne(s0, s1, evaluate=False),
    s0 < s1,
    s0 <= 2 * s1 + 1,
    s0 > 3,
    s0 >= s1 - 2,
    sympy.Eq(Mod(s0, 3), 1),
    sympy.Eq(FloorDiv(s0, 2), FloorDiv(s1 + 1, 2)),
    sympy.Or(sympy.Eq(s0, 4), s1 > 5),
    sympy.And(s0 > 2, s1 > 2),
    sympy.Not(sympy.And(sympy.Eq(s0, 3), sympy.Eq(s1, 3))),
    sympy.Max(s0, s1) < 6,
    sympy.Min(s0, 4) * s1 > 7,
    s0**2 > s1,
    s0 / 2 > s1 / 3,
    sympy.Eq(s0 * s1 - s1, 6),
]


@pytest.mark.parametrize("condition", CONDITIONS, ids=str)
def test_condition_on_sizes(condition):
    symbols = {s0: SizeSource(ItemSource(X, 0), 0), s1: SizeSource(ItemSource(X, 1), 1)}
    value = (torch.ones(2), torch.ones(1, 2))
    shapes = ShapeGuards(symbols, (SizeGuard(condition, "line 5"),))
    guards = Guards()
    program = compile_guards(guards, shapes, called.__code__, scope_of(called, {"x": value}))
    assert program.python is None
    for a in range(1, 9):
        for b in range(1, 9):
            wanted = bool(condition.subs({s0: a, s1: b}))
            other = (torch.ones(a), torch.ones(1, b))
            assert program.check(called, (other,)) is wanted, (a, b)
            assert (
                explain_failure(guards, shapes, scope_of(called, {"x": other})) is None
            ) is wanted


def test_condition_on_strides_and_ints():
    shapes = ShapeGuards(
        {s0: StrideSource(ItemSource(X, 0), 0), s1: ItemSource(X, 1)},
        (SizeGuard(sympy.Eq(s0, s1 + 1, evaluate=False)),),
    )
    check = Checked((torch.ones(2, 3), 2), shapes=shapes)
    assert check((torch.ones(5, 3), 2))
    assert not check((torch.ones(5, 4), 2))
    assert check((torch.ones(5, 4), 3))
    assert not check.program.check(called, ((torch.ones(5, 4), 2**70),))
    assert not check.program.check(called, ((torch.ones(5, 4), 3.0),))
    assert not check.program.check(called, ((3, 3),))


def test_condition_that_c_cannot_check_runs_in_python():
    shapes = ShapeGuards({s0: SizeSource(X, 0)}, (SizeGuard(sympy.sqrt(s0) > 2),))
    guards = Guards()
    program = compile_guards(
        guards, shapes, called.__code__, scope_of(called, {"x": torch.ones(9)})
    )
    assert python_guards(program) == ["conditions on sizes"]
    assert program.check(called, (torch.ones(5),))
    assert not program.check(called, (torch.ones(4),))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 4)
        self.bn = nn.BatchNorm1d(4)
        self.cfg = [1, 2]
        self.p = 0.5

    def forward(self, x):
        return self.bn(self.lin(x)) * self.p


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def module_guards(guards, module, source):
    guards.require(source, GuardKind.TYPE_IS, type(module))
    guards.require(AttrSource(source, "training"), GuardKind.EQUALS, module.training)
    guards.require(source, GuardKind.NO_ATTR, "forward")
    for name in HOOKS:
        guards.require(AttrSource(source, name), GuardKind.LENGTH, 0)
    for name in ("_parameters", "_buffers", "_modules"):
        guards.require(AttrSource(source, name), GuardKind.DICT_KEYS, tuple(getattr(module, name)))
    for name, tensor in (*module._parameters.items(), *module._buffers.items()):
        if tensor is not None:
            guards.require(AttrSource(source, name), GuardKind.TENSOR, TensorFacts.of(tensor))
    guards.require(
        ConstSource(type(module)),
        GuardKind.CLASS_ATTR,
        ("forward", inspect.getattr_static(type(module), "forward")),
    )
    if isinstance(module, Block):
        guards.require(AttrSource(source, "p"), GuardKind.EQUALS, module.p)
        guards.require(AttrSource(source, "cfg"), GuardKind.LENGTH, 2)
        guards.require(ItemSource(AttrSource(source, "cfg"), 1), GuardKind.EQUALS, 2)
    for name, child in module._modules.items():
        module_guards(guards, child, ItemSource(AttrSource(source, "_modules"), name))


def sub_parameter(m):
    m[1].lin.weight = nn.Parameter(torch.ones(4, 3, dtype=torch.float64))


MODULE_CHANGES = {
    "eval": lambda m: m.eval(),
    "eval of one": lambda m: m[1].bn.eval(),
    "forward hook": lambda m: m[1].lin.register_forward_hook(lambda *a: None),
    "forward pre-hook": lambda m: m[0].register_forward_pre_hook(lambda *a: None),
    "backward hook": lambda m: m[1].lin.register_full_backward_hook(lambda *a: None),
    "hook dict filled": lambda m: m[1].lin._forward_hooks.__setitem__(5, print),
    "hook dict replaced": lambda m: setattr(m[1].lin, "_forward_hooks", {1: print}),
    "instance forward": lambda m: setattr(m[1].lin, "forward", lambda x: x),
    "parameter replaced": sub_parameter,
    "parameter data": lambda m: setattr(m[1].lin.weight, "data", torch.ones(4, 5)),
    "parameter frozen": lambda m: m[1].lin.weight.requires_grad_(False),
    "parameter None": lambda m: setattr(m[1].lin, "bias", None),
    "parameter deleted": lambda m: delattr(m[1].lin, "bias"),
    "parameter added": lambda m: m[1].lin.register_parameter("extra", nn.Parameter(torch.ones(1))),
    "buffer added": lambda m: m[1].lin.register_buffer("extra", torch.ones(1)),
    "buffer dtype": lambda m: setattr(m[1].bn, "running_mean", torch.ones(4, dtype=torch.float64)),
    "module replaced": lambda m: m[1].__setattr__("lin", nn.Linear(3, 4, bias=False)),
    "module of other class": lambda m: m._modules.__setitem__("1", nn.Identity()),
    "module added": lambda m: m.append(nn.Identity()),
    "class changed": lambda m: setattr(m[1].lin, "__class__", nn.Bilinear),
    "dict replaced": lambda m: setattr(
        m[1].lin, "__dict__", {**m[1].lin.__dict__, "training": False}
    ),
    "dict entry": lambda m: m[1].lin.__dict__.__setitem__("training", False),
    "number": lambda m: setattr(m[0], "p", 0.25),
    "type of number": lambda m: setattr(m[0], "p", 1),
    "list item": lambda m: m[0].cfg.__setitem__(1, 3),
    "list longer": lambda m: m[0].cfg.append(3),
    "list replaced": lambda m: setattr(m[0], "cfg", [1, 3]),
    "to double": lambda m: m.double(),
    "modules dict order": lambda m: setattr(
        m[0], "_modules", dict(reversed(m[0]._modules.items()))
    ),
    "del attribute": lambda m: delattr(m[0], "p"),
    "swap": lambda m: torch.utils.swap_tensors(m[1].lin.weight, nn.Parameter(torch.ones(2))),
}
MODULE_BENIGN = {
    "nothing": lambda m: None,
    "train": lambda m: m.train(),
    "step": lambda m: _step(m),
    "state dict": lambda m: m.load_state_dict(m.state_dict()),
    "forward": lambda m: m[0](torch.ones(5, 3)),
    "unread attribute": lambda m: setattr(m[0], "note", 1),
    "hook added and removed": lambda m: m[1].lin.register_forward_hook(lambda *a: None).remove(),
    "same value again": lambda m: setattr(m[0], "p", 1 / 2),
    "equal parameter": lambda m: setattr(m[1].lin, "weight", nn.Parameter(torch.zeros(4, 3))),
    "equal module": lambda m: setattr(m[0], "lin", nn.Linear(3, 4)),
    "equal dict": lambda m: setattr(m[1].lin, "__dict__", dict(m[1].lin.__dict__)),
    "equal list": lambda m: setattr(m[0], "cfg", [7, 2]),
    "data": lambda m: setattr(m[1].lin.weight, "data", torch.zeros(4, 3)),
    "there and back": lambda m: (m.eval(), m.train()),
    "collected": lambda m: gc.collect(),
}


def _step(m):
    optimizer = torch.optim.SGD(m.parameters(), 0.1)
    m[0](torch.ones(5, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def guarded_module(checks_before):
    module = nn.Sequential(Block(), Block())
    guards = Guards()
    module_guards(guards, module, X)
    check = Checked(module, *((r.source, r.kind, r.expected) for r in guards))
    for _ in range(checks_before):
        assert check(module)
    return module, check


@pytest.mark.parametrize("change", MODULE_CHANGES)
@pytest.mark.parametrize("checks_before", [0, 2])
def test_module_change_is_noticed(change, checks_before):
    module, check = guarded_module(checks_before)
    MODULE_CHANGES[change](module)
    assert not check(module)
    assert not check(module)
    assert not check(nn.Sequential(Block()))


@pytest.mark.parametrize("change", MODULE_BENIGN)
def test_module_benign_change_is_tolerated(change):
    module, check = guarded_module(2)
    MODULE_BENIGN[change](module)
    assert check(module)
    assert check(module)


def test_specialised_attribute_store_is_noticed():
    """The interpreter's fast stores into inlined values must not pass the guard."""

    def store(o, v):
        o.training = v

    module, check = guarded_module(2)
    other = nn.Linear(1, 1)
    for _ in range(200):
        store(other, True)
    assert check(module)
    store(module[1].lin, False)
    assert not check(module)
    store(module[1].lin, True)
    assert check(module)


def test_random_histories_agree_with_python():
    """Many changes one after the other: the program and the Python meaning always agree."""
    changes = [*MODULE_CHANGES.values(), *MODULE_BENIGN.values()]
    rnd = random.Random(5)
    for _ in range(40):
        module, check = guarded_module(1)
        for _ in range(6):
            try:
                rnd.choice(changes)(module)
            except Exception:
                break
            check(module)


def test_program_moves_between_instances():
    first, check = guarded_module(1)
    second = nn.Sequential(Block(), Block())
    for _ in range(3):
        assert check(first)
        assert check(second)
    second[0].p = 3.0
    assert check(first)
    assert not check(second)
    del second
    gc.collect()
    third = nn.Sequential(Block(), Block())
    assert check(third)
    third[0].p = 3.0
    assert not check(third)
    assert check(first)


def test_model_is_not_kept_alive():
    module, check = guarded_module(2)
    alive = weakref.ref(module)
    program = check.program
    del module, check
    gc.collect()
    assert alive() is None
    assert program.valid


def test_entry_goes_when_an_object_that_it_pins_dies():
    def function(x):
        return 1

    def replacement(x):
        return 2

    value = Plain()

    def callback(view):
        if view.code is not function.__code__:
            return SKIP
        guards = Guards()
        guards.require(X, GuardKind.IDENTITY, view.locals[0])
        scope = scope_of(view.function, {"x": view.locals[0]})
        return Entry(compile_guards(guards, NO_SHAPES, view.code, scope), replacement.__code__)

    region = Region(callback)
    run = Activated(function, region)
    assert run(value) == 2
    assert run(value) == 2
    assert len(region.entries(function.__code__)) == 1
    alive = weakref.ref(region.entries(function.__code__)[0])
    del value
    gc.collect()
    assert region.entries(function.__code__) == ()
    assert alive() is None


def test_records_are_collected_once():
    guards = Guards()
    guards.require(X, GuardKind.EQUALS, 1)
    guards.require(X, GuardKind.EQUALS, 1)
    guards.require(X, GuardKind.EQUALS, True)
    guards.require(X, GuardKind.IDENTITY, called)
    assert [record.expected for record in guards] == [1, True, called]


def test_padding_hides_no_field():
    """Words that differ in a pair of tensors by chance are no candidates for a field."""
    floats, doubles, ints = [[6, 0, 1], [6, 9, 1]], [[7, 0, 1], [7, 3, 1]], [[3, 4, 1], [3, 4, 1]]
    assert tensor_layout._between_groups([floats, doubles]) == {0}
    assert tensor_layout._between_groups([floats, doubles, ints]) == {0}
    assert tensor_layout._between_groups([[[6, 1], [6, 2]], [[7, 3], [7, 3]]]) == {0}
    assert tensor_layout._between_groups([[[6, 1]], [[7, 3]], [[8, 3]]]) == {0}


def test_checks_leak_nothing(leaked_blocks):
    module, check = guarded_module(1)
    value = (torch.ones(2), 3)
    programs = [check.program]

    def check_often():
        for _ in range(2000):
            programs[0].check(called, (module,))
            programs[0].check(called, (value,))

    assert abs(leaked_blocks(check_often)) < 50

    def build():
        Checked(module, (X, GuardKind.TYPE_IS, type(module)), (X, GuardKind.IDENTITY, module))

    build()
    assert abs(leaked_blocks(lambda: [build() for _ in range(200)])) < 50


def test_tensors_as_keys_and_their_gradients_are_checked_natively():
    key, other = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    key.grad = torch.ones(2)
    state = collections.defaultdict(dict, {key: {"step": 3}, other: {}})
    gradient = AttrSource(ItemSource(X, 1), "grad")
    check = Checked(
        (state, key),
        (ItemSource(ItemSource(ItemSource(X, 0), key), "step"), GuardKind.EQUALS, 3),
        (gradient, GuardKind.TENSOR, TensorFacts.of(key.grad)),
    )
    assert check((state, key))
    state[key]["step"] = 4
    assert not check((state, key))
    state[key] = {"step": 3}
    assert check((state, key))
    for replaced in (torch.zeros(2), torch.zeros(3), None):
        key.grad = None
        key.grad = replaced if replaced is None or replaced.shape == (2,) else None
        assert check((state, key)) is (key.grad is not None)
    del state[key]
    key.grad = torch.ones(2)
    assert not check((state, key))
