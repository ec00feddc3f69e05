"""Writes spec/golden/order.json: what PyTorch computes for writing at positions, distinct values, differences and cuts.
Needed only to change the cases.

A case is a call as Lua reads it and PyTorch's results; the tensors that calls name stand in the file, of f64 unless their
name begins with "i" (positions, from 0 there), "b" (masks) or "n" (whole numbers). Gradients are those of the sum of the
first result times weights 1, -2, 3, 1, -2, … Results of int64 whose place is in `positions` count from 1 in Lua.
"""

import json
import math

import torch

NAN, INF = math.nan, math.inf
T = {
    "x": torch.tensor([(k * 7 + 3) % 11 / 4 - 1.25 for k in range(24)], dtype=torch.float64).reshape(2, 3, 4),
    "m": torch.tensor([[2.0, -1, 2, 0.5, -1], [3, 3, -2, 1, 0], [0, 0.25, 0, 7, 0.25]], dtype=torch.float64),
    "v": torch.tensor([1.5, -2, 0.5, 4, 0, -3.25], dtype=torch.float64),
    "w": torch.tensor([0.5, 0.25, 2, 1, 1.5], dtype=torch.float64),
    "z": torch.tensor([2.0, 0, -3, 0, 5, 0.5, -1, 2], dtype=torch.float64),
    "s": torch.tensor([[NAN, 1, INF, -2, NAN], [3, NAN, 2, 2, -INF], [NAN] * 5], dtype=torch.float64),
    "r": torch.tensor([[1.0, 2], [0, 5], [1, 2], [1, 0], [0, 5]], dtype=torch.float64),
    "i": torch.tensor([0, 2, 0]), "i2": torch.tensor([[1], [0]]), "i3": torch.tensor([3, 0, 3]),
    "ix": torch.tensor([[0, 1, 0, 0, 2], [2, 2, 0, 1, 1]]), "iz": torch.tensor([0, 1, 0, 1, 2, 2, 2, 4]),
    "it": torch.tensor([0, 3, 3, 1]),
    "b": torch.tensor([[True, False, True], [False, False, True]]),
    "n": torch.tensor([3, 1, 1, 2, 2, 2, 3, 1]),
}
x, m, v, w, z, s, r, b, n = (T[k] for k in "x m v w z s r b n".split())
i, i2, i3, ix, iz, it = (T[k] for k in "i i2 i3 ix iz it".split())

CASES = []


