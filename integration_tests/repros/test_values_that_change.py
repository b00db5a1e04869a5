"""Containers and text that change between calls, in programs that catch errors: results, errors,
and what is left of them.
"""

from __future__ import annotations

import bisect
import collections
import copy
import enum
import fractions
import functools
import heapq
import itertools
import json
import math
import operator

import bytecode_dynamo
import numpy as np
import pytest
import torch
import torchstrata

OF_LISTS = """
a[0]
a[-1]
a[5]
a[1:]
a[::-1]
len(a)
sum(a)
sorted(a)
sorted(a,reverse=True)
max(a)
min(a)
a.index(2)
a.count(1)
a+[1]
a*2
a==[1,2]
a<[2]
a.pop()
a.pop(0)
a.append(3) or a
a.extend([1,2]) or a
a.insert(1,9) or a
a.remove(2) or a
a.reverse() or a
a.sort() or a
a.clear() or a
a.copy()
a.__len__()
list(a)
tuple(a)
set(a)
dict(enumerate(a))
list(zip(a,a[1:]))
list(map(str,a))
list(filter(None,a))
any(a)
all(a)
[i*2 for i in a]
{i for i in a}
{i:i for i in a}
a and a[0]
a or 'empty'
bool(a)
not a
a is None
isinstance(a,list)
type(a).__name__
'x'.join(map(str,a))
str(a)
repr(a)
f'{a}'
hash(tuple(a))
1 in a
[*a,*a]
(lambda *p: p)(*a)
(lambda x1,x2=0: x1+x2)(*a)
next(iter(a))
next(iter(a),None)
list(reversed(a))
list(range(len(a)))
a[0]/a[1]
a[0]//a[-1]
a[a[0]]
divmod(sum(a),len(a))
[i for i in a if i>1]
math.prod(a)
collections.Counter(a).most_common(1)
collections.deque(a,maxlen=2)
a.__contains__(2)
a.__getitem__(0)
list(a.__iter__())
a.__add__([1])
a.__eq__([1,2])
slice(*a)
range(*a)
complex(*a)
str(*a)
int(*a)
dict(a)
[x for x in [a,a] if x]
a[0]==a[-1]
a[0] is a[-1]
getattr(a,'foo',None)
a.foo
a()
a['x']
a[None]
a[True]
a[1.5]
a[:1]+a[2:]
bytes(a)
bytearray(a)
sum(a,[])
sum(x for x in a if x)
[[j for j in range(i)] for i in a]
min(a,default=7)
max(a,key=lambda v:-v)
sorted(a,key=lambda v:-v)
a.__class__
list(dict.fromkeys(a))
functools.reduce(lambda p,q:p*q,a)
list(itertools.accumulate(a))
list(itertools.chain(a,a))
list(itertools.combinations(a,2))
list(itertools.product(a,a))[:3]
list(itertools.groupby(a))[:0]
list(itertools.islice(a,1,3))
list(itertools.takewhile(lambda v:v<2,a))
list(itertools.pairwise(a))
bisect.bisect(a,2)
heapq.nsmallest(2,a)
operator.itemgetter(0)(a)
json.dumps(a)
""".strip().splitlines()
OF_DICTS = """
a['x']
a.get('x')
a.get('x',3)
a.pop('x')
a.pop('x',None)
a.popitem()
a.setdefault('z',1)
a.update(y=5) or a
a|{'x':9}
{**a}
dict(**a)
list(a)
list(a.items())
list(a.values())
len(a)
'x' in a
'x' in a.values()
sorted(a)
sorted(a.items())
max(a,key=a.get)
max(a.values())
sum(a.values())
{v:k for k,v in a.items()}
{k:v for k,v in a.items() if v}
[k for k in a]
next(iter(a))
a=={'x':1}
bool(a)
a or 'e'
(lambda x=0,**k: (x,k))(**a)
(lambda x: x)(**a)
'{x}'.format(**a)
'%(x)s' % a
str(a)
a.copy()
a.clear() or a
dict.fromkeys(a,0)
list(reversed(a))
a.keys()&{'x'}
a.keys()-{'x'}
a.items()<={('x',1)}
a['x']/a['y']
a['x'] if 'x' in a else a['y']
collections.OrderedDict(a)
collections.ChainMap(a,{'q':1})['x']
collections.defaultdict(int,a)['w']
list(map(a.get,'xyz'))
list(zip(*a.items()))
tuple(a.items())[0]
isinstance(a,dict)
json.dumps(a)
a.__getitem__('x')
a.x
hash(frozenset(a))
[*a]
min(a)
operator.itemgetter('x','y')(a)
""".strip().splitlines()
OF_TEXT = """
a[0]
a[5]
a[1:3]
a[::-1]
len(a)
a.upper()
a.split()
a.split(',')
a.strip()
a+'x'
a*2
a=='ab'
a<'b'
a in 'abc'
'a' in a
a.find('b')
a.index('b')
a.replace('a','b')
a.startswith('a')
a.endswith(('b','c'))
a.isdigit()
int(a)
float(a)
ord(a)
list(a)
set(a)
sorted(a)
','.join(a)
a.encode()
a.partition('b')
a.title()
a.zfill(4)
a.center(6)
a.count('a')
f'{a!r:>6}'
'%s' % a
'{}'.format(a)
bool(a)
a or 'e'
hash(a)==hash(a)
getattr(x,a)
getattr(torch,a)(x).shape
{'ab':1,'':2}[a]
{'ab':1}.get(a)
max(a)
a.isalpha()
a.format(1)
a % 1
a.removeprefix('a')
[c for c in a]
a.casefold()
int(a,16)
a.rjust(5,'0')
a.translate({97:'z'})
a.maketrans('a','b')
x.sum(dim=len(a))
torch.float32 if a else torch.int32
a.splitlines()
a.expandtabs()
str.join(a,['1','2'])
a.__len__()
'abc'.index(a)
a is a
a==a[::-1]
""".strip().splitlines()
OF_ANYTHING = """
x*a
a*x
x+a
x-a
a-x
x/a
x**a
a**x
x//a
x%a
x>a
x==a
x!=a
a if a else 0
isinstance(a,(int,float))
x[a]
x.sum(a)
f'{a}'
[a]*2
a==1
type(a)
a is True
a is None
torch.tensor(a)
torch.full((2,),a)
torch.zeros(2,2)+a
x.add(a)
x.mul(a)
x.clamp(max=a)
torch.where(x>0,x,a)
x.masked_fill(x>0,a)
x.to(type(a))
float(a)
int(a)
bool(a)
str(a)
a+1
1+a
a*2
-a
abs(a)
round(a)
a<2
a>=1
a==True
max(a,0)
min(1,a)
[10,20,30][a]
{1:'one',2:'two'}.get(a)
a in (1,2)
x.view(a,-1)
torch.arange(a)
range(a)
list(range(a))
x.repeat(a,1)
x.pow(a)
torch.pow(a,x)
torch.maximum(x,torch.as_tensor(a))
x.new_tensor(a)
x.fill_(a)
x.__setitem__(0,a) or x
math.sqrt(a)
math.floor(a)
complex(a)
divmod(a,2)
a.real
a.conjugate()
getattr(a,'shape','none')
np.asarray(a)
np.float64(a)*2
x.type_as(torch.tensor(a))
torch.add(x,x,alpha=a)
torch.nn.functional.leaky_relu(x,a)
torch.nn.functional.dropout(x,a*0.)
x.roll(a)
x.flip(a)
x.transpose(0,a)
x.unsqueeze(a)
x.expand(a,2,2)
x.narrow(0,0,a)
x.chunk(a)
x.topk(a)
torch.eye(a)
x.tril(a)
x.diagonal(a)
x.softmax(a)
a or x
a and x
not a
(a,x)[0]
a is a
[v for v in (a,) if v]
sum([a,1])
sorted([a,0])
'%s'%a
'%d'%a
'{:.1f}'.format(a)
repr(a)
slice(a)
x[:a]
x[a:]
x[None,a]
x[...,a]
torch.is_tensor(a)
callable(a)
len(a)
tuple(a)
np.add(a,1)
operator.index(a)
""".strip().splitlines()
LISTS = [[1, 2], [1, 2, 3], [], [3, 1, 2], [0], [2, 2], [1, 0], [5, 4, 3, 2, 1, 0], [1], [-1, 2]]
DICTS = [
    {"x": 1}, {"x": 1, "y": 2}, {}, {"y": 2, "x": 1}, {"x": 0, "y": 0}, {"x": 2}, {"z": 1},
    {"x": 1, "y": 2, "z": 3}, {"y": 0},
    {"x": None},
]  # fmt: skip
TEXTS = ["ab", "abc", "", "12", "a", "b", "sin", "3.5", "ff", "A b", "shape", "{0}", "%d"]


