"""Writes spec/golden/optim.json: where PyTorch's optimizers go in fifty float64 steps. Needed only to change the cases.

The gradient of step t (from 1) at element i (from 0) is ((7 t t + 5 i t + 3 i) mod 23 - 11) / 8, the parameter begins with
((3 i + 1) mod 5 - 2) / 2; values after steps 1, 10 and 50 are kept. NAdam is left out: this version multiplies a momentum
twice. L-BFGS minimizes Rosenbrock's function of (x, y) plus (z - x y)^2, where z is another tensor, and sums of roots that are nearly
kinks. PyTorch's line search may go beyond max_eval, so none of these cases reaches it in one.
"""

import json

import torch

ELEMENTS = 4
CASES = [
    ("SGD", "SGD", dict(momentum=0.9, dampening=0.2, weight_decay=0.05)),
    ("SGD", "SGD", dict(momentum=0.8, nesterov=True)),
    ("Adam", "Adam", dict()),
    ("Adam", "Adam", dict(betas=(0.8, 0.95), weight_decay=0.1, amsgrad=True)),
    ("AdamW", "AdamW", dict()),
    ("AdamW", "AdamW", dict(betas=(0.8, 0.95), weight_decay=0.3, amsgrad=True)),
    ("AdaGrad", "Adagrad", dict()),
    ("AdaGrad", "Adagrad", dict(lr_decay=0.1, weight_decay=0.1)),
    ("RMSProp", "RMSprop", dict()),
    ("RMSProp", "RMSprop", dict(alpha=0.9, momentum=0.5, centered=True, weight_decay=0.1)),
    ("Adamax", "Adamax", dict()),
    ("Adamax", "Adamax", dict(betas=(0.8, 0.95), weight_decay=0.1)),
    ("RAdam", "RAdam", dict()),
    ("RAdam", "RAdam", dict(betas=(0.8, 0.9), weight_decay=0.1)),
    ("AdaDelta", "Adadelta", dict()),
    ("AdaDelta", "Adadelta", dict(rho=0.7, eps=1e-3, weight_decay=0.1)),
]
CLOSURES = [
    dict(lr=1, options=dict(line_search_fn="strong_wolfe"), steps=3),
    dict(lr=1, options=dict(line_search_fn="strong_wolfe", history_size=2, max_iter=7, max_eval=100), steps=5),
    dict(lr=0.1, options=dict(), steps=3),
    dict(lr=0.5, options=dict(history_size=3, max_iter=5, max_eval=4), steps=6),
    dict(lr=5, options=dict(line_search_fn="strong_wolfe", max_iter=3, max_eval=100), steps=3, function="kinks"),
]


def gradient(step):
    return torch.tensor([((7 * step * step + 5 * i * step + 3 * i) % 23 - 11) / 8 for i in range(ELEMENTS)], dtype=torch.float64)


def run(name, theirs, options):
    p = torch.tensor([((3 * i + 1) % 5 - 2) / 2 for i in range(ELEMENTS)], dtype=torch.float64, requires_grad=True)
    optimizer = getattr(torch.optim, theirs)([p], lr=0.05, **options)
    after = {}
    for step in range(1, 51):
        p.grad = gradient(step)
        optimizer.step()
        if step in (1, 10, 50):
            after[str(step)] = p.tolist()
    return dict(name=name, options=options, after=after)


def rosenbrock(x, y, z):
    return 100 * (y - x * x) ** 2 + (1 - x) ** 2 + (z - x * y) ** 2


def kinks(x, y, z):
    return (1e-4 + x * x).sqrt() + 10 * (1e-3 + (y - 1.5) ** 2).sqrt() + (z - x) ** 2


def minimize(lr, options, steps, function="rosenbrock"):
    w = torch.tensor([-1.2, 1.0], dtype=torch.float64, requires_grad=True)
    z = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([w, z], lr=lr, **options)

    def closure():
        optimizer.zero_grad()
        loss = globals()[function](*w, z)
        loss.backward()
        return loss

    after = []
    for _ in range(steps):
        loss = float(optimizer.step(closure))
        state = optimizer.state[w]
        after.append(dict(loss=loss, values=w.tolist() + [float(z)], iterations=state["n_iter"], evaluations=state["func_evals"]))
    return dict(lr=lr, options=options, function=function, after=after)


golden = {
    "made_by": "scripts/golden_optim.py with PyTorch " + torch.__version__,
    "cases": [run(*case) for case in CASES],
    "closures": [minimize(**case) for case in CLOSURES],
}
with open("spec/golden/optim.json", "w") as file:
    json.dump(golden, file, separators=(",", ":"))
    file.write("\n")