def case(lua, fn, wrt="", positions=()):
    leaves = {k: T[k].clone().requires_grad_() for k in wrt.split()}
    given = dict(T, **leaves)
    results = fn(given)
    results = list(results) if isinstance(results, (tuple, list)) else [results]
    entry = dict(lua=lua, results=[dict(shape=list(y.shape), y=flat(y), positions=p in positions) for p, y in enumerate(results)])
    if leaves:
        weights = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64).repeat(results[0].numel() // 3 + 1)
        (results[0] * weights[: results[0].numel()].reshape(results[0].shape)).sum().backward()
        entry["grads"] = {k: flat(leaf.grad) for k, leaf in leaves.items()}
    CASES.append(entry)


def plain(value):
    if isinstance(value, (bool, int)):
        return int(value)
    if value != value or abs(value) == INF:
        return str(value)
    return int(value) if value == int(value) else value


def flat(t):
    return [plain(e) for e in t.detach().reshape(-1).tolist()]


for accumulate in (False, True):
    word = str(accumulate).lower()
    case(f"m:index_put({{ i }}, v[{{ {{ 1, 5 }} }}], {word})", lambda g: g["m"].index_put((i,), g["v"][:5], accumulate),
         "m v" if accumulate else "")
    case(f"m:index_put({{ i, i3 }}, v[{{ {{ 1, 3 }} }}], {word})", lambda g: g["m"].index_put((i, i3), g["v"][:3], accumulate),
         "m v" if accumulate else "m")
    case(f"x:index_put({{ i2, i }}, m[{{ {{ 1, 3 }}, {{ 1, 4 }} }}], {word})",
         lambda g: g["x"].index_put((i2, i), g["m"][:3, :4], accumulate), "x m" if accumulate else "")
    case(f"x:index_put({{ b }}, w[{{ {{ 1, 4 }} }}], {word})", lambda g: g["x"].index_put((b,), g["w"][:4], accumulate), "x w")


def put_in_middle(g):
    y = g["x"].clone()
    y[:, it[:3] - it[:3] + i, :] = g["x"][:, :, :] * 2
    return y


def put_two_behind(g):
    y = g["x"].clone()
    y[:, i, it[:3]] = g["v"][:3]
    return y


def put_apart(g):
    y = g["x"].clone()
    y[i2[:, 0], :, it[:2]] = g["v"][:3]
    return y


case("x:index_put({ {}, i }, x * 2)", put_in_middle)
case("x:index_put({ {}, i, it[{ { 1, 3 } }] }, v[{ { 1, 3 } }])", put_two_behind, "x v")
case("x:index_put({ i2:select(2, 1), {}, it[{ { 1, 2 } }] }, v[{ { 1, 3 } }])", put_apart, "x v")
case("x:put(it, v[{ { 1, 4 } }])", lambda g: g["x"].put(it, g["v"][:4]))
case("x:put(it, v[{ { 1, 4 } }], true)", lambda g: g["x"].put(it, g["v"][:4], True), "x v")
case("x:take(it)", lambda g: g["x"].take(it), "x")
case("m:take_along_dim(i2[{ { 1 } }], 2)", lambda g: torch.take_along_dim(g["m"], i2[:1], 1), "m")
case("m:take_along_dim(i)", lambda g: torch.take_along_dim(g["m"], i), "m")

for how in ("sum", "mean", "prod", "amax", "amin"):
    for include in (True, False):
        call = f"\"{how}\", {{ include_self = {str(include).lower()} }})"
        case(f"m:scatter_reduce(1, ix, m[{{ {{ 1, 2 }} }}] * 2 + 0.1, {call}",
             lambda g: g["m"].scatter_reduce(0, ix, g["m"][:2] * 2 + 0.1, how, include_self=include), "m")
        case(f"v:scatter_reduce(1, iz, z, {call}",
             lambda g: g["v"].scatter_reduce(0, iz, g["z"], how, include_self=include), "v z")
case("v:scatter_reduce(1, iz, s:reshape(-1)[{ { 1, 8 } }], \"amax\")",
     lambda g: g["v"].scatter_reduce(0, iz, s.reshape(-1)[:8], "amax"))
case("v:scatter_reduce(1, iz, s:reshape(-1)[{ { 1, 8 } }], \"amin\")",
     lambda g: g["v"].scatter_reduce(0, iz, s.reshape(-1)[:8], "amin"))

case("m:mode()", lambda g: g["m"].mode(), "m", positions=(1,))
case("m:mode(1, true)", lambda g: g["m"].mode(0, True), "m", positions=(1,))
case("n:mode()", lambda g: n.mode(), positions=(1,))
for a in (m, n):
    name = "m" if a is m else "n"
    case(f"{name}:unique {{ return_inverse = true, return_counts = true }}",
         lambda g: torch.unique(a, return_inverse=True, return_counts=True), positions=(1,))
    case(f"{name}:unique_consecutive {{ return_inverse = true, return_counts = true }}",
         lambda g: torch.unique_consecutive(a, return_inverse=True, return_counts=True), positions=(1,))
case("r:unique { dim = 1, return_inverse = true, return_counts = true }",
     lambda g: torch.unique(r, return_inverse=True, return_counts=True, dim=0), positions=(1,))
case("m:unique { dim = 2, return_inverse = true, return_counts = true }",
     lambda g: torch.unique(m, return_inverse=True, return_counts=True, dim=1), positions=(1,))
case("luda.stack({ r, r }, 1):unique { dim = 2, return_counts = true }",
     lambda g: torch.unique(torch.stack([r, r]), return_counts=True, dim=1))
case("r:index_select(1, it + 1):unique_consecutive { dim = 1, return_inverse = true, return_counts = true }",
     lambda g: torch.unique_consecutive(r[[1, 4, 4, 2]], return_inverse=True, return_counts=True, dim=0), positions=(1,))
case("s:nanmedian()", lambda g: s.nanmedian())
case("s[{ { 1, 2 } }]:nanmedian(2)", lambda g: s[:2].nanmedian(1), positions=(1,))
case("m:nanmedian(1, true)", lambda g: g["m"].nanmedian(0, True), "m", positions=(1,))
for how in ("linear", "lower", "higher", "midpoint", "nearest"):
    for q in (0, 0.3, 0.5, 0.9):
        case(f"s:clamp(-9, 9):nanquantile({q}, {{ dim = 2, interpolation = \"{how}\" }})",
             lambda g: torch.nanquantile(s.clamp(-9, 9), float(q), 1, interpolation=how))
        case(f"m:nanquantile({q}, 1, true, \"{how}\")",
             lambda g: g["m"].nanquantile(float(q), 0, True, interpolation=how), "m")
case("m:aminmax { dim = 2 }", lambda g: torch.aminmax(g["m"], dim=1))
case("m:aminmax()", lambda g: torch.aminmax(m))
case("m:diff()", lambda g: g["m"].diff(), "m")
case("m:diff(2, 1)", lambda g: g["m"].diff(2, 0), "m")
case("m:diff { n = 9 }", lambda g: m.diff(9))
case("v:diff { prepend = w, append = z }", lambda g: torch.diff(g["v"], prepend=g["w"], append=g["z"]), "v w z")
case("b:diff()", lambda g: b.diff())
case("luda.tril_indices(3, 4, 1)", lambda g: torch.tril_indices(3, 4, 1), positions=(0,))
case("luda.triu_indices(4, 3)", lambda g: torch.triu_indices(4, 3), positions=(0,))
case("luda.triu_indices(2, 3, 5)", lambda g: torch.triu_indices(2, 3, 5), positions=(0,))
case("m:cov()", lambda g: g["m"].cov(), "m")
case("m:cov { correction = 0, fweights = n[{ { 1, 5 } }], aweights = w }",
     lambda g: g["m"].cov(correction=0, fweights=n[:5], aweights=w), "m")
case("m:cov { aweights = w }", lambda g: m.cov(aweights=w))
case("v:cov()", lambda g: v.cov())
case("m:corrcoef()", lambda g: g["m"].corrcoef())
case("m:trapezoid()", lambda g: torch.trapezoid(g["m"]), "m")
case("m:trapezoid(w, nil, 2)", lambda g: torch.trapezoid(g["m"], g["w"], dim=1), "m w")
case("m:cumulative_trapezoid { dx = 0.5, dim = 1 }", lambda g: torch.cumulative_trapezoid(g["m"], dx=0.5, dim=0), "m")
case("v:vander()", lambda g: torch.vander(v))
case("v:vander(3, true)", lambda g: torch.vander(v, 3, True))
case("luda.column_stack(v, v * 2)", lambda g: torch.column_stack((v, v * 2)))
for cuts, text in ((3, "3"), ((1, 4), "{ 1, 4 }"), ((-1, 2), "{ -1, 2 }"), ((3, 9), "{ 3, 9 }")):
    case(f"unpack(m:tensor_split({text}, 2))", lambda g: m.tensor_split(cuts, 1))
case("unpack(x:hsplit(3))", lambda g: x.hsplit(3))
case("unpack(x:dsplit { 1 })", lambda g: x.dsplit((1,)))
case("unpack(x:vsplit(2))", lambda g: x.vsplit(2))
case("unpack(m:chunk(4, 2))", lambda g: m.chunk(4, 1))
case("unpack(m[{ {}, { 2, 1 } }]:chunk(3, 2))", lambda g: m[:, :0].chunk(3, 1))
case("((v - 2) * 2):erfc()", lambda g: torch.special.erfc((g["v"] - 2) * 2), "v")

golden = {
    "made_by": "scripts/golden_order.py with PyTorch " + torch.__version__,
    "tensors": {name: dict(shape=list(t.shape), values=flat(t)) for name, t in T.items()},
    "cases": CASES,
}
with open("spec/golden/order.json", "w") as file:
    json.dump(golden, file, separators=(",", ":"))
    file.write("\n")
