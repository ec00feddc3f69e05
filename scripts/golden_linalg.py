"""Writes spec/golden/linalg.json: what PyTorch computes in float64 for linear algebra, where signs and rotations of factors
do not matter. Needed only to change the cases.

A case is what Lua says of x and z, the shapes of these (see `values`), the results and the gradients of the sum of result
times weights 1, -2, 3, 1, -2, …
"""

import json

import torch
import torch.linalg as L

INF = float("inf")


def values(shape, seed):
    k = torch.arange(int(torch.tensor(shape).prod()), dtype=torch.float64)
    return (torch.remainder(k * k * 5 + k * 7 + seed * 5, 23) - 11).div(8).reshape(shape)


def positive(x):
    return x @ x.mT + torch.eye(x.shape[-2], dtype=x.dtype)


def symmetric(x):
    return x + x.mT


def low_rank(x):
    u, s, vh = L.svd(x, full_matrices=False)
    return u[..., :2] @ (s[..., :2, None] * vh[..., :2, :])


def projector(x, z):
    v = L.eigh(symmetric(x))[1][..., :2]
    return v @ (v.mT @ z)


def q_times(x, z):
    q = L.qr(x)[0]
    return q @ (q.mT @ z)


def lower(x):
    return x.tril(-1) + 2 * torch.eye(x.shape[-1], dtype=x.dtype)


