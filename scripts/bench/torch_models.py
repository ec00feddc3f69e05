"""The models of scripts/bench/models.lua in eager PyTorch, and one training step of each."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

GPT_SIZES = {  # vocabulary, context, layers, heads, width, batch, sequence
    "character gpt": (65, 256, 6, 6, 384, 8, 256),
    "12-layer gpt": (256, 128, 12, 4, 128, 8, 128),
    "gpt2 124M": (50257, 1024, 12, 12, 768, 4, 64),
}


class Block(nn.Module):
    def __init__(self, width, heads, context):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.hidden = ~torch.tril(torch.ones(context, context, dtype=torch.bool)).view(1, 1, context, context)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(width, 2))
        a = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(width // self.heads))
        a = F.softmax(a.masked_fill(self.hidden[:, :, :length, :length], float("-inf")), dim=-1)
        x = x + self.projection((a @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, vocab, context, layers, heads, width):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList([Block(width, heads, context) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.tokens.weight
        for name, p in self.named_parameters():
            if p.dim() == 2:
                residual = name.endswith(("projection.weight", "down.weight"))
                nn.init.normal_(p, 0.0, 0.02 / (math.sqrt(2 * layers) if residual else 1.0))

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(784, 512), nn.Linear(512, 512), nn.Linear(512, 10)

    def forward(self, x, y):
        return F.cross_entropy(self.c(F.relu(self.b(F.relu(self.a(x))))), y)


class Convolutional(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1)
        self.c = nn.Linear(64 * 7 * 7, 10)

    def forward(self, x, y):
        x = F.max_pool2d(F.relu(self.a(x)), 2)
        x = F.max_pool2d(F.relu(self.b(x)), 2)
        return F.cross_entropy(self.c(x.flatten(1)), y)


def step(name, bf16=False):
    """A function that trains once; the batch stays the same."""
    if name == "mlp":
        model, data = MLP(), (torch.randn(128, 784), torch.randint(0, 10, (128,)))
    elif name == "convolutional":
        model, data = Convolutional(), (torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,)))
    else:
        vocab, context, layers, heads, width, batch, length = GPT_SIZES[name]
        model = GPT(vocab, context, layers, heads, width)
        ids = torch.randint(0, vocab, (batch, length + 1))
        data = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    kind = torch.optim.AdamW if name in GPT_SIZES else torch.optim.Adam
    optimizer = kind(model.parameters(), 1e-4)

    def train():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            loss = model(*data)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.item()
    return train


def resident():
    """Megabytes now, and the most so far."""
    with open("/proc/self/status") as status:
        fields = dict(line.split(":", 1) for line in status if ":" in line)
    return [int(fields[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM")]


def memory(name):
    before = resident()[0]
    train = step(name)
    for _ in range(4):
        train()
    return dict(before=before, peak=resident()[1])
