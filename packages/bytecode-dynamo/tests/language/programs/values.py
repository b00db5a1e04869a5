# ruff: noqa
"""Numbers, text, globals, the standard library, numpy."""

import cmath
import copy
import dataclasses
import datetime
import decimal
import enum
import itertools
import json
import logging
import math
import operator
import os
import random
import re
import statistics
import string
import sys
import textwrap
import time
import types
import typing
import warnings
from collections import namedtuple
from fractions import Fraction

import numpy as np
import torch

COUNT = 0
ITEMS = [1]
NAMES = {"a": 1}
TENSOR = torch.ones(3)
logger = logging.getLogger(__name__)


def int_arithmetic(x):
    a, b = 17, 5
    return (
        x + a // b,
        a % b,
        -a // b,
        a**b,
        a << 2,
        a >> 1,
        a & b,
        a | b,
        a ^ b,
        ~a,
        divmod(-a, b),
        a / b,
        pow(a, 3, 7),
        abs(-a),
        a.bit_length(),
    )


def float_arithmetic(x):
    f = 2.75
    return (
        x * f,
        f // 1,
        f % 1,
        round(f),
        round(f, 1),
        f.is_integer(),
        f.hex(),
        float("inf"),
        int(f),
        math.isnan(float("nan")),
        -0.0,
        f.as_integer_ratio(),
        1e308 * 10,
    )


def complex_arithmetic(x):
    c = 1 + 2j
    return (
        x + c.real,
        c.imag,
        abs(3 + 4j),
        c.conjugate(),
        c * c,
        complex(1, 2),
        complex("1j"),
        c == 1 + 2j,
        cmath.sqrt(-1),
    )


def bool_arithmetic(x):
    return (
        x + True,
        True + True,
        not 1,
        True & False,
        True ^ True,
        bool("0"),
        int(True),
        isinstance(True, int),
        sum([True, False, True]),
    )


def conversions(x):
    return (
        x + int("12"),
        int("ff", 16),
        float("1.5"),
        str(1.5),
        bool([]),
        int(2.9),
        bin(5),
        hex(255),
        oct(8),
        chr(97),
        ord("a"),
        list("ab"),
        tuple({1: 2}),
        set((1,)),
        int("1_000"),
        bytes(2),
    )


def math_functions(x):
    return (
        x * math.sqrt(2), math.pi, math.floor(-1.5), math.ceil(1.2), math.gcd(12, 18), math.log(8, 2), math.prod([2, 3]), math.isclose(1, 1.0),
        math.inf, math.hypot(3, 4), math.factorial(5), math.exp(0), math.trunc(-2.5), math.comb(5, 2), math.copysign(1, -2), math.fsum([0.1] * 3), math.isqrt(10),
    )  # fmt: skip


def text_methods(x):
    s = " Hello, World "
    return (
        x + len(s), s.strip(), s.lower(), s.split(","), s.replace("o", "0"), s.find("W"), s.count("l"), s.startswith(" H"), "-".join(["a", "b"]),
        "a,b".partition(","), "abc".upper(), "x".center(5, "*"), "7".zfill(3), "a b c".rsplit(" ", 1), "aBc".swapcase(), "abc"[1], "abc"[-2:],
        "a" in "abc", "ab" * 2, "%d-%s" % (1, "z"), "{}:{n:>4}".format(1, n=2), "abc".isalpha(), "a\nb".splitlines(), "abc".encode(), "abc".translate({97: "z"}),
        "x".join(str(i) for i in range(3)), "title case".title(), "prefix_a".removeprefix("prefix_"), "a" < "b", "abc".endswith(("c", "d")), max("abc"),
    )  # fmt: skip


def f_strings(x):
    n, s, f = 5, "a", 3.14159
    return (
        x + n,
        f"{n}",
        f"{s!r:>5}",
        f"{f:.2f}",
        f"{n:03d}{s}",
        f"{n=}",
        f"{'nested ' + s}",
        f"{f:{n}.{2}}",
        f"{[1, 2]}",
        f"{x.dim()}-{x.shape}",
        f"{x.dtype}",
        f"{{}}",
    )


