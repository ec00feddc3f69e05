"""Writes spec/golden/products.json: what PyTorch computes for products, einsum, Fourier transforms, and for convolution of
volumes, recurrent cells and the loss of sequences. Needed only to change the cases.

A case is a call as Lua writes it, over tensors whose names, shapes and values (see `values`) the spec makes as well, with
the result and the gradients of those tensors under an upstream gradient of the same formula.
"""

import json

import torch
import torch.nn.functional as F

SHAPES = dict(
    a=[3, 4], b=[4, 5], m=[3, 5], e=[4, 4], c=[2, 3, 4], d=[2, 4, 5], q=[2, 3, 5], v=[4], w=[3], o=[1], f=[2, 2, 3, 4], g=[5, 4],
    h=[3, 3], x=[2, 4, 3], y=[2, 8], z=[2, 4, 3, 2], k=[5, 2], n=[9, 7, 2], s=[],
    vol=[1, 4, 4, 5, 3], filt=[6, 2, 2, 3, 2], bias=[6], seq=[2, 3, 7], logits=[6, 3, 5], one=[4, 3],
    xin=[3, 4], state=[3, 2], cell=[3, 2], w4=[8, 4], u4=[8, 2], b4=[8], w3=[6, 4], u3=[6, 2], b3=[6], w1=[2, 4], u1=[2, 2], b1=[2],
    hid=[7, 4], table=[4, 9],
)


def values(shape, seed):
    k = torch.arange(int(torch.tensor(shape).prod()) if shape else 1, dtype=torch.float64)
    return ((torch.remainder(k * 7 + seed * 5, 23) - 11) / 8).reshape(shape)


class Names(dict):
    def __missing__(self, name):
        self[name] = values(SHAPES[name], list(SHAPES).index(name) + 1).requires_grad_()
        return self[name]

    def __getattr__(self, name):
        return self[name]


def flat(tensor):
    return [float("%.13g" % v) for v in tensor.detach().reshape(-1).tolist()]


def run(lua, function):
    t = Names()
    y = function(t)
    names = sorted(t)
    grads = torch.autograd.grad(y, [t[n] for n in names], values(list(y.shape), 4), allow_unused=True)
    return dict(lua=lua, shape=list(y.shape), y=flat(y), grads={n: flat(g) for n, g in zip(names, grads) if g is not None})


def einsum(equation, *names):
    return ('luda.einsum("%s", %s)' % (equation, ", ".join(names)), lambda t: torch.einsum(equation, *[t[n] for n in names]))


