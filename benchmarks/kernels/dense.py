"""Dense updates: seconds of one pass over all elements, of every contender."""

from pathlib import Path
from types import ModuleType

import numpy as np

from benchmarks.kernels.graphs import (
    built_in_pass,
    chain,
    composed_pass,
    make_gradient,
    make_variables,
    our_pass,
)
from benchmarks.kernels.machine import Machine
from benchmarks.kernels.rules import Rule
from benchmarks.kernels.timing import Contender, Repeated, Times, spread, take_turns

OVERHEAD_SIZE = 1000  # elements of the comparison of what a call costs
TEMPORARIES = 8  # arrays that a composition may hold beside the variables


def missing_memory(rule: Rule, n: int) -> int:
    """Bytes that are not there for all contenders; 0 if they fit."""
    kept = 2 * (rule.streams.updated + 1)  # TensorFlow's and the machine's
    needed = 4 * n * (kept + TEMPORARIES)
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    return max(0, needed - free)


def passes_per_call(n: int) -> tuple[int, int]:
    """Passes of a graph of single ops, and of one of many ops, which costs more to trace."""
    if n <= OVERHEAD_SIZE:
        return 200, 20
    return max(1, min(100, 10**7 // n)), max(1, min(20, 2 * 10**6 // n))


def measure(
    rule: Rule, ops: ModuleType, machine: Machine, n: int, rounds: int, turn_s: float
) -> Times:
    """Let all contenders take turns on variables of ``n`` elements; they share TensorFlow's.

    Up to `OVERHEAD_SIZE` elements only this op and TensorFlow's kernel compete.
    """
    variables, grad = make_variables(rule, (n,)), make_gradient((n,))
    single, many = passes_per_call(n)
    passes = {
        "ours": (our_pass(rule, ops, variables), single),
        "tf": (built_in_pass(rule, variables), single),
    }
    if n > OVERHEAD_SIZE:
        passes["composed"] = (composed_pass(rule, variables), many)
        passes["xla"] = (composed_pass(rule, variables, jit=True), many)
    contenders: dict[str, Contender] = {}
    for name, (one, count) in passes.items():
        run, gradients = chain(one, count, grad), [grad] * count
        contenders[name] = Repeated(lambda run=run, given=gradients: run(given, []), count)
    if n <= OVERHEAD_SIZE:
        return take_turns(contenders, rounds, turn_s)
    with machine.arrays(rule.streams, n) as arrays:
        once_s = arrays.stream(1)
        contenders["machine"] = lambda turn_s: arrays.stream(max(1, round(turn_s / once_s)))
        return take_turns(contenders, rounds, turn_s)


def report(name: str, rule: Rule, n: int, times: Times, results: dict[str, float]) -> None:
    """Print one line and enter the figures; ratios above 1 say that this op is faster."""
    key, ours = f"{name}_{n}", times["ours"]
    if n <= OVERHEAD_SIZE:
        ratio = spread(results, f"{key}_vs_tf", times["tf"] / ours)
        mine = spread(results, f"{key}_us", 1e6 * ours)
        theirs = 1e6 * float(np.median(times["tf"]))
        iqr = results[f"{key}_vs_tf_iqr"]
        print(
            f"{name:17}{mine:9.2f}{theirs:9.2f}{ratio:9.2f} ±{iqr / 2:.2f}  {rule.built_in}",
            flush=True,
        )
        return
    gigabytes = 4e-9 * n * rule.streams.transfers
    speed = spread(results, f"{key}_gb_per_s", gigabytes / ours)
    plain = float(np.median(gigabytes / times["machine"]))
    cells = []
    for label, contender in [
        ("bandwidth_share", "machine"),
        ("vs_composed", "composed"),
        ("vs_xla", "xla"),
        ("vs_tf", "tf"),
    ]:
        ratio = spread(results, f"{key}_{label}", times[contender] / ours)
        half = results[f"{key}_{label}_iqr"] / 2
        cells.append(f"{ratio:7.2f} ±{half:4.2f}")
    line = f"{name:17}{rule.streams.transfers:3}{1e3 * float(np.median(ours)):10.3f}"
    print(f"{line}{speed:7.1f}{plain:8.1f} {''.join(cells)}  {rule.built_in}", flush=True)


def print_title(n: int) -> None:
    if n <= OVERHEAD_SIZE:
        print(f"\n{n:,} elements: µs per op in a graph of {passes_per_call(n)[0]} in a row")
        print(f"{'':17}{'this op':>9}{'TF':>9}{'times':>9}{'':7}TF's op")
        return
    print(f"\n{n:,} elements")
    print(
        f"{'':17}{'rw':>3}{'ms':>10}{'GB/s':>7}{'machine':>8}"
        f"{'share':>9}{'':5}{'composed':>8}{'':5}{'XLA':>7}{'':6}{'TF':>6}{'':6}TF's op"
    )


def run(
    rules: dict[str, Rule],
    ops: ModuleType,
    machine: Machine,
    n: int,
    rounds: int,
    turn_s: float,
    results: dict[str, float],
) -> None:
    """Measure and print all rules at one size."""
    print_title(n)
    for name, rule in rules.items():
        missing = missing_memory(rule, n)
        if missing:
            print(f"{name:17}  skipped: {missing / 2**30:.1f} GiB of memory too little", flush=True)
            continue
        report(name, rule, n, measure(rule, ops, machine, n, rounds, turn_s), results)