def f_string_of_objects(x):
    return (
        x + 1,
        f"{ {'a': (1, None)} }",
        f"{len}",
        f"{int}",
        f"{torch.float32}",
        f"{x.device}",
        f"{Fraction}",
        str(range(3)),
        repr(slice(1, 2)),
    )


def text_of_containers(x):
    return (
        x + 1,
        str([1, "a", (2.5, None)]),
        repr({"k": {1}}),
        str(x.shape),
        str(torch.Size([1])),
        str(()),
        repr("q'"),
        ascii("é"),
        format(1234567, ","),
    )


def global_written(x):
    global COUNT
    COUNT += 1
    return x + 1


global_written.any_graphs = True


def global_containers_mutated(x):
    ITEMS.append(len(ITEMS))
    NAMES["n"] = len(ITEMS)
    return x + 1


global_containers_mutated.any_graphs = True


def global_created_and_deleted(x):
    global CREATED
    CREATED = x + 1
    value = CREATED
    del CREATED
    try:
        CREATED
    except NameError as error:
        return value, str(error)


def global_tensor(x):
    return x + TENSOR


def global_tensor_in_place(x):
    TENSOR.add_(1)
    return x * TENSOR


def global_rebound_to_tensor(x):
    global LAST
    LAST = x * 2
    return LAST + 1


def nonlocal_chain(x):
    a = 1

    def outer():
        b = 2

        def inner():
            nonlocal a, b
            a += b
            b *= 10
            return b

        return inner() + inner()

    return x + outer(), a


def nonlocal_deleted(x):
    a = 1

    def drop():
        nonlocal a
        del a

    drop()
    try:
        return a
    except NameError as error:
        return x + 1, type(error).__name__


def module_attributes(x):
    return (
        torch.nn.functional.relu(x) + math.e,
        os.path.join("a", "b"),
        string.ascii_lowercase[:3],
        sys.maxsize > 0,
        sys.version_info >= (3, 8),
        sys.byteorder,
    )


def regular_expressions(x):
    pattern = re.compile(r"(\w)(\d+)")
    found = pattern.match("a12")
    return (
        x + int(found.group(2)),
        re.sub("a", "b", "banana"),
        re.findall(r"\d", "a1b2"),
        bool(re.search("z", "abc")),
        re.split(",", "a,b"),
        found.groups(),
    )


def random_numbers(x):
    random.seed(0)
    a = random.random()
    r = random.Random(5)
    return x + 1, a, random.randint(1, 10), r.random(), random.choice([1, 2, 3])


random_numbers.any_graphs = True


def random_of_torch(x):
    torch.manual_seed(3)
    return (
        x + torch.rand(2, 3),
        torch.randn(2),
        torch.randint(5, (2,)),
        torch.randperm(4),
        torch.bernoulli(torch.full((3,), 0.5)),
    )


random_of_torch.any_graphs = True


def random_without_seed(x):
    return x + torch.rand(2, 3), torch.nn.functional.dropout(x, 0.5), torch.rand_like(x)


def random_with_generator(x):
    g = torch.Generator()
    g.manual_seed(4)
    return x + torch.rand(3, generator=g)


random_with_generator.any_graphs = True


def time_is_read(x):
    return x + 1, time.time() > 0, time.perf_counter() > 0


time_is_read.any_graphs = True


def logging_calls(x):
    logger.debug("value %s", 3)
    return x + 1


logging_calls.any_graphs = True


def printing(x):
    print("before", 3)
    y = x + 1
    print("after", y.shape[0], sep="-")
    return y * 2


printing.any_graphs = True


def warning(x):
    warnings.warn("careful", stacklevel=1)
    return x + 1


warning.any_graphs = True


def environment(x):
    return (
        x + len(os.environ.get("NO_SUCH_VARIABLE", "ab")),
        "NO_SUCH_VARIABLE" in os.environ,
        os.getenv("NO_SUCH_VARIABLE"),
    )


environment.any_graphs = True


def json_and_text(x):
    return x + 1, json.dumps({"a": [1, 2]}), json.loads('{"k": 1}'), textwrap.dedent("  a")