PRODUCTS = [
    ("a:mm(b)", lambda t: t.a.mm(t.b)), ("c:bmm(d)", lambda t: t.c.bmm(t.d)), ("a:mv(v)", lambda t: t.a.mv(t.v)),
    ("v:dot(v * 2 + 1)", lambda t: t.v.dot(t.v * 2 + 1)), ("luda.vdot(v, v)", lambda t: torch.vdot(t.v, t.v)),
    ("v:outer(w)", lambda t: t.v.outer(t.w)), ("a:inner(g)", lambda t: t.a.inner(t.g)), ("c:inner(v)", lambda t: t.c.inner(t.v)),
    ("s:inner(a)", lambda t: t.s.inner(t.a)),
    ("m:addmm(a, b)", lambda t: t.m.addmm(t.a, t.b)),
    ("m:addmm(a, b, { beta = 0.5, alpha = -2 })", lambda t: t.m.addmm(t.a, t.b, beta=0.5, alpha=-2)),
    ("o:addmm(a, b, { alpha = 3 })", lambda t: t.o.addmm(t.a, t.b, alpha=3)),
    ("w:addmv(a, v, { beta = 2, alpha = 0.25 })", lambda t: t.w.addmv(t.a, t.v, beta=2, alpha=0.25)),
    ("a:addr(w, v, { beta = -1, alpha = 2 })", lambda t: t.a.addr(t.w, t.v, beta=-1, alpha=2)),
    ("m:addbmm(c, d, { beta = 2, alpha = 0.5 })", lambda t: t.m.addbmm(t.c, t.d, beta=2, alpha=0.5)),
    ("q:baddbmm(c, d, { beta = 0.5, alpha = 2 })", lambda t: t.q.baddbmm(t.c, t.d, beta=0.5, alpha=2)),
    ("m:baddbmm(c, d)", lambda t: t.m.baddbmm(t.c, t.d)),
    ("c:tensordot(e:reshape(4, 2, 2), 1)", lambda t: torch.tensordot(t.c, t.e.reshape(4, 2, 2), 1)),
    ("a:tensordot(a)", lambda t: torch.tensordot(t.a, t.a, 2)),
    ("c:tensordot(f, { { 2, 1 }, { 3, 1 } })", lambda t: torch.tensordot(t.c, t.f, ([1, 0], [2, 0]))),
    ("a:tensordot(v, { dims = 0 })", lambda t: torch.tensordot(t.a, t.v, 0)),
    ("a:kron(h)", lambda t: t.a.kron(t.h)), ("v:kron(a)", lambda t: t.v.kron(t.a)), ("c:kron(w)", lambda t: t.c.kron(t.w)),
    ("w:cross(w:flip(1))", lambda t: torch.cross(t.w, t.w.flip(0), dim=0)),
    ("a:cross(a:flip(1) + 1)", lambda t: torch.cross(t.a, t.a.flip(0) + 1, dim=0)),
    ("c:cross(w:reshape(1, 3, 1), 2)", lambda t: torch.linalg.cross(t.c, t.w.reshape(1, 3, 1), dim=1)),
    ("a:cdist(g)", lambda t: torch.cdist(t.a, t.g)), ("a:cdist(g, 1)", lambda t: torch.cdist(t.a, t.g, 1)),
    ("a:cdist(g, { p = 3 })", lambda t: torch.cdist(t.a, t.g, 3)), ("c:cdist(g)", lambda t: torch.cdist(t.c, t.g)),
]
INF = ("(a * a):cdist(g, math.huge)", lambda t: torch.cdist(t.a * t.a, t.g, float("inf")))  # no two differences are equal
EINSUM = [
    einsum("ij,jk->ik", "a", "b"), einsum("ij,jk", "a", "b"), einsum("bij,bjk->bik", "c", "d"), einsum("ji", "a"),
    einsum("ii->i", "e"), einsum("ii", "e"), einsum("ij->", "a"), einsum("ij->ji", "a"), einsum("i,j->ij", "v", "w"),
    einsum("i,i", "v", "v"), einsum("i,i->i", "v", "v"), einsum("...ij,...jk->...ik", "c", "d"), einsum("...i,i->...", "f", "v"),
    einsum("...ij,jk", "f", "b"), einsum("ij,jk,ik->", "a", "b", "m"), einsum("bij,jk,bik->bi", "c", "b", "q"),
    einsum("in,anm,im->ia", "a", "d", "m"),
    einsum("ij,kj->ik", "a", "g"), einsum("bij,ij->b", "c", "a"), einsum("bij,bjk->", "c", "d"), einsum("a...b,...b->a...", "f", "c"), einsum(",ij->ij", "s", "a"),
    einsum("ij,jj->i", "a", "e"), einsum("ij,k->ik", "a", "w"), einsum("b...,...->b", "c", "a"), einsum("xY->Yx", "a"), einsum("Ab,bA", "e", "e"), einsum("ij , jk -> ki", "a", "b"),
    einsum("i,ij->ij", "o", "a"), einsum("...->", "a"), einsum("...,...", "f", "c"),
]


def cx(t):
    return torch.view_as_complex(t)


def re(t):
    return torch.view_as_real(t)


FFT = [("fft.fft(z)", lambda t: re(torch.fft.fft(cx(t.z))))]
for norm in ("backward", "ortho", "forward"):
    FFT += [
        ('fft.fft(z, { norm = "%s", dim = 2 })' % norm, lambda t, norm=norm: re(torch.fft.fft(cx(t.z), dim=1, norm=norm))),
        ('fft.ifft(z, nil, -1, "%s")' % norm, lambda t, norm=norm: re(torch.fft.ifft(cx(t.z), norm=norm))),
        ('fft.rfft(x, { norm = "%s" })' % norm, lambda t, norm=norm: re(torch.fft.rfft(t.x, norm=norm))),
        ('fft.irfft(z, { norm = "%s" })' % norm, lambda t, norm=norm: torch.fft.irfft(cx(t.z), norm=norm)),
    ]
