#!/usr/bin/env python3
"""The peer of scripts/bench.lua: the same cases in eager PyTorch on the CPU.

    bench_torch.py --serve            one request a line in, one answer a line out; sleeps in between
    bench_torch.py --memory MODEL     resident memory of training: {"before": MB, "peak": MB}
    bench_torch.py CASE [N]           one case, for a look: seconds of one run

A request is {"request": {"case": name, ...}, "seconds": s}; the answer is {"seconds": of one run} or {"error": text}.
A case returns a statement and the names in it; what it prepared lives until another case is asked for.
"""
import json
import math
import os
import sys
import time
import timeit

import torch
import torch.nn.functional as F

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "bench"))
import torch_models as models  # noqa: E402

THREADS = int(os.environ.get("OMP_NUM_THREADS", "0")) or os.cpu_count()
COLUMNS = 1024

# Cases that are one expression over x, y (n floats), p (tracked), r (rows of 1024), w, b (1024), s (square).
EXPRESSIONS = {
    "add": "x + y", "add_recorded": "p + y", "mul": "x * y", "mul_scalar": "x * 2.0", "add_": "x.add_(y)", "mul_": "x.mul_(1.0)",
    "relu": "F.relu(x)", "exp": "torch.exp(x)", "tanh": "torch.tanh(x)", "sigmoid": "torch.sigmoid(x)",
    "gelu": "F.gelu(x)", "gelu_tanh": "F.gelu(x, approximate='tanh')",
    "sum": "x.sum()", "sum_rows": "r.sum(1)", "sum_columns": "r.sum(0)", "amax": "x.amax()", "amax_rows": "r.amax(1)",
    "softmax": "torch.softmax(r, -1)", "log_softmax": "torch.log_softmax(r, -1)",
    "layer_norm": "F.layer_norm(r, (1024,), w, b)",
    "rms_norm": "r * torch.rsqrt(r.square().mean(-1, keepdim=True) + 1e-5) * w",
    "f32_bf16": "x.bfloat16()", "bf16_f32": "x16.float()", "f32_f16": "x.half()", "f16_f32": "xh.float()",
    "transpose": "s.t().contiguous()", "dropout": "F.dropout(x, 0.1, True)", "randn": "torch.randn(n)",
    "view": "x.view(8, 8)", "item": "x.item()",
}
# The backward pass of one expression over a leaf, with the graph kept.
BACKWARD = {
    "tanh": "torch.tanh(a)", "gelu_tanh": "F.gelu(a, approximate='tanh')", "softmax": "torch.softmax(a, -1)",
    "layer_norm": "F.layer_norm(a, (1024,), w, b)",
}


def expression(case, n):
    names = dict(n=n, x=torch.randn(n), y=torch.randn(n), p=torch.randn(n, requires_grad=True))
    text = EXPRESSIONS[case]
    if case.startswith("bf16"):
        names["x16"] = torch.randn(n).bfloat16()
    if case.startswith("f16"):
        names["xh"] = torch.randn(n).half()
    if n % COLUMNS == 0:
        names.update(r=names["x"].view(-1, COLUMNS), w=torch.randn(COLUMNS), b=torch.randn(COLUMNS))
    side = math.isqrt(n)
    if side * side == n:
        names["s"] = names["x"].view(side, side)
    return text, names