json_and_text.any_graphs = True


def fractions_and_statistics(x):
    return x + 1, Fraction(1, 3) + 1, statistics.mean([1, 2, 3])


fractions_and_statistics.any_graphs = True


def numpy_scalars(x):
    return (
        x * np.float32(2.0),
        x + np.int64(3),
        np.pi * x,
        int(np.int32(4)),
        float(np.float64(1.5)),
        np.prod([2, 3]) + x,
    )


numpy_scalars.any_graphs = True


def numpy_arrays(x):
    a = np.arange(3)
    return (
        x + torch.from_numpy(a),
        torch.as_tensor(np.ones(2)),
        a.sum(),
        torch.tensor(a),
        x.numpy().sum(),
    )


numpy_arrays.any_graphs = True


def deep_copies(x):
    return copy.deepcopy({"a": [1, {2}], "t": (3,)}), x + 1, copy.copy([x])


def deepcopy_tells_equal_constants_apart(x):
    copied = copy.deepcopy([1, True, 1.0, 0.0, -0.0, False, 0])
    return [repr(value) for value in copied], x + 1


def deepcopy_keeps_sharing(x):
    shared = [1]
    c = copy.deepcopy([shared, shared])
    return x + 1, c[0] is c[1], c[0] is shared


def operator_in_place(x):
    items = [1]
    same = operator.iadd(items, [2])
    return (
        operator.iadd(x.clone(), 1),
        same is items,
        operator.itemgetter("a")({"a": 1}),
        operator.neg(3),
        operator.truth([]),
        operator.concat([1], [2]),
    )


def typing_objects(x):
    List = typing.List[int]
    return (
        x + 1,
        typing.get_origin(List) is list,
        typing.get_args(dict[str, int]),
        List == typing.List[int],
        typing.TYPE_CHECKING,
        typing.Any is typing.Any,
    )


def mapping_proxy(x):
    p = types.MappingProxyType({"a": 1})
    return x + p["a"], len(p), list(p), "a" in p


mapping_proxy.any_graphs = True


def ellipsis_and_none(x):
    return (
        x[..., None],
        x[None].shape,
        ... is Ellipsis,
        NotImplemented is NotImplemented,
        type(None)() is None,
    )


def symbolic_chars(x):
    table = str.maketrans("ab", "xy")
    return x + 1, "aabb".translate(table), string.Template("$a").substitute(a=1), "ß".casefold()


symbolic_chars.any_graphs = True


def exec_and_eval(x):
    return eval("x + 1", {"x": x}), eval("2 * 3")


exec_and_eval.any_graphs = True


def locals_and_globals(x):
    y = 2
    return x + locals()["y"], "COUNT" in globals(), globals()["ITEMS"] is ITEMS


locals_and_globals.any_graphs = True


def names_of_variables(x):
    y = 2
    own = dir()
    return x + y, own, [name for name in (lambda c: dir())(3)]


def star_import_like(x):
    sin = getattr(torch, "sin")
    name = "cos"
    return sin(x) + getattr(torch, name)(x) + getattr(x, "tan")()


def int_methods_on_sizes(x):
    n = x.shape[1]
    return (
        x + n // 2,
        n.bit_length(),
        (n).__add__(1),
        n * 1.5,
        [0] * n,
        "a" * n,
        n == 3,
        n in (3, 4),
        {n: 1}[3],
        max(n, 2),
        f"{n}",
        range(n)[-1],
    )


def float_formatting_of_numbers(x):
    return (
        x + 1,
        "%.3f" % 2.0,
        "%5s|%-5s|" % ("a", "b"),
        "{:+d}".format(5),
        f"{1e-10:.2e}",
        f"{0.5:%}",
        f"{255:#x}",
        f"{True:d}",
    )


Row = namedtuple("Row", "t n")


@dataclasses.dataclass
class Settings:
    n: int = 2
    label: str = "s"


SETTINGS = Settings()


def settings_object(x):
    return x * SETTINGS.n, SETTINGS.label.upper(), Row(x, SETTINGS.n)