FFT += [
    ("fft.fft(z, 7)", lambda t: re(torch.fft.fft(cx(t.z), 7))), ("fft.fft(z, 3, 2)", lambda t: re(torch.fft.fft(cx(t.z), 3, 1))),
    ("fft.ifft(z, 8, 1)", lambda t: re(torch.fft.ifft(cx(t.z), 8, 0))), ("fft.fft(k)", lambda t: re(torch.fft.fft(cx(t.k)))),
    ("fft.ifft(n, { dim = 1 })", lambda t: re(torch.fft.ifft(cx(t.n), dim=0))), ("fft.fft(n)", lambda t: re(torch.fft.fft(cx(t.n)))),
    ("fft.fft(k, 37)", lambda t: re(torch.fft.fft(cx(t.k), 37))), ("fft.fft(k, 82)", lambda t: re(torch.fft.fft(cx(t.k), 82))),
    ("fft.fft(k, 32)", lambda t: re(torch.fft.fft(cx(t.k), 32))), ("fft.fft(k, 30)", lambda t: re(torch.fft.fft(cx(t.k), 30))),
    ("fft.rfft(y)", lambda t: re(torch.fft.rfft(t.y))), ("fft.rfft(y, 5)", lambda t: re(torch.fft.rfft(t.y, 5))),
    ("fft.rfft(y, { n = 4, dim = 1 })", lambda t: re(torch.fft.rfft(t.y, 4, 0))),
    ("fft.rfft(y, 43)", lambda t: re(torch.fft.rfft(t.y, 43))),
    ("fft.irfft(z, 7, 2)", lambda t: torch.fft.irfft(cx(t.z), 7, 1)), ("fft.irfft(k, 1)", lambda t: torch.fft.irfft(cx(t.k), 1)),
    ("fft.irfft(k, 2)", lambda t: torch.fft.irfft(cx(t.k), 2)), ("fft.irfft(k, 20)", lambda t: torch.fft.irfft(cx(t.k), 20)),
    ("fft.fft2(z)", lambda t: re(torch.fft.fft2(cx(t.z)))), ("fft.ifft2(z, { s = { 4, 7 } })", lambda t: re(torch.fft.ifft2(cx(t.z), (4, 7)))),
    ('fft.fft2(z, { dim = { 3, 1 }, norm = "ortho" })', lambda t: re(torch.fft.fft2(cx(t.z), dim=(2, 0), norm="ortho"))),
    ("fft.rfft2(x)", lambda t: re(torch.fft.rfft2(t.x))), ("fft.rfft2(x, { 7, 4 })", lambda t: re(torch.fft.rfft2(t.x, (7, 4)))),
    ("fft.irfft2(z)", lambda t: torch.fft.irfft2(cx(t.z))),
    ('fft.irfft2(z, { s = { 5, 7 }, norm = "forward" })', lambda t: torch.fft.irfft2(cx(t.z), (5, 7), norm="forward")),
    ("fft.fftshift(x)", lambda t: torch.fft.fftshift(t.x)), ("fft.ifftshift(x, 3)", lambda t: torch.fft.ifftshift(t.x, 2)),
    ("fft.fftshift(z, { complex = true })", lambda t: re(torch.fft.fftshift(cx(t.z)))),
    ("fft.ifftshift(z, { dim = -1, complex = true })", lambda t: re(torch.fft.ifftshift(cx(t.z), -1))),
]


def cells(function, *names):
    return lambda t: function(t.xin, t.state, *[t[n] for n in names])


def ctc(t, targets, lengths, reduction, inputs=(6, 5, 4), logits=None, **options):
    x = F.log_softmax(t.logits if logits is None else logits, -1)
    return F.ctc_loss(x, torch.tensor(targets), torch.tensor(inputs), torch.tensor(lengths), reduction=reduction, **options)


