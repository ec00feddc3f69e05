"""The contestant gloo, torch.distributed's: contest_gloo.py RANKS SCALE BYTES...; the loop of contest.h in Python."""
import json
import os
import socket
import sys
import time

os.environ["OMP_NUM_THREADS"] = "1"
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as processes  # noqa: E402


def loop(rank, x, repeats, with_sum):
    inside, small, start = 0.0, x.numel() <= 256, time.perf_counter()
    for _ in range(repeats):
        x.fill_(rank + 1)
        if with_sum:
            before = time.perf_counter()
            dist.all_reduce(x)
            inside += time.perf_counter() - before
        x.sum()
    return (time.perf_counter() - start if small else inside) / repeats


def most(seconds):
    value = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return value.item()


def work(rank, ranks, port, scale, sizes):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    for size in sizes:
        x = torch.zeros(size // 4)
        repeats = max(1, int(scale * 4e7 / (size + 20000)))
        loop(rank, x, max(1, repeats // 8), True)
        most(0)
        without = most(loop(rank, x, repeats, False))
        seconds = most(loop(rank, x, repeats, True)) - without
        if rank == 0:
            print(json.dumps({"bytes": size, "seconds": seconds, "version": torch.__version__}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    count = int(sys.argv[1])
    context = processes.get_context("spawn")
    started = [context.Process(target=work, args=(r, count, number, float(sys.argv[2]), list(map(int, sys.argv[3:]))))
               for r in range(count)]
    for process in started:
        process.start()
    for process in started:
        process.join()