class Code(enum.IntEnum):
    ONE = 1


ANYTHING = [
    1, 1.0, True, None, "1", torch.tensor(1), np.float32(1), (1,), 2, False, 0, np.int64(1), 1 + 0j,
    Code.ONE,
    torch.tensor(1.5), 2.5, [1], -1, np.bool_(True), fractions.Fraction(1, 2), torch.tensor([1, 0]),
    np.array([1, 0]), "x",
    math.nan, torch.float32, 3,
]  # fmt: skip
CASES = [
    *((e, LISTS) for e in OF_LISTS),
    *((e, DICTS) for e in OF_DICTS),
    *((e, TEXTS) for e in OF_TEXT),
]
MODULES = (bisect, collections, functools, heapq, itertools, json, math, operator, torch)


def program(expression, error="type(error).__name__, str(error)"):
    lines = [
        "def function(x, a):",
        "    try:",
        f"        result = {expression}",
        "    except Exception as error:",
        f"        result = {error}",
        "    return x + 1, result",
    ]
    namespace = {"np": np, **{module.__name__: module for module in MODULES}}
    exec("\n".join(lines), namespace)
    return namespace["function"]


@pytest.fixture(autouse=True)
def no_limit():
    with bytecode_dynamo.config.patch(recompile_limit=64):
        yield


