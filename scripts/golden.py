"""Writes spec/golden/conv.json: what PyTorch computes for convolution and pooling. Needed only to change the cases.

Inputs are eighths that a formula makes (see `values`), so that the file holds results only and sums are exact in any order.
"""

import json

import torch
import torch.nn.functional as F

CONV = [
    dict(x=[2, 3, 8, 7], w=[4, 3, 3, 3], bias=True, padding=1),
    dict(x=[7, 4, 9, 6], w=[6, 2, 3, 2], bias=True, stride=[2, 1], padding=[1, 0], groups=2),
    dict(x=[1, 2, 10, 11], w=[3, 2, 3, 3], dilation=2, padding=2),
    dict(x=[2, 2, 7, 9], w=[2, 2, 2, 3], bias=True, stride=3, dilation=[3, 2], padding=[0, 2]),
    dict(x=[1, 16, 5, 6], w=[16, 16, 3, 3], bias=True, padding=1),
    dict(x=[1, 16, 6, 5], w=[16, 1, 3, 3], stride=2, padding=1, groups=16),
    dict(x=[2, 5, 4, 3], w=[3, 5, 1, 1], bias=True),
]
MAX = [
    dict(x=[2, 2, 7, 9], kernel=3, stride=2, padding=1),
    dict(x=[1, 2, 6, 8], kernel=[3, 2], ceil_mode=True),
    dict(x=[1, 1, 9, 8], kernel=2, stride=1, dilation=[3, 2]),
    dict(x=[1, 1, 5, 5], kernel=3, stride=3, padding=1, ceil_mode=True),
]
MEAN = [
    dict(x=[2, 2, 7, 9], kernel=3, stride=2, padding=1),
    dict(x=[1, 2, 6, 8], kernel=[3, 2], stride=[2, 3], padding=[1, 1], ceil_mode=True),
    dict(x=[1, 2, 6, 8], kernel=[3, 2], stride=[2, 3], padding=[1, 1], ceil_mode=True, count_include_pad=False),
]


def values(shape, seed):
    k = torch.arange(int(torch.tensor(shape).prod()), dtype=torch.float64)
    return (torch.remainder(k * 7 + seed * 5, 23) - 11).div(8).reshape(shape)


def flat(tensor):
    return [int(v) if v == int(v) else v for v in tensor.detach().reshape(-1).tolist()]


def run(case, function, names):
    options = {k: v for k, v in case.items() if k not in ("x", "w", "bias")}
    inputs = [values(case["x"], 1).requires_grad_()]
    if "w" in case:
        inputs.append(values(case["w"], 2).requires_grad_())
    if case.get("bias"):
        inputs.append(values(case["w"][:1], 3).requires_grad_())
    y = function(*inputs, **{names.get(k, k): v for k, v in options.items()})
    grads = torch.autograd.grad(y, inputs, values(y.shape, 4))
    result = dict(x=case["x"], options=options, shape=list(y.shape), y=flat(y), grads=[flat(g) for g in grads])
    if "w" in case:
        result.update(w=case["w"], bias=bool(case.get("bias")))
    return result


golden = {
    "made_by": "scripts/golden.py with PyTorch " + torch.__version__,
    "conv2d": [run(case, F.conv2d, {}) for case in CONV],
    "max_pool2d": [run(case, F.max_pool2d, {"kernel": "kernel_size"}) for case in MAX],
    "avg_pool2d": [run(case, F.avg_pool2d, {"kernel": "kernel_size"}) for case in MEAN],
}
with open("spec/golden/conv.json", "w") as file:
    json.dump(golden, file, separators=(",", ":"))
    file.write("\n")
