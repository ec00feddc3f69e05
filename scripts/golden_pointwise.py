"""Writes spec/golden/pointwise.json: what PyTorch computes for elementwise mathematics and for shapes. Needed only to
change the cases.

A case is a call and its values: inputs by name of a set below, arguments as Lua reads them in the spec ("lua"), results
flattened, with the gradient of the sum of result times weights 1, -2, 3, 1, -2, … Special values are written as strings.
"""

import json
import math

import torch
import torch.nn.functional as F

SETS = {
    "any": [-2.75, -1.5, -1.0, -0.625, -0.1, -1e-3, 0.0, 1e-3, 0.3, 0.5, 1.0, 1.25, 2.5, 3.0, 7.5],
    "other": [1.5, -0.75, 2.0, 3.5, -1.25, 0.5, 2.25, -3.0, 1.0, 0.25, -2.0, 1.25, 4.0, -3.0, 0.5],
    "unit": [-0.999, -0.9, -0.5, -0.1, -1e-4, 1e-4, 0.2, 0.6, 0.95, 0.9999],
    "positive": [1e-5, 0.01, 0.3, 0.5, 0.999, 1.0, 1.001, 1.5, 2.0, 3.7, 10.0, 55.5, 1000.0],
    "above": [1.0001, 1.1, 1.5, 2.0, 10.0, 1e5],
    "probability": [0.001, 0.1, 0.25, 0.5, 0.75, 0.999],
    "wide": [-120.0, -30.0, -20.5, -8.0, 0.0, 8.0, 20.5, 30.0, 120.0],
    "special": [math.inf, -math.inf, math.nan, 0.0, -0.0, 1.0],
    "gamma": [-3.5, -2.25, -0.5, 0.1, 0.75, 1.0, 2.0, 3.5, 12.0, 150.0],
}
UNARY = dict(
    any="exp expm1 exp2 sin cos atan sinh cosh asinh floor ceil round trunc frac sinc deg2rad rad2deg softsign tan relu6 "
    "selu mish logsigmoid hardswish hardsigmoid softplus celu elu leaky_relu hardtanh erf sigmoid tanh abs sign square",
    unit="asin acos atanh erfinv tan",
    positive="log1p log2 log10 lgamma digamma log sqrt rsqrt",
    above="acosh",
    probability="logit",
    wide="softplus logsigmoid elu selu celu mish hardswish softsign",
    special="expm1 log1p exp2 log2 log10 tan asin acos atan sinh cosh asinh acosh atanh erfinv lgamma floor ceil trunc "
    "isinf isfinite isnan nan_to_num relu6 elu softplus leaky_relu",
    gamma="lgamma digamma",
)
BINARY = "atan2 hypot logaddexp xlogy copysign fmod remainder floor_divide maximum minimum".split()
ARGUMENTS = [
    ("clamp", "any", [-1, 1]), ("clamp", "any", [0.5, -0.5]), ("leaky_relu", "any", [0.25]), ("elu", "any", [1.5]),
    ("celu", "any", [0.5]), ("softplus", "wide", [3]), ("hardtanh", "any", [-0.5, 2]), ("threshold", "any", [0.4, -3]),
    ("nan_to_num", "special", [5, 6, -7]), ("polygamma_1", "gamma", []), ("polygamma_2", "positive", []),
    ("polygamma_3", "positive", []),
]


def function(name):
    if name.startswith("polygamma_"):
        return lambda x: torch.polygamma(int(name[10:]), x)
    return getattr(F, name, None) or getattr(torch, name)


def plain(value):
    if isinstance(value, bool):
        return int(value)
    if value != value:
        return "nan"
    if abs(value) == math.inf:
        return "inf" if value > 0 else "-inf"
    if value == 0 and math.copysign(1, value) < 0:
        return "-0"
    return int(value) if value == int(value) and abs(value) < 1e15 else value


def flat(tensor):
    return [plain(v) for v in tensor.detach().reshape(-1).tolist()]