def shown(result):
    """The type of a result and its text; the order of a set isn't promised, and depends on how the
    set was made.
    """
    text = str(sorted(map(repr, result))) if isinstance(result, set | frozenset) else repr(result)
    return type(result), "" if " at 0x" in text else text


def results(call, values):
    found = []
    for value in copy.deepcopy(values):
        x = torch.tensor([[1.0, 2.0], [3.0, -4.0]])
        found.append((*shown(call(x, value)[1]), shown(value), str(x.tolist())))
    return found


@pytest.mark.parametrize(
    ("expression", "values"), CASES, ids=[expression for expression, _ in CASES]
)
def test_results_are_those_of_python(expression, values):
    function = program(expression)
    compiled = torchstrata.compile(function, backend="eager")
    assert results(compiled, values) == results(function, values)


@pytest.mark.parametrize("expression", OF_ANYTHING)
@pytest.mark.parametrize("order", [1, -1])
def test_values_of_many_types(expression, order):
    function = program(expression, error="type(error).__name__")
    compiled = torchstrata.compile(function, backend="eager")
    with np.errstate(all="ignore"):
        assert results(compiled, ANYTHING[::order]) == results(function, ANYTHING[::order])


@pytest.mark.slow
@pytest.mark.parametrize("start", [0, 3, 5])
@pytest.mark.parametrize(
    ("expression", "values"), CASES, ids=[expression for expression, _ in CASES]
)
def test_in_other_orders(expression, values, start):
    function, values = program(expression), (values[start:] + values[:start])[::-1]
    assert results(torchstrata.compile(function, backend="eager"), values) == results(
        function, values
    )
