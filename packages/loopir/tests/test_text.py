import pytest
import torch
from loopir import ArtifactStore, ParseError, check_kernel, evaluate_kernel, format_kernel, parse_kernel

SOFTMAX = """\
@kernel(device='cpu', vector='r0')
def softmax(in0: In('float32', 64*s0), out0: Out('float32', 64*s0), s0: Size(hint=8)):
    for x0 in range(s0):
        for r0 in reduce(64):
            v0 = load(in0, [64*x0 + r0], 'float32')
            v1 = reduce('max', v0, 'float32')
        for r0 in reduce(64):
            v2 = load(in0, [64*x0 + r0], 'float32')
            v3 = sub(v2, v1)
            v4 = exp(v3)
            v5 = reduce('sum', v4, 'float32')
        for r0 in reduce(64):
            v6 = load(in0, [64*x0 + r0], 'float32')
            v7 = sub(v6, v1)
            v8 = exp(v7)
            v9 = div(v8, v5)
            store(out0, [64*x0 + r0], v9)
"""


def test_text_round_trips():
    kernel = parse_kernel(SOFTMAX)
    assert format_kernel(kernel) == SOFTMAX
    assert parse_kernel(format_kernel(kernel)) == kernel
    check_kernel(kernel)


def test_evaluator_is_softmax():
    x, out = torch.randn(5, 64), torch.empty(5, 64)
    evaluate_kernel(parse_kernel(SOFTMAX), [x, out], [5])
    torch.testing.assert_close(out, x.softmax(-1))


def test_parse_error_has_position():
    with pytest.raises(ParseError, match="line 5") as error:
        parse_kernel(SOFTMAX.replace("load(in0", "laod(in0", 1))
    assert error.value.column


def test_store_round_trips(tmp_path):
    store = ArtifactStore(tmp_path / "cache")
    key = store.key("a", b"b")
    assert key != store.key("ab", "") and store.get(key, ".so") is None
    path = store.put(key, ".so", b"payload")
    assert store.get(key, ".so") == path and path.read_bytes() == b"payload"
    path.write_bytes(b"changed")
    assert store.get(key, ".so") is None
    assert store.put(key, ".so", lambda p: p.write_bytes(b"again") and None).read_bytes() == b"again"
    assert (store.hits, store.misses) == (1, 2)