def int_overflow_and_big(x):
    return x + 1, 2**100, -(2**63), 10**20 // 3, int(1e18) * 10, hash(2**61 - 1)


def comparison_of_mixed(x):
    return (
        x + 1,
        1 == 1.0,
        1 == True,
        "1" == 1,
        None is None,
        [] == (),
        1.0 is 1.0,
        (1, "a") == (1, "a"),
        0.1 + 0.2 == 0.3,
        float("nan") == float("nan"),
    )


NUMBERS = np.float32(2.5), np.float64(1.5), np.int64(3), np.bool_(True)


def numpy_numbers(x):
    a, b, c, d = NUMBERS
    return (
        x * a,
        x + c,
        b * 2,
        int(c) + 1,
        float(a),
        x * float(b),
        bool(d),
        c + 1,
        str(c),
        x.reshape(c, 2),
        x[np.int64(1)],
    )


def numpy_functions_of_numbers(x):
    return (
        x * np.sqrt(2.0),
        x + np.log(3),
        np.prod([2, 3]) * x,
        int(np.ceil(x.shape[1] / 2)),
        np.maximum(2, 3) * x,
        np.pi,
    )


class Permission(enum.IntFlag):
    R = 4
    W = 2


class Mode(enum.Enum):
    A = 1

    def __call__(self, y):
        return y * self.value


def flags_and_calls_of_members(x):
    return (
        x * (Permission.R | Permission.W),
        bool(Permission.R & Permission.W),
        Permission(6),
        Mode.A(x),
        Mode["A"](x),
    )


class Metres(float):
    def __new__(cls, value, unit="m"):
        made = super().__new__(cls, value)
        made.unit = unit
        return made


class Count(int):
    def __new__(cls, value):
        made = int.__new__(cls, value)
        made.origin = value
        return made


def numbers_with_attributes(x):
    a, b = Metres(2.0, "km"), Count(3)
    return x * a, a.unit, a * 2, x * b, b.origin, b + 1, b == 3, [1, 2, 3, 4][b], a


def iterator_of_matches(x):
    return [m.group() for m in re.finditer("[0-9]", "12")], x + 1


def typed_tensors(x):
    return (
        torch.FloatTensor([1, 2]),
        torch.LongTensor([1]),
        torch.FloatTensor(2).shape,
        x.type(torch.DoubleTensor),
    )


def percent_of_containers(x):
    return x + 1, "%r %s %a" % ([1], ["a"], {"b": (None,)}), "%-6r|" % ([],), bool(slice(1))


def members_of_a_flag(x):
    class Mode(enum.IntFlag):
        READ = 1
        WRITE = 2
        RUN = 4

    return [mode.name for mode in Mode.READ | Mode.RUN], len(Mode.READ | Mode.WRITE), x + 1


members_of_a_flag.any_graphs = True  # the first call makes members of the flag


def errors_of_builtins(x, log):
    functions = (
        *(
            lambda: max([]),
            lambda: min(),
            lambda: slice(),
            lambda: type("a", 1),
            lambda: "é".encode("ascii"),
        ),
        *(lambda: operator.attrgetter(1), lambda: itertools.islice([1], -1), lambda: {}()),
    )
    for function in functions:
        try:
            function()
        except (TypeError, ValueError) as error:
            log.append((type(error).__name__, str(error)))
    return operator.index(True), x + 1


RATE = decimal.Decimal("0.50")


def decimals_and_dates(x):
    when = datetime.datetime(2020, 1, 31, tzinfo=datetime.timezone.utc) + datetime.timedelta(days=1)
    total = sum([RATE, decimal.Decimal(x.shape[0])], decimal.Decimal(0))
    try:
        decimal.Decimal(1) + 1.5
    except TypeError as error:
        text = str(error)
    return (
        x * float(total),
        total,
        f"{total:.1f}",
        round(RATE, 1),
        when.month,
        when.isoformat(),
        when.timestamp(),
        text,
    )


def dates_read(x):
    return (
        datetime.date.fromisoformat("2020-02-03").weekday(),
        datetime.time(3) < datetime.time(4),
        x + 1,
    )
