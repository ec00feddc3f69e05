"""Writes spec/golden/schedules.json: the rates of PyTorch's schedules over 50 steps. Needed only to change the cases.

A case is a schedule as Lua makes it, PyTorch's rates for the updates 1 to 50, and the metrics where it follows some: the rate
after each of them.
"""

import json
import math

import torch
from torch.optim import lr_scheduler as S

STEPS = 50
METRICS = [round(3 + 2 * math.cos(k * 0.9) - 0.05 * k, 3) for k in range(STEPS)]
cases = []


def optimizer(lr):
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr, momentum=0.9)


def case(lua, lr, make):
    opt = optimizer(lr)
    schedule, rates = make(opt), []
    for _ in range(STEPS):
        rates.append(opt.param_groups[0]["lr"])
        opt.step()
        schedule.step()
    cases.append(dict(lua=lua, rates=rates))


def plateau(lua, lr, **options):
    opt = optimizer(lr)
    schedule, rates = S.ReduceLROnPlateau(opt, eps=0, **options), []
    for metric in METRICS:
        opt.step()
        schedule.step(metric)
        rates.append(opt.param_groups[0]["lr"])
    cases.append(dict(lua=lua, rates=rates, metrics=METRICS))


case("lr.Constant { lr = 0.3 }", 0.3, lambda o: S.LambdaLR(o, lambda i: 1))
case("lr.Step { lr = 0.3, size = 7, gamma = 0.4 }", 0.3, lambda o: S.StepLR(o, 7, 0.4))
case("lr.MultiStep { lr = 2, milestones = { 3, 10, 10, 31, 80 }, gamma = 0.5 }", 2,
     lambda o: S.MultiStepLR(o, [3, 10, 10, 31, 80], 0.5))
case("lr.Linear { from = 0.1, to = 0.45, steps = 20 }", 0.3,
     lambda o: S.LambdaLR(o, lambda i: (0.1 + 0.35 * min(i, 20) / 20) / 0.3))
case("lr.Linear { from = 0.1, to = 0.3, steps = 20 }", 0.3,
     lambda o: S.LinearLR(o, start_factor=1 / 3, end_factor=1.0, total_iters=20))
case("lr.Polynomial { lr = 0.3, steps = 30, power = 2.5 }", 0.3, lambda o: S.PolynomialLR(o, 30, 2.5))
case("lr.Exponential { lr = 0.3, gamma = 0.93 }", 0.3, lambda o: S.ExponentialLR(o, 0.93))
case("lr.Cosine { lr = 0.3, min = 0.01, steps = 49, restart = false }", 0.3, lambda o: S.CosineAnnealingLR(o, 49, 0.01))
CYCLE = "{ lr.Cosine { lr = 0.3, min = 0.02, steps = 12 }, 12 }"
case("lr.Sequential { %s }" % ", ".join([CYCLE] * 5), 0.3, lambda o: S.CosineAnnealingWarmRestarts(o, 12, 1, 0.02))
case("lr.Noam { factor = 0.3, width = 64, warmup = 13 }", 0.3,
     lambda o: S.LambdaLR(o, lambda i: 64 ** -0.5 * min((i + 1) ** -0.5, (i + 1) * 13 ** -1.5)))
case("lr.OneCycle { max = 0.3, steps = 50 }", 0.3, lambda o: S.OneCycleLR(o, 0.3, 50))
case("lr.OneCycle { max = 0.3, steps = 60, up = 0.45, div = 10, final_div = 100 }", 0.3,
     lambda o: S.OneCycleLR(o, 0.3, 60, pct_start=0.45, div_factor=10, final_div_factor=100))
case("lr.Sequential { { lr.Linear { from = 0.06, to = 0.3, steps = 8 }, 8 }, { lr.Exponential { lr = 0.3, gamma = 0.9 }, 20 }, "
     "{ lr.Step { lr = 0.3, size = 4 } } }", 0.3,
     lambda o: S.SequentialLR(o, [S.LinearLR(o, 0.2, 1.0, 8), S.ExponentialLR(o, 0.9), S.StepLR(o, 4, 0.1)], [8, 28]))
case("lr.Composed { lr.Linear { from = 0.06, to = 0.3, steps = 10 }, lr.Exponential { lr = 1, gamma = 0.95 } }", 0.3,
     lambda o: S.ChainedScheduler([S.LinearLR(o, 0.2, 1.0, 10), S.ExponentialLR(o, 0.95)]))
case("lr.Warmup { steps = 6, after = lr.Cosine { lr = 0.3, min = 0.03, steps = 44, restart = false } }", 0.3,
     lambda o: S.LambdaLR(o, lambda i: (i + 1) / 6 if i < 6 else 0.1 + 0.45 * (1 + math.cos(math.pi * (i - 6) / 44))))
plateau("lr.Plateau { lr = 0.3 }", 0.3)
plateau("lr.Plateau { lr = 0.3, factor = 0.5, patience = 1, cooldown = 3, min = 0.02, threshold = 0.01 }", 0.3, factor=0.5,
        patience=1, cooldown=3, min_lr=0.02, threshold=0.01)
plateau('lr.Plateau { lr = 0.3, factor = 0.7, patience = 4, mode = "max" }', 0.3, factor=0.7, patience=4, mode="max")
plateau('lr.Plateau { lr = 0.3, factor = 0.7, patience = 4, threshold = 0.5, threshold_mode = "abs" }', 0.3, factor=0.7,
        patience=4, threshold=0.5, threshold_mode="abs")

golden = {"made_by": "scripts/golden_schedules.py with PyTorch " + torch.__version__, "cases": cases}
with open("spec/golden/schedules.json", "w") as file:
    json.dump(golden, file, separators=(",", ":"))
    file.write("\n")
