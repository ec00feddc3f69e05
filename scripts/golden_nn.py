"""Writes spec/golden/nn.json: what PyTorch computes for the functions of luda.nn. Needed only to change the cases.

Inputs come from formulas of their place (see `values`), so that the file holds results only.
"""

import json

import torch
import torch.nn.functional as F


def values(kind, shape, seed):
    k = torch.arange(int(torch.tensor(shape).prod()), dtype=torch.float64)
    r = torch.remainder(k * 7 + seed * 5, 23)
    formulas = {
        "any": (r - 11) / 8,
        "positive": (r + 1) / 8,
        "unit": (r + 1) / 24,
        "sign": 1 - 2 * torch.remainder(r, 2),
        "count": torch.remainder(r, 5),
        "ids": torch.remainder(r, 4),
    }
    return formulas[kind].reshape(shape)


def rope(x, interleaved=False):
    t, d = x.shape[-2:]
    angles = torch.arange(t, dtype=torch.float64)[:, None] * 10000 ** (-2 * torch.arange(d // 2, dtype=torch.float64) / d)
    turn = torch.polar(torch.ones_like(angles), angles)
    pairs = x.unflatten(-1, (d // 2, 2)) if interleaved else x.unflatten(-1, (2, d // 2)).transpose(-1, -2).contiguous()
    y = torch.view_as_real(torch.view_as_complex(pairs) * turn)
    return y.flatten(-2) if interleaved else y.transpose(-1, -2).flatten(-2)


def batch_norm(x, mean, var, weight=None, bias=None, **options):
    mean, var = mean.detach().clone(), var.detach().clone()
    return F.batch_norm(x, mean, var, weight, bias, **options), mean, var


def recurrent(function):
    def call(x, *rest, states, layers=1, bidirectional=False):
        first = rest[0] if states == 1 else tuple(rest[:states])
        return function(x, first, list(rest[states:]), True, layers, 0.0, True, bidirectional, False)
    return call


def recurrent_case(name, gates, states, layers=1, bidirectional=False):
    directions = 2 if bidirectional else 1
    inputs = [["any", [4, 2, 3]]] + [["unit", [layers * directions, 2, 5]]] * states
    for layer in range(layers):
        for _ in range(directions):
            width = 3 if layer == 0 else 5 * directions
            inputs += [["any", [gates * 5, width]], ["any", [gates * 5, 5]], ["any", [gates * 5]], ["any", [gates * 5]]]
    function = recurrent({"LSTM": torch._VF.lstm, "GRU": torch._VF.gru}[name])
    return case(name, inputs, function, states=states, layers=layers, bidirectional=bidirectional)


def case(name, inputs, function=None, lua=None, **options):
    function = function or getattr(F, name)
    tensors = [values(kind, shape, i + 1) for i, (kind, shape) in enumerate(inputs)]
    for (kind, _), tensor in zip(inputs, tensors):
        if kind not in ("ids", "sign", "count"):
            tensor.requires_grad_()
    given = [t.long() if kind == "ids" else t for (kind, _), t in zip(inputs, tensors)]
    y = function(*given, **options)
    outputs = list(y) if isinstance(y, tuple) else [y]
    roots = [t for t in outputs if t.requires_grad]
    wanted = [t for t in tensors if t.requires_grad]
    upstream = [values("any", list(t.shape), 4) for t in roots]
    grads = torch.autograd.grad(roots, wanted, upstream, allow_unused=True)
    return dict(name=name, inputs=inputs, options=options if lua is None else lua, outputs=[flat(t) for t in outputs],
                shapes=[list(t.shape) for t in outputs], grads=[flat(g) if g is not None else [] for g in grads])


def flat(tensor):
    return [float("%.13g" % v) for v in tensor.detach().reshape(-1).tolist()]


A, P, U, S, N = "any", "positive", "unit", "sign", "count"
PAIR = [[A, [3, 4]], [A, [3, 4]]]
cases = []
for reduction in ("mean", "sum", "none"):
    r = dict(reduction=reduction)
    cases += [
        case("mse_loss", PAIR, **r),
        case("l1_loss", PAIR, **r),
        case("smooth_l1_loss", PAIR, beta=0.7, **r),
        case("huber_loss", PAIR, delta=0.7, **r),
        case("kl_div", [[A, [3, 4]], [U, [3, 4]]], **r),
        case("hinge_embedding_loss", [[A, [3, 4]], [S, [3, 4]]], margin=0.6, **r),
        case("margin_ranking_loss", PAIR + [[S, [3, 4]]], margin=0.3, **r),
        case("cosine_embedding_loss", PAIR + [[S, [3]]], margin=0.1, **r),
        case("triplet_margin_loss", PAIR + [[A, [3, 4]]], **r),
        case("gaussian_nll_loss", PAIR + [[P, [3, 4]]], **r),
        case("poisson_nll_loss", [[A, [3, 4]], [N, [3, 4]]], **r),
        case("binary_cross_entropy", [[U, [3, 4]], [U, [3, 4]]], **r),
        case("cross_entropy", [[A, [5, 4]], [U, [5, 4]]], label_smoothing=0.1, **r),
    ]
cases += [
    case("kl_div", PAIR, reduction="batchmean", log_target=True),
    case("triplet_margin_loss", PAIR + [[A, [3, 4]]], swap=True, p=1.0, margin=0.5),
    case("gaussian_nll_loss", PAIR + [[P, [3, 1]]], full=True),
    case("gaussian_nll_loss", PAIR + [[P, [3]]], full=True, eps=0.5),
    case("poisson_nll_loss", [[P, [3, 4]], [N, [3, 4]]], log_input=False, full=True),
    case("normalize", [[A, [3, 4]]]),
    case("normalize", [[A, [3, 4, 2]]], p=3.0, dim=0, lua=dict(p=3, dim=1)),
    case("cosine_similarity", PAIR),
    case("cosine_similarity", [[A, [3, 4, 2]], [A, [3, 4, 2]]], dim=2, lua=dict(dim=3)),
    case("pairwise_distance", PAIR),
    case("pairwise_distance", PAIR, p=1.0, keepdim=True),
    case("batch_norm", [[A, [5, 3]], [A, [3]], [P, [3]], [A, [3]], [A, [3]]], batch_norm, training=True),
    case("batch_norm", [[A, [2, 3, 4, 2]], [A, [3]], [P, [3]], [A, [3]], [A, [3]]], batch_norm, training=True, momentum=0.3,
         eps=0.1),
    case("batch_norm", [[A, [2, 3, 4]], [A, [3]], [P, [3]]], batch_norm, training=False),
    case("group_norm", [[A, [2, 6, 3, 2]], [A, [6]], [A, [6]]], lambda x, w, b: F.group_norm(x, 3, w, b), lua=dict(groups=3)),
    case("instance_norm", [[A, [2, 3, 5]], [A, [3]], [A, [3]]], lambda x, w, b: F.instance_norm(x, None, None, w, b), lua={}),
    case("conv1d", [[A, [2, 4, 9]], [A, [6, 2, 3]], [A, [6]]], stride=2, padding=1, dilation=2, groups=2),
    case("conv_transpose1d", [[A, [2, 4, 5]], [A, [4, 3, 3]], [A, [6]]], stride=2, padding=1, output_padding=1, groups=2),
    case("conv_transpose2d", [[A, [2, 4, 3, 4]], [A, [4, 3, 3, 2]], [A, [6]]], stride=[2, 3], padding=[1, 0],
         output_padding=[1, 0], dilation=[2, 1], groups=2),
    case("conv_transpose2d", [[A, [1, 2, 4, 3]], [A, [2, 3, 2, 2]]]),
    case("unfold", [[A, [2, 3, 5, 4]]], kernel_size=[2, 3], stride=[2, 1], padding=[1, 1], dilation=[2, 1]),
    case("fold", [[A, [2, 12, 12]]], output_size=[6, 5], kernel_size=[2, 3], stride=2, padding=[1, 1], dilation=[1, 1]),
    case("adaptive_avg_pool2d", [[A, [2, 2, 7, 5]]], output_size=[3, 2], lua=dict(size=[3, 2])),
    case("adaptive_avg_pool2d", [[A, [2, 2, 6, 4]]], output_size=[3, 2], lua=dict(size=[3, 2])),
    case("adaptive_avg_pool2d", [[A, [2, 2, 6, 4]]], output_size=1, lua=dict(size=1)),
    case("interpolate", [[A, [1, 2, 5, 3]]], size=[8, 2]),
    case("interpolate", [[A, [1, 2, 5]]], scale_factor=2.5),
    case("interpolate", [[A, [2, 2, 5]]], size=8, mode="linear"),
    case("interpolate", [[A, [1, 2, 4, 3]]], size=[7, 2], mode="bilinear", align_corners=True),
    case("interpolate", [[A, [1, 2, 4, 3]]], scale_factor=1.7, mode="bilinear", align_corners=False),
    case("pixel_shuffle", [[A, [2, 8, 2, 3]]], upscale_factor=2, lua=dict(factor=2)),
    case("pixel_unshuffle", [[A, [2, 2, 4, 6]]], downscale_factor=2, lua=dict(factor=2)),
    case("embedding_bag", [["ids", [3, 5]], [A, [4, 2]]], mode="mean"),
    case("embedding_bag", [["ids", [3, 5]], [A, [4, 2]]], mode="max"),
    case("embedding_bag", [["ids", [7]], [A, [4, 2]]],
         lambda i, w, mode: F.embedding_bag(i, w, torch.tensor([0, 2, 2]), mode=mode), mode="sum",
         lua=dict(mode="sum", offsets=[1, 3, 3])),
    case("embedding_bag", [["ids", [7]], [A, [4, 2]]],
         lambda i, w, mode: F.embedding_bag(i, w, torch.tensor([0, 2, 2]), mode=mode), mode="mean",
         lua=dict(mode="mean", offsets=[1, 3, 3])),
    case("rope", [[A, [2, 5, 6]]], rope),
    case("rope", [[A, [5, 4]]], rope, interleaved=True),
    recurrent_case("LSTM", 4, 2),
    recurrent_case("LSTM", 4, 2, layers=2, bidirectional=True),
    recurrent_case("GRU", 3, 1),
    recurrent_case("GRU", 3, 1, layers=2, bidirectional=True),
]
golden = {"made_by": "scripts/golden_nn.py with PyTorch " + torch.__version__, "cases": cases}
with open("spec/golden/nn.json", "w") as file:
    json.dump(golden, file, separators=(",", ":"))
    file.write("\n")
