"""Sparse updates of a table: rows per second of every contender; new random rows every pass.

The rows are distinct and in no order. The machine's loop prefetches the rows that come next; it
runs on one thread and on all. "Ascending" is this op with each set of rows sorted.
"""

import math
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

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
from benchmarks.kernels.timing import Contender, Times, spread, take_turns

MOST_SETS = 80  # row sets of a turn; with fewer, the rows stay in the caches
PASSES = 10


class Table(NamedTuple):
    """Rows of the table, elements of a row, and distinct rows of a gradient."""

    rows: int
    width: int
    touched: int


class Draws:
    """Random row sets: each round's contenders get the same ones, the next round new ones."""

    def __init__(self, table: Table, contenders: int) -> None:
        self._rng, self._table = np.random.default_rng(0), table
        self._contenders, self._asked = contenders, 0
        self._sets: list[NDArray[np.int64]] = []

    def next(self) -> list[NDArray[np.int64]]:
        """The sets for a turn."""
        if self._asked % self._contenders == 0:
            rows, _, touched = self._table
            choose = self._rng.choice
            self._sets = [choose(rows, touched, replace=False) for _ in range(MOST_SETS)]
        self._asked += 1
        return self._sets


def _repeated(run: Any, grad: Any, draws: Draws, ascending: bool = False) -> Contender:
    gradients = [grad] * PASSES

    def turn(turn_s: float) -> float:
        sets = [np.sort(one) if ascending else one for one in draws.next()]
        rows = [tf.constant(one) for one in sets]
        calls = [rows[i : i + PASSES] for i in range(0, MOST_SETS, PASSES)]
        began = time.perf_counter()
        run(gradients, calls[0])
        once_s = time.perf_counter() - began
        count = min(len(calls) - 1, math.ceil(turn_s / once_s) or 1)
        began = time.perf_counter()
        for given in calls[1 : 1 + count]:
            run(gradients, given)
        return (time.perf_counter() - began) / (count * PASSES)

    return turn


def measure(
    rule: Rule, ops: ModuleType, machine: Machine, table: Table, rounds: int, turn_s: float
) -> Times:
    """Let all contenders take turns on one table and its slots."""
    variables = make_variables(rule, (table.rows, table.width))
    grad = make_gradient((table.touched, table.width))
    example = tf.zeros([table.touched], tf.int64)
    ours = chain(our_pass(rule, ops, variables), PASSES, grad, example)
    rest = {
        "tf": built_in_pass(rule, variables),
        "composed": composed_pass(rule, variables),
        "xla": composed_pass(rule, variables, jit=True),
    }
    draws = Draws(table, 4 + len(rest))
    contenders: dict[str, Contender] = {"ours": _repeated(ours, grad, draws)}
    contenders["ascending"] = _repeated(ours, grad, draws, ascending=True)
    for name, one in rest.items():
        contenders[name] = _repeated(chain(one, PASSES, grad, example), grad, draws)
    elements = table.rows * table.width
    with machine.arrays(rule.streams, elements, table.touched * table.width) as arrays:

        def loop(threads: int) -> Callable[[float], float]:
            return lambda _: arrays.rows(draws.next(), table.width, threads)

        contenders["machine_1"] = loop(1)
        contenders["machine"] = loop(machine.threads)
        return take_turns(contenders, rounds, turn_s)


def report(name: str, rule: Rule, table: Table, times: Times, results: dict[str, float]) -> None:
    """Print one line and enter the figures; ratios above 1 say that this op is faster."""
    key, ours = f"{name}_sparse", times["ours"]
    million_rows = 1e-6 * table.touched
    line = f"{name:17}{spread(results, f'{key}_mrows_per_s', million_rows / ours):9.1f}"
    for label, contender in [
        ("ascending", "ascending"),
        ("loop_1_thread", "machine_1"),
        ("loop", "machine"),
    ]:
        speed = million_rows / times[contender]
        line += f"{spread(results, f'{key}_{label}_mrows_per_s', speed):9.1f}"
    spread(results, f"{key}_loop_1_thread_share", times["machine_1"] / ours)
    spread(results, f"{key}_loop_share", times["machine"] / ours)
    for label, contender in [("vs_composed", "composed"), ("vs_xla", "xla"), ("vs_tf", "tf")]:
        ratio = spread(results, f"{key}_{label}", times[contender] / ours)
        line += f"{ratio:8.2f} ±{results[f'{key}_{label}_iqr'] / 2:4.2f}"
    print(f"{line}  {rule.sparse_built_in}", flush=True)


def run(
    rules: dict[str, Rule],
    ops: ModuleType,
    machine: Machine,
    table: Table,
    rounds: int,
    turn_s: float,
    results: dict[str, float],
) -> None:
    """Measure and print all rules that have a sparse form."""
    print(f"\n{table.rows:,} x {table.width} table, {table.touched:,} distinct rows: M rows/s")
    print(
        f"{'':17}{'this op':>9}{'ascend.':>9}{'1 thread':>9}{'loop':>9}"
        f"{'composed':>9}{'':5}{'XLA':>8}{'':6}{'TF':>7}{'':6}TF's op"
    )
    for name, rule in rules.items():
        if rule.sparse_built_in is not None:
            times = measure(rule, ops, machine, table, rounds, turn_s)
            report(name, rule, table, times, results)
