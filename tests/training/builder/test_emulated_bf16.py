"""On CPUs without instructions for bf16 products under autocast are float32's, and rounded."""

from __future__ import annotations

import json

import pytest

from runner.training.builder.precision_probe import lacks_bf16
from tests.conftest import python

CODE = """
import json, warnings
import torch
from torch import nn
from torch.nn import functional
from runner.training.builder.precision_probe import multiply_by_float32
warnings.simplefilter("error")

def rounded(x):
    return x.bfloat16().float()

def gradients(of, *leaves):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = of(*leaves)
    assert out.dtype is torch.bfloat16, out.dtype
    found = torch.autograd.grad(out.float().square().sum(), leaves)
    return [out.detach().float(), *found]

torch.manual_seed(0)
x, w, b = (torch.randn(*s, requires_grad=True) for s in ((48, 129), (131, 129), (131,)))
m, n = (torch.randn(*s, requires_grad=True) for s in ((6, 8, 4), (6, 4, 10)))
q = torch.randn(3, 2, 5, 8, requires_grad=True)
products = {
    "linear": (lambda x, w, b: functional.linear(x, w, b), x, w, b),
    "wide": (lambda x, w: functional.linear(x.repeat(40, 60), w.repeat(8, 60)), x, w),
    "matmul": (torch.matmul, m, n),
    "bmm": (torch.bmm, m, n),
    "einsum": (lambda x, w: torch.einsum("bc,wc->bw", x, w), x, w),
    "baddbmm": (lambda m, n: torch.baddbmm(torch.ones(6, 1, 10), m, n), m, n),
    "attention": (lambda q: functional.scaled_dot_product_attention(q, q, q, is_causal=True), q),
}
before = {name: gradients(*product) for name, product in products.items()}
exact = rounded(x) @ rounded(w).T + rounded(b)
multiply_by_float32()
multiply_by_float32()
after = {name: gradients(*product) for name, product in products.items()}
apart = {
    name: max(float((a - b).abs().max() / a.abs().max()) for a, b in zip(before[name], after[name]))
    for name in products
}
with torch.autocast("cpu", dtype=torch.bfloat16):
    is_exact = torch.equal(functional.linear(x, w, b).float(), rounded(exact))
    double = torch.mm(torch.ones(2, 2).double(), torch.ones(2, 2).double()).dtype
    unit = nn.GRU(4, 3, batch_first=True)(torch.ones(2, 5, 4))[0]
plain = functional.linear(x, w, b).dtype
print(json.dumps([apart, is_exact, str(double), bool(unit.isfinite().all()), str(plain)]))
"""


@pytest.mark.long
def test_products_and_gradients_are_those_of_bf16_up_to_its_rounding():
    done = python("-c", CODE)
    assert done.returncode == 0, done.stderr
    apart, is_exact, double, is_finite, plain = json.loads(done.stdout)
    assert max(apart.values()) < 2**-6, apart  # bf16 has 8 bits
    assert is_exact and is_finite
    assert (double, plain) == ("torch.float64", "torch.float32")  # as without


@pytest.mark.parametrize(
    ("cpu", "lacks"),
    [
        ("AMD EPYC, avx2", True),
        ("Intel(R) Xeon(R), avx2, avx512f", True),
        ("AMD EPYC, avx2, avx512_bf16, avx512f", False),
        ("Intel(R) Xeon(R), amx_bf16, avx2, avx512_bf16, avx512f", False),
        ("aarch64", False),  # PyTorch has products of its own there
    ],
)
def test_the_extensions_of_a_processor_decide(cpu, lacks):
    assert lacks_bf16(cpu) == lacks
