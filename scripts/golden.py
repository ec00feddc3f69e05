"""Writes spec/golden/: what PyTorch computes for convolution, pooling, reductions, sorting and index data. Needed only to
change the cases.

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

# Reductions, sorting, index data: x is float64 of the formula; "special" replaces some elements. Dimensions and positions
# are 0-based in the file, as PyTorch gives them; spec/reductions_spec.lua converts.

SPECIAL = [float("nan"), float("inf"), 0.0, float("-inf"), -0.0, 2.5]
DIMS = [{}, dict(dim=0), dict(dim=-1, keepdim=True), dict(dim=[0, 2])]
REDUCED = ["prod", "var", "std", "any", "all", "logsumexp", "count_nonzero", "nansum", "nanmean"]
ONE_DIM = ("prod", "any", "all", "argmax", "argmin")


def reduction_cases():
    for name in REDUCED:
        for options in DIMS:
            if name == "count_nonzero":
                options = {k: v for k, v in options.items() if k != "keepdim"}
            if not (name in ONE_DIM and isinstance(options.get("dim"), list)):
                yield dict(op=name, x=[3, 5, 2], options=dict(dict(dim=[0, 1, 2]), **options) if name == "logsumexp" else options)
                if options.get("dim") in (0, -1):
                    yield dict(op=name, x=[4, 6], special=True, options=options)
    for name in ("var", "std"):
        for correction in (0, 2):
            yield dict(op=name, x=[3, 5, 2], options=dict(dim=[1], correction=correction))
        yield dict(op=name, x=[1, 3], options=dict(dim=[0], correction=1))
    for name in ("var_mean", "std_mean"):
        yield dict(op=name, x=[3, 5, 2], options=dict(dim=[1, 2]))
    for p in (0, 0.5, 1, 2, 3, -1, float("inf"), float("-inf")):
        yield dict(op="norm", x=[3, 7], options=dict(p=p, dim=1))
        yield dict(op="norm", x=[3, 7], options=dict(p=p, dim=[0, 1], keepdim=True))
    for name in ("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin"):
        for dim in (0, -1):
            yield dict(op=name, x=[3, 7], options=dict(dim=dim))
            yield dict(op=name, x=[4, 6], special=True, options=dict(dim=dim))
    for name in ("argmax", "argmin", "max", "min"):
        yield dict(op=name, x=[3, 7], options=dict(dim=1))
        yield dict(op=name, x=[4, 6], special=True, options=dict(dim=0))


def sorting_cases():
    for special in (False, True):
        for descending in (False, True):
            for dim in (0, -1):
                yield dict(op="sort", x=[9, 7], special=special, options=dict(dim=dim, descending=descending, stable=True))
        yield dict(op="argsort", x=[9, 7], special=special, options=dict(dim=1, descending=False, stable=True))
        yield dict(op="msort", x=[9, 3], special=special, options={})
    for largest in (True, False):
        yield dict(op="topk", x=[3, 7], options=dict(k=3, dim=1, largest=largest))
        yield dict(op="kthvalue", x=[3, 7], options=dict(k=2 + largest, dim=1, keepdim=largest))
    for options in ({}, dict(dim=0), dict(dim=-1, keepdim=True)):
        yield dict(op="median", x=[4, 5], options=options)
    yield dict(op="median", x=[4, 6], special=True, options=dict(dim=1))
    for how in ("linear", "lower", "higher", "midpoint", "nearest"):
        for q in (0, 0.125, 0.4, 0.9, 1):
            yield dict(op="quantile", x=[4, 5], options=dict(q=q, dim=1, interpolation=how))
    yield dict(op="quantile", x=[4, 5], options=dict(q=0.3))
    yield dict(op="quantile", x=[4, 6], special=True, options=dict(q=0.3, dim=0, keepdim=True))
    yield dict(op="histc", x=[9, 7], options=dict(bins=5, min=-1, max=1))
    yield dict(op="histc", x=[9, 7], options=dict(bins=7))
    for diagonal in (-2, 0, 1, 5):
        yield dict(op="tril", x=[2, 3, 4], options=dict(diagonal=diagonal))
        yield dict(op="triu", x=[4, 3], options=dict(diagonal=diagonal))
    yield dict(op="trace", x=[3, 4], options={})


def special(x):
    flat_x = x.reshape(-1).clone()
    for i in range(0, flat_x.numel(), 3):
        flat_x[i] = SPECIAL[i // 3 % len(SPECIAL)]
    return flat_x.reshape(x.shape)


def plain(tensor):
    words = {"nan": "nan", "inf": "inf", "-inf": "-inf"}
    return [words.get(str(float(v)), int(v) if v == v and abs(v) < 1e15 and v == int(v) else v)
            for v in tensor.detach().reshape(-1).tolist()]


def function_of(name):
    def nanmean(x, **options):
        return torch.nanmean(x, **options)

    return dict(nanmean=nanmean).get(name) or getattr(torch, name)


def run_named(case):
    x = values(case["x"], 1)
    x = (special(x) if case.get("special") else x).requires_grad_()
    options = {k: float(v) if k == "q" else v for k, v in case["options"].items()}
    if case["op"] in ("var_mean", "std_mean", "var", "std") and options:
        options.setdefault("correction", 1)
    outputs = function_of(case["op"])(x, **options)
    outputs = list(outputs) if isinstance(outputs, tuple) else [outputs]
    case = dict(case, results=[dict(shape=list(y.shape), y=plain(y), positions=y.dtype == torch.int64
                                    and case["op"] not in ("count_nonzero",)) for y in outputs])
    case["options"] = {k: plain(torch.tensor(v, dtype=torch.float64))[0] if k == "p" else v for k, v in options.items()}
    if outputs[0].requires_grad and not case.get("special"):
        grad, = torch.autograd.grad(outputs[0], x, values(outputs[0].shape, 4), allow_unused=True)
        if grad is not None:
            case["grad"] = plain(grad)
    return case


def run_indexed(name, shape, at, dim, spread):
    k = torch.arange(int(torch.tensor(at).prod())).reshape(at)
    if spread: # along the dimension all positions differ
        index = sum(torch.arange(n).reshape([-1 if d == e else 1 for e in range(len(at))]) for d, n in enumerate(at))
        index = (index + 0 * k) % shape[dim]
    else:
        index = (k * 5 + 3) % shape[dim]
    x, source = values(shape, 1).requires_grad_(), values(at, 2).requires_grad_()
    y = torch.gather(x, dim, index) if name == "gather" else getattr(torch, name)(x, dim, index, source)
    inputs = [x] if name == "gather" else [x, source]
    grads = torch.autograd.grad(y, inputs, values(y.shape, 4))
    return dict(op=name, x=shape, index=dict(shape=at, y=plain(index)), dim=dim, shape=list(y.shape), y=plain(y),
                grads=[plain(g) for g in grads])


INDEXED = [
    ("gather", [4, 3], [7, 2], 0, False), ("gather", [2, 5, 3], [2, 4, 3], 1, False),
    ("scatter_add", [4, 3], [7, 2], 0, False), ("scatter_add", [2, 5, 3], [2, 4, 3], 1, False),
    ("scatter", [4, 3], [3, 2], 0, True), ("scatter", [2, 5, 3], [2, 4, 3], 1, True),
]
golden = {
    "made_by": "scripts/golden.py with PyTorch " + torch.__version__,
    "named": [run_named(case) for case in list(reduction_cases()) + list(sorting_cases())],
    "indexed": [run_indexed(*case) for case in INDEXED],
}
with open("spec/golden/reductions.json", "w") as file:
    json.dump(golden, file, separators=(",", ":"))
    file.write("\n")