LABELS, RUN = [[1, 2, 2], [4, 3, 0], [2, 0, 0]], [1, 2, 2, 4, 3, 2]  # classes from 0, the blank 0
LUA_LABELS, LUA_RUN = "{ { 2, 3, 3 }, { 5, 4, 1 }, { 3, 1, 1 } }", "{ 2, 3, 3, 5, 4, 3 }"
NN = [
    ("nn.conv3d(vol, filt, bias, { stride = { 2, 1, 1 }, padding = { 1, 0, 2 }, dilation = { 1, 2, 1 }, groups = 2 })",
     lambda t: F.conv3d(t.vol, t.filt, t.bias, (2, 1, 1), (1, 0, 2), (1, 2, 1), 2)),
    ("nn.conv3d(vol, filt, { dilation = { 3, 1, 1 }, groups = 2 })", lambda t: F.conv3d(t.vol, t.filt, dilation=(3, 1, 1), groups=2)),
    ("nn.adaptive_avg_pool1d(seq, 3)", lambda t: F.adaptive_avg_pool1d(t.seq, 3)),
    ("nn.adaptive_avg_pool1d(seq, 1)", lambda t: F.adaptive_avg_pool1d(t.seq, 1)),
    ("cell_of(nn.LSTMCell, w4, u4, b4)(xin, state, cell)",
     lambda t: torch._VF.lstm_cell(t.xin, (t.state, t.cell), t.w4, t.u4, t.b4, t.b4 * 0)[0]),
    ("select(2, cell_of(nn.LSTMCell, w4, u4, b4)(xin, state, cell))",
     lambda t: torch._VF.lstm_cell(t.xin, (t.state, t.cell), t.w4, t.u4, t.b4, t.b4 * 0)[1]),
    ("cell_of(nn.GRUCell, w3, u3, b3)(xin, state)", lambda t: torch._VF.gru_cell(t.xin, t.state, t.w3, t.u3, t.b3, t.b3 * 0)),
    ("cell_of(nn.RNNCell, w1, u1, b1)(xin, state)", lambda t: torch._VF.rnn_tanh_cell(t.xin, t.state, t.w1, t.u1, t.b1, t.b1 * 0)),
    ('cell_of(nn.RNNCell, w1, u1, b1, "relu")(xin, state)',
     lambda t: torch._VF.rnn_relu_cell(t.xin, t.state, t.w1, t.u1, t.b1, t.b1 * 0)),
    ("nn.ctc_loss(logits:log_softmax(-1), i64(%s), { 6, 4, 4 }, { 3, 2, 1 }, { blank = 5 })" % "{ { 1, 2, 2 }, { 4, 3, 1 }, { 2, 1, 1 } }",
     lambda t: ctc(t, [[0, 1, 1], [3, 2, 0], [1, 0, 0]], (3, 2, 1), "mean", (6, 4, 4), blank=4)),
    ("nn.ctc_loss(logits:log_softmax(-1), i64(%s), { 6, 5, 3 }, { 3, 2, 1 }, { zero_infinity = true })" % "{ { 3, 3, 3 }, { 4, 4, 1 }, { 2, 1, 1 } }",
     lambda t: ctc(t, [[2, 2, 2], [3, 3, 0], [1, 0, 0]], (3, 2, 1), "mean", (6, 5, 3), zero_infinity=True)),
    ("nn.ctc_loss(logits:log_softmax(-1), i64(%s), { 4, 5, 3 }, { 3, 2, 0 }, { reduction = \"none\", zero_infinity = true })"
     % "{ { 3, 3, 3 }, { 4, 4, 1 }, { 2, 1, 1 } }",
     lambda t: ctc(t, [[2, 2, 2], [3, 3, 0], [1, 0, 0]], (3, 2, 0), "none", (4, 5, 3), zero_infinity=True)),
    ("nn.ctc_loss(one:log_softmax(-1), i64 { 2, 3 }, 4, 2, { reduction = \"sum\" })",
     lambda t: F.ctc_loss(F.log_softmax(t.one, -1)[:, None], torch.tensor([[1, 2]]), torch.tensor([4]), torch.tensor([2]), reduction="sum")),
    ("nn.linear_cross_entropy(hid, table, i64 { 1, 9, 3, 2, 7, 7, 4 }, { rows = 3 })",
     lambda t: F.cross_entropy(t.hid @ t.table, torch.tensor([0, 8, 2, 1, 6, 6, 3]))),
    ("nn.linear_cross_entropy(hid, table, i64 { 1, -100, 3, 2, -100, 7, 4 }, { rows = 2, label_smoothing = 0.2 })",
     lambda t: F.cross_entropy(t.hid @ t.table, torch.tensor([0, -100, 2, 1, -100, 6, 3]), label_smoothing=0.2)),
    ("nn.linear_cross_entropy(hid, table, i64 { 1, 9, 3, 2, 7, 7, 4 }, { rows = 4, reduction = \"none\" })",
     lambda t: F.cross_entropy(t.hid @ t.table, torch.tensor([0, 8, 2, 1, 6, 6, 3]), reduction="none")),
    ("nn.linear_cross_entropy(hid, table, i64 { 1, 9, 3, 2, 7, 7, 4 }, { reduction = \"sum\" })",
     lambda t: F.cross_entropy(t.hid @ t.table, torch.tensor([0, 8, 2, 1, 6, 6, 3]), reduction="sum")),
]
for reduction in ("mean", "sum", "none"):
    NN += [
        ('nn.ctc_loss(logits:log_softmax(-1), i64(%s), { 6, 5, 4 }, { 3, 2, 1 }, { reduction = "%s" })' % (LUA_LABELS, reduction),
         lambda t, reduction=reduction: ctc(t, LABELS, (3, 2, 1), reduction)),
        ('nn.ctc_loss(logits:log_softmax(-1), i64(%s), { 6, 6, 6 }, { 3, 2, 1 }, { reduction = "%s" })' % (LUA_RUN, reduction),
         lambda t, reduction=reduction: ctc(t, RUN, (3, 2, 1), reduction, (6, 6, 6))),
    ]

golden = {
    "made_by": "scripts/golden_products.py with PyTorch " + torch.__version__,
    "shapes": [[name, shape] for name, shape in SHAPES.items()],
    "products": [run(*case) for case in PRODUCTS + [INF]],
    "einsum": [run(*case) for case in EINSUM],
    "fft": [run(*case) for case in FFT],
    "nn": [run(*case) for case in NN],
}
with open("spec/golden/products.json", "w") as file:
    json.dump(golden, file, separators=(",", ":"))
    file.write("\n")