CASES = [
    ("x:det()", [[4, 4]], L.det),
    ("x:det()", [[2, 3, 5, 5]], L.det),
    ("x:slogdet()", [[3, 4, 4]], L.slogdet),
    ("positive(x):logdet()", [[2, 4, 3]], lambda x: positive(x).logdet()),
    ("x:inv()", [[4, 4]], L.inv),
    ("x:inv()", [[2, 3, 3]], L.inv),
    ("x:solve(z)", [[4, 4], [4, 3]], L.solve),
    ("x:solve(z)", [[4, 4], [4]], L.solve),
    ("x:solve(z)", [[2, 4, 4], [2, 4]], L.solve),
    ("x:solve(z)", [[3, 1, 3, 3], [2, 3, 2]], L.solve),
    ("x:solve(z, { left = false })", [[3, 3], [2, 3]], lambda x, z: L.solve(x, z, left=False)),
    ("lower(x):solve_triangular(z)", [[4, 4], [4, 2]], lambda x, z: L.solve_triangular(lower(x), z, upper=False)),
    ("lower(x):solve_triangular(z, { left = false })", [[4, 4], [2, 4]],
     lambda x, z: L.solve_triangular(lower(x), z, upper=False, left=False)),
    ("lower(x):t():solve_triangular(z, { upper = true })", [[4, 4], [4, 2]],
     lambda x, z: L.solve_triangular(lower(x).mT, z, upper=True)),
    ("x:solve_triangular(z, { upper = true, unitriangular = true })", [[2, 4, 4], [4, 2]],
     lambda x, z: L.solve_triangular(x, z, upper=True, unitriangular=True)),
    ("positive(x):cholesky()", [[4, 6]], lambda x: L.cholesky(positive(x))),
    ("positive(x):cholesky { upper = true }", [[2, 3, 4]], lambda x: L.cholesky(positive(x), upper=True)),
    ("z:cholesky_solve(positive(x):cholesky())", [[3, 4], [3, 2]],
     lambda x, z: torch.cholesky_solve(z, L.cholesky(positive(x)))),
    ("luda.cholesky_inverse(positive(x):cholesky { upper = true }, true)", [[3, 4]], lambda x: L.inv(positive(x))),
    ("symmetric(x):eigvalsh()", [[5, 5]], lambda x: L.eigvalsh(symmetric(x))),
    ("symmetric(x):eigvalsh(\"U\")", [[2, 4, 4]], lambda x: L.eigvalsh(symmetric(x))),
    ("projector(x, z)", [[4, 4], [4, 3]], projector),
    ("x:svdvals()", [[5, 3]], L.svdvals),
    ("x:svdvals()", [[2, 3, 4]], L.svdvals),
    ("low_rank(x)", [[5, 3]], low_rank),
    ("low_rank(x)", [[2, 3, 5]], low_rank),
    ("q_times(x, z)", [[5, 3], [5, 2]], q_times),
    ("luda.abs(select(2, x:qr()))", [[5, 3]], lambda x: L.qr(x)[1].abs()),
    ("luda.abs(select(2, x:qr()))", [[3, 5]], lambda x: L.qr(x)[1].abs()),
    ("x:pinv()", [[5, 3]], L.pinv),
    ("x:pinv()", [[2, 3, 4]], L.pinv),
    ("luda.matmul(x, z):pinv()", [[5, 2], [2, 4]], lambda x, z: L.pinv(x @ z)),
    ("(x:lstsq(z))", [[6, 3], [6, 2]], lambda x, z: L.lstsq(x, z).solution),
    ("(x:lstsq(z, { driver = \"gels\" }))", [[6, 3], [6, 2]], lambda x, z: L.lstsq(x, z).solution),
    ("(x:lstsq(z, { driver = \"gels\" }))", [[3, 5], [3, 2]], lambda x, z: L.pinv(x) @ z),
    ("(select(2, x:lstsq(z)))", [[6, 3], [6, 2]], lambda x, z: (x @ L.lstsq(x, z).solution - z).square().sum(-2)),
    ("x:matrix_power(3)", [[2, 3, 3]], lambda x: L.matrix_power(x, 3)),
    ("x:matrix_power(-2)", [[3, 3]], lambda x: L.matrix_power(x, -2)),
    ("x:matrix_norm()", [[2, 3, 4]], lambda x: L.matrix_norm(x)),
    ("x:matrix_norm(1)", [[2, 3, 4]], lambda x: L.matrix_norm(x, 1)),
    ("x:matrix_norm(-1)", [[3, 4]], lambda x: L.matrix_norm(x, -1)),
    ("x:matrix_norm(math.huge, { 1, 2 })", [[2, 3, 4]], lambda x: L.matrix_norm(x, INF, (0, 1))),
    ("x:matrix_norm(-math.huge)", [[3, 4]], lambda x: L.matrix_norm(x, -INF)),
    ("x:matrix_norm(2, { 3, 1 }, true)", [[2, 3, 4]], lambda x: L.matrix_norm(x, 2, (2, 0), True)),
    ("x:matrix_norm(-2)", [[3, 4]], lambda x: L.matrix_norm(x, -2)),
    ("x:matrix_norm(\"nuc\", { 1, 3 })", [[2, 3, 4]], lambda x: L.matrix_norm(x, "nuc", (0, 2))),
    ("luda.linalg.norm(x)", [[2, 3, 4]], L.norm),
    ("luda.linalg.norm(x, 3, 2)", [[2, 3, 4]], lambda x: L.norm(x, 3, 1)),
    ("luda.linalg.norm(x, 2)", [[3, 4]], lambda x: L.norm(x, 2)),
    ("x:cond()", [[5, 3]], L.cond),
    ("x:cond(-2)", [[3, 3]], lambda x: L.cond(x, -2)),
    ("x:cond(1)", [[2, 3, 3]], lambda x: L.matrix_norm(x, 1) * L.matrix_norm(L.inv(x), 1)),
    ("x:cond(\"fro\")", [[3, 3]], lambda x: L.matrix_norm(x) * L.matrix_norm(L.inv(x))),
    ("luda.linalg.diagonal(x)", [[2, 3, 4]], L.diagonal),
    ("luda.linalg.vecdot(x, z)", [[2, 3, 4], [3, 4]], L.vecdot),
]


def flat(tensor):
    return [int(v) if v == int(v) else v for v in tensor.detach().reshape(-1).tolist()]


def weights(tensor):
    pattern = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    return pattern.repeat(tensor.numel() // 3 + 1)[: tensor.numel()].reshape(tensor.shape)


def run(lua, shapes, function):
    inputs = [values(shape, seed + 1).requires_grad_() for seed, shape in enumerate(shapes)]
    results = function(*inputs)
    results = [results] if isinstance(results, torch.Tensor) else list(results)
    y = results[-1]
    grads = torch.autograd.grad((y * weights(y)).sum(), inputs)
    return dict(lua=lua, inputs=shapes, shape=list(y.shape), y=[flat(r) for r in results], grads=[flat(g) for g in grads])


golden = {
    "made_by": "scripts/golden_linalg.py with PyTorch " + torch.__version__,
    "cases": [run(*case) for case in CASES],
}
with open("spec/golden/linalg.json", "w") as file:
    json.dump(golden, file, separators=(",", ":"))
    file.write("\n")
