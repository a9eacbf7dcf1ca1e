"""The optimizer kernels beside what else could do their work, in one process, taking turns.

    python -m benchmarks.kernels [--quick] [--ops dc,lars] [--sizes 1000,10000000,sparse]
    python -m benchmarks.kernels --build

Compared are, in float32:

- this op;
- the same rule composed from TensorFlow ops, in a ``tf.function`` that assigns the variables;
- the same under XLA: ``jit_compile=True``, the variables assigned inside, so that XLA may write
  into their buffers;
- TensorFlow's nearest kernel, which computes less: no compensation and no slots for it;
- the machine: a plain C++ loop over as many arrays, on as many threads.

GB/s counts what one ideal pass moves: every array that is updated is read and written once, the
gradient is read once ("rw" elements in all per element); for LARS, which needs two norms first,
the variable and the gradient once more. ``share`` is the machine's time divided by this op's.
Each figure is the median of all rounds, ± half the interquartile range; a ratio is taken within a
round, and **a ratio above 1 says that this op is faster**. Graphs hold many passes in a row, so
that Python does not count. The last line is ``RESULT`` and a flat JSON object:

=======================================  ========================================================
``OP_N_bandwidth_share``                 Machine's time / this op's, N elements.
``OP_N_vs_composed``, ``OP_N_vs_xla``    Their time / this op's.
``OP_N_vs_tf``                           Time of TensorFlow's nearest kernel / this op's.
``OP_N_gb_per_s``                        Bandwidth of this op.
``OP_1000_vs_tf``, ``OP_1000_us``        What a call costs: the same at 1,000 elements.
``OP_sparse_mrows_per_s``                Million rows per second, rows in random order.
``OP_sparse_ascending_mrows_per_s``      The same with sorted rows.
``OP_sparse_loop_mrows_per_s``           The prefetching loop on all threads ...
``OP_sparse_loop_1_thread_mrows_per_s``  ... and on one.
``OP_sparse_loop_share``                 The loop's time / this op's; also ``_loop_1_thread_share``.
``OP_sparse_vs_tf``                      Time of TensorFlow's nearest sparse kernel / this op's.
``OP_sparse_vs_composed``, ``_vs_xla``   Their time / this op's.
``..._iqr``                              Interquartile range of the figure before.
=======================================  ========================================================

``--build`` measures the build instead, see `benchmarks.kernels.build`.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

SIZES = "1000,100000,1000000,10000000,100000000,sparse"
QUICK_SIZES = "1000,1000000,sparse"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kernels",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="a rough look in a minute")
    parser.add_argument("--ops", default="", metavar="OP,...", help="only these")
    parser.add_argument("--sizes", metavar="N,...", help=f"of {SIZES}; any number will do")
    parser.add_argument("--build", action="store_true", help="measure the build instead")
    arguments = parser.parse_args(argv)
    if arguments.build:
        from benchmarks.kernels import build

        return build.main()
    sizes = arguments.sizes or (QUICK_SIZES if arguments.quick else SIZES)
    results = measure(
        sizes.split(","), arguments.ops.split(",") * bool(arguments.ops), arguments.quick
    )
    print("\nRESULT " + json.dumps({key: float(f"{value:.4g}") for key, value in results.items()}))
    return 0


def measure(sizes: list[str], names: list[str], quick: bool) -> dict[str, float]:
    """Check, measure and print; returns the figures."""
    import tensorflow as tf

    from benchmarks.kernels import dense, sparse
    from benchmarks.kernels.graphs import check
    from benchmarks.kernels.machine import Machine
    from benchmarks.kernels.rules import RULES
    from deepinsight.trainer import kernels
    from deepinsight.trainer.kernels.toolchain import find_compiler

    if unknown := set(names) - set(RULES):
        raise SystemExit(f"--ops must name some of {', '.join(RULES)}. Received: {unknown}.")
    ops = kernels.ops()
    rules = {name: RULES[name] for name in names or RULES}
    rows = tf.random.shuffle(tf.range(4000), seed=0)[:500].numpy()
    for rule in rules.values():
        check(rule, ops)
        if rule.sparse_built_in is not None:
            check(rule, ops, rows)
    threads = tf.config.threading.get_intra_op_parallelism_threads() or len(os.sched_getaffinity(0))
    table = sparse.Table(100_000, 16, 1_000) if quick else sparse.Table(1_000_000, 16, 10_000)
    rounds, turn_s = (3, 0.01) if quick else (11, 0.05)
    results: dict[str, float] = {"threads": threads}
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(find_compiler().command, Path(folder), threads)
        print(f"float32, {threads} threads, {rounds} rounds")
        for size in sizes:
            if size == "sparse":
                sparse.run(rules, ops, machine, table, rounds, turn_s, results)
            else:
                n = int(size)
                fewer = rounds if n < 10**8 else min(rounds, 5)
                dense.run(rules, ops, machine, n, fewer, turn_s, results)
    return results


if __name__ == "__main__":
    raise SystemExit(main())