def weights(tensor):
    pattern = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    return pattern.repeat(tensor.numel() // 3 + 1)[: tensor.numel()].reshape(tensor.shape)


def run(name, sets, arguments=(), gradient=True):
    inputs = [torch.tensor(SETS[s], dtype=torch.float64, requires_grad=True) for s in sets]
    y = function(name)(*inputs, *arguments)
    case = dict(op=name, sets=list(sets), arguments=list(arguments), y=flat(y))
    if gradient and y.dtype == torch.float64 and y.requires_grad:
        (y * weights(y)).sum().backward()
        case["grads"] = [flat(x.grad) for x in inputs]
    return case


X = torch.arange(24, dtype=torch.float64).reshape(2, 3, 4)
V = torch.tensor([3.0, 1.0, 2.0], dtype=torch.float64)
SHAPES = [  # what Lua says, and what PyTorch says
    ("x:unflatten(3, { 2, -1 })", X.unflatten(2, (2, 2))),
    ("x:movedim(1, 3)", X.movedim(0, 2)),
    ("x:movedim({ 1, 2 }, { 3, 1 })", X.movedim((0, 1), (2, 0))),
    ("x:swapaxes(1, -1)", X.swapaxes(0, -1)),
    ("x:diagonal()", X.diagonal()),
    ("x:diagonal(1, 2, 3)", X.diagonal(1, 1, 2)),
    ("x:diagonal(-1, 3, 1)", X.diagonal(-1, 2, 0)),
    ("x:diagonal { offset = -2, dim1 = 2, dim2 = 3 }", X.diagonal(-2, 1, 2)),
    ("x:diagonal(7)", X.diagonal(7)),
    ("v:diag_embed()", V.diag_embed()),
    ("v:diag_embed(2)", V.diag_embed(2)),
    ("v:diag_embed(-1)", V.diag_embed(-1)),
    ("x:diag_embed(1, 1, 3)", X.diag_embed(1, 0, 2)),
    ("x:flip(1)", X.flip(0)),
    ("x:flip(2, 3)", X.flip(1, 2)),
    ("x:flip { -1 }", X.flip(-1)),
    ("x:roll(5)", X.roll(5)),
    ("x:roll(-1, 2)", X.roll(-1, 1)),
    ("x:roll({ 1, 7 }, { 1, 3 })", X.roll((1, 7), (0, 2))),
    ("x:rot90()", X.rot90()),
    ("x:rot90(2, { 2, 3 })", X.rot90(2, (1, 2))),
    ("x:rot90(-1, { 1, 3 })", X.rot90(-1, (0, 2))),
    ("x:tile(2)", X.tile(2)),
    ("x:tile(2, 1, 3, 2)", X.tile(2, 1, 3, 2)),
    ("v:tile { 2, 0 }", V.tile(2, 0)),
    ("x:repeat_interleave(2)", X.repeat_interleave(2)),
    ("x:repeat_interleave(3, 2)", X.repeat_interleave(3, 1)),
    ("x:repeat_interleave({ 2, 0, 1 }, 2)", X.repeat_interleave(torch.tensor([2, 0, 1]), 1)),
    ("x:pad { 1, 2 }", F.pad(X, (1, 2))),
    ("x:pad({ 1, 0, 0, 2 }, \"constant\", 7.5)", F.pad(X, (1, 0, 0, 2), value=7.5)),
    ("x:pad({ -1, 2, 1, -2 }, { value = -1 })", F.pad(X, (-1, 2, 1, -2), value=-1)),
    ("x:pad({ 3, 2 }, \"reflect\")", F.pad(X, (3, 2), "reflect")),
    ("x:pad({ 3, 5 }, \"replicate\")", F.pad(X, (3, 5), "replicate")),
    ("x:pad({ 3, 4 }, \"circular\")", F.pad(X, (3, 4), "circular")),
    ("x:unfold(3, 2, 1)", X.unfold(2, 2, 1)),
    ("x:unfold(2, 3, 2)", X.unfold(1, 3, 2)),
    ("x:unfold(-1, 2, 2)", X.unfold(-1, 2, 2)),
    ("x:as_strided({ 3, 2 }, { 2, 5 }, 4)", X.as_strided((3, 2), (2, 5), 4)),
    ("x:as_strided({ 2, 2, 3 }, { 1, 1, 0 })", X.as_strided((2, 2, 3), (1, 1, 0))),
    ("luda.hstack(v, v + 1)", torch.hstack((V, V + 1))),
    ("luda.hstack { x, x }", torch.hstack((X, X))),
    ("luda.vstack(v, v + 1)", torch.vstack((V, V + 1))),
    ("luda.dstack(v, v + 1)", torch.dstack((V, V + 1))),
    ("luda.atleast_3d(v)", torch.atleast_3d(V)),
    ("luda.atleast_2d(v)", torch.atleast_2d(V)),
    ("luda.meshgrid(v, v[{ {1, 2} }] + 4)[1]", torch.meshgrid(V, V[:2] + 4, indexing="ij")[0]),
    ("luda.meshgrid(v, v[{ {1, 2} }] + 4)[2]", torch.meshgrid(V, V[:2] + 4, indexing="ij")[1]),
    ("luda.meshgrid(v, v[{ {1, 2} }], v, { indexing = \"xy\" })[1]", torch.meshgrid(V, V[:2], V, indexing="xy")[0]),
    ("luda.meshgrid(v, v[{ {1, 2} }], v, { indexing = \"xy\" })[3]", torch.meshgrid(V, V[:2], V, indexing="xy")[2]),
    ("luda.tri(3, 4, 1)", torch.ones(3, 4).tril(1)),
    ("luda.tri(4, { dtype = \"i64\" })", torch.ones(4, 4).tril()),
    ("luda.logspace(-1, 2, 4)", torch.logspace(-1, 2, 4)),
    ("luda.logspace(0, 3, 4, { base = 2 })", torch.logspace(0, 3, 4, 2)),
    ("x:glu()", F.glu(X)),
    ("x:glu(3)", F.glu(X, 2)),
    ("(x - 12):prelu(luda.tensor({ 0.25 }))", F.prelu(X - 12, torch.tensor([0.25], dtype=torch.float64))),
    ("(x - 12):prelu(luda.tensor({ 0.25, 0.5, 2 }))",
     F.prelu(X - 12, torch.tensor([0.25, 0.5, 2], dtype=torch.float64))),
    ("x:lerp(x * 2 + 1, 0.25)", X.lerp(X * 2 + 1, 0.25)),
    ("x:lerp(x * 2 + 1, x / 10)", X.lerp(X * 2 + 1, X / 10)),
    ("x:addcmul(x, x + 1, 0.5)", X.addcmul(X, X + 1, value=0.5)),
    ("x:addcdiv(x, x + 1, { value = -2 })", X.addcdiv(X, X + 1, value=-2)),
    ("(x - 12):div(5, { rounding_mode = \"trunc\" })", (X - 12).div(5, rounding_mode="trunc")),
    ("(x - 12):div(-5, { rounding_mode = \"floor\" })", (X - 12).div(-5, rounding_mode="floor")),
    ("x:ldexp(v[1])", X.ldexp(torch.tensor(3))),
]

golden = {
    "made_by": "scripts/golden_pointwise.py with PyTorch " + torch.__version__,
    "sets": {name: [plain(v) for v in values] for name, values in SETS.items()},
    "calls": [run(name, [s]) for s, names in UNARY.items() for name in names.split()]
    + [run(name, ["any", "other"], gradient=name != "floor_divide") for name in BINARY]
    + [run(name, [s], arguments) for name, s, arguments in ARGUMENTS],
    "shapes": [dict(lua=lua, shape=list(y.shape), y=flat(y)) for lua, y in SHAPES],
}
with open("spec/golden/pointwise.json", "w") as file:
    json.dump(golden, file, separators=(",", ":"))
    file.write("\n")