def backward(case, n):
    a = torch.randn(n // COLUMNS, COLUMNS, requires_grad=True)
    names = dict(a=a, g=torch.randn(n // COLUMNS, COLUMNS), inputs=[a])
    names["w"], names["b"] = torch.randn(COLUMNS), torch.randn(COLUMNS)
    if case == "layer_norm":
        names["inputs"] += [names["w"].requires_grad_(), names["b"].requires_grad_()]
    names["out"] = eval(BACKWARD[case], globals(), names)
    return "torch.autograd.grad(out, inputs, g, retain_graph=True)", names


def multiply(y, w, b):
    for _ in range(10):
        y = y * w
    return y


def mix(y, w, b):
    for _ in range(3):
        y = torch.tanh(y * w + b)
    return y * w


def numbers(y, w, b):
    for _ in range(5):
        y = y * 0.5 + 0.25
    return y


# Ten operators each.
CHAINS = {"mul": multiply, "mul, add, tanh": mix, "numbers": numbers}


def chain(n, kind, backward=False, loss=False):
    f = CHAINS[kind]
    names = dict(f=f, x=torch.randn(n, requires_grad=True), w=torch.randn(n), b=torch.randn(n), g=torch.ones(n))
    if loss:
        return "torch.autograd.grad(f(x, w, b).sum(), x)[0]", names
    return ("torch.autograd.grad(f(x, w, b), x, g)" if backward else "f(x, w, b)"), names


def gather(rows, width, count):
    return "torch.index_select(t, 0, i)", dict(t=torch.randn(rows, width), i=torch.randint(0, rows, (count,)))


def matmul(m, k, n, a="", b="", dtype="f32"):
    kind = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
    left = torch.randn(*((k, m) if a else (m, k))).to(kind)
    right = torch.randn(*((n, k) if b else (k, n))).to(kind)
    return "torch.matmul(p, q)", dict(p=left.t() if a else left, q=right.t() if b else right)


def attention(batch, heads, length, width, backward=False):
    q, k, v = (torch.randn(batch, heads, length, width, requires_grad=backward) for _ in range(3))
    hidden = ~torch.tril(torch.ones(length, length, dtype=torch.bool))
    g = torch.randn(batch, heads, length, width)

    def forward():
        weights = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(width))
        return torch.softmax(weights.masked_fill(hidden, float("-inf")), -1) @ v
    return ("torch.autograd.grad(f(), (q, k, v), g)" if backward else "f()"), dict(f=forward, q=q, k=k, v=v, g=g)


def conv(batch, channels, side, filters, backward=False):
    x = torch.randn(batch, channels, side, side, requires_grad=backward)
    w = torch.randn(filters, channels, 3, 3, requires_grad=backward)
    g = torch.randn(batch, filters, side, side)
    text = "F.conv2d(x, w, padding=1)"
    return ("torch.autograd.grad(%s, (x, w), g)" % text if backward else text), dict(x=x, w=w, g=g)


def pool(batch, channels, side, backward=False):
    x = torch.randn(batch, channels, side, side, requires_grad=backward)
    g = torch.randn(batch, channels, side // 2, side // 2)
    text = "F.max_pool2d(x, 2)"
    return ("torch.autograd.grad(%s, x, g)" % text if backward else text), dict(x=x, g=g)


def adamw(parameters, tensors):
    """The better of a loop over the tensors and of foreach."""
    choices = []
    for foreach in False, True:
        ps = [torch.nn.Parameter(torch.randn(parameters // tensors)) for _ in range(tensors)]
        for p in ps:
            p.grad = torch.randn_like(p) * 1e-3
        optimizer = torch.optim.AdamW(ps, 1e-4, foreach=foreach)
        timer = timeit.Timer(optimizer.step)
        timer.timeit(1)
        choices.append((min(timer.repeat(3, 1)), foreach, optimizer))
    return "o.step()", dict(o=min(choices)[2])


def torch_save(parameters, tensors, path):
    named = {"layer.%d" % i: torch.randn(int(parameters) // tensors) for i in range(tensors)}
    torch.save(named, path)
    return "torch.save(named, path)", dict(named=named, path=path)


def torch_load(parameters, tensors, path):
    torch_save(parameters, tensors, path)
    return "torch.load(path)", dict(path=path)


def training(model, bf16=False):
    return "step()", dict(step=models.step(model, bf16))


class Pictures(torch.utils.data.Dataset):
    def __init__(self, count):
        self.pictures = torch.randint(0, 256, (count, 28, 28), dtype=torch.uint8)

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, i):
        return {"picture": self.pictures[i].float() / 255, "label": i % 10}


def pictures(workers, batch, count, batches):
    loader = torch.utils.data.DataLoader(Pictures(count), batch_size=batch, shuffle=True, num_workers=workers,
                                         persistent_workers=workers > 0)

    def endless():
        while True:
            yield from loader
    return "for _ in range(batches): next(made)", dict(batches=batches, made=endless())


CASES = {f.__name__: f for f in (chain, gather, matmul, attention, conv, pool, adamw, training, pictures, torch_save, torch_load)}


def prepare(request):
    arguments = {k: v for k, v in request.items() if k != "case"}
    case = request["case"]
    if case in EXPRESSIONS:
        text, names = expression(case, **arguments)
    elif case.endswith("_backward") and case[:-9] in BACKWARD:
        text, names = backward(case[:-9], **arguments)
    else:
        text, names = CASES[case](**arguments)
    return timeit.Timer(text, globals=dict(globals(), **names))


def calibrate(timer, seconds):
    n = 1
    timer.timeit(1)
    while True:
        took = timer.timeit(n)
        if took >= seconds or n >= 1 << 28:
            return n
        n = min(max(math.ceil(n * seconds / max(took, 1e-7) * 1.1), n + 1), n * 16)


class Server:
    def __init__(self):
        self.key = self.timer = None
        self.count = 1

    def sample(self, request, seconds):
        key = json.dumps([request, seconds], sort_keys=True)
        if key != self.key:
            self.key = self.timer = None
            self.timer = prepare(request)
            self.count = calibrate(self.timer, seconds)
            self.key = key
        else:
            self.timer.timeit(1)    # wakes the threads
        return self.timer.timeit(self.count) / self.count

    def run(self):
        answer(name="PyTorch", version=torch.__version__, pid=os.getpid())
        for line in sys.stdin:
            message = json.loads(line)
            try:
                took = self.sample(message["request"], message["seconds"])
            except Exception as problem:    # the benchmark goes on without this row's peer
                answer(error="%s: %s" % (type(problem).__name__, str(problem).split("\n")[0]))
                continue
            if THREADS > 1:
                time.sleep(0.02)    # until libgomp's threads have stopped spinning
            answer(seconds=took)


def answer(**fields):
    print(json.dumps(fields), flush=True)


def main(words):
    torch.set_num_threads(THREADS)
    torch.manual_seed(1)
    if words[:1] == ["--serve"]:
        Server().run()
    elif words[:1] == ["--memory"]:
        answer(**models.memory(words[1]))
    elif words:
        request = {"case": words[0]}
        if len(words) > 1:
            request["n"] = int(words[1])
        answer(seconds=Server().sample(request, 0.05))
    else:
        print(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
