"""The build from cold: ten processes that start at once with an empty cache.

``python -m benchmarks.kernels --build`` prints what happened and, as its last line, ``RESULT `` and
a flat JSON object:

==================  ==============================================================================
``build_s``         From the start of the processes until the last one has run an op.
``first_ran_s``     ... until the first one has.
``processes``       Processes started.
``ran``             Processes whose op gave the right value.
``compilations``    Translation units compiled, in all processes together.
``units``           Translation units there are: one build compiles each once.
``links``           Libraries linked, in all processes together.
==================  ==============================================================================

The times include starting Python and TensorFlow ten times. A script in front of the compiler
counts what is compiled.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROCESSES = 10
TIMEOUT_S = 600.0
_RUN_AN_OP = """\
import time
import tensorflow as tf
from deepinsight.trainer import kernels

w, backup = tf.Variable([1.0, 2.0]), tf.Variable([1.0, 2.0])
ops = kernels.ops()
apply = ops.resource_apply_delay_compensated_gradient_descent
apply(w.handle, backup.handle, 0.5, 0.0, tf.constant([2.0, 4.0]))
print("RAN", w.numpy().tolist() == [0.0, 0.0], time.time())
"""
_COUNT = """\
#!/bin/sh
for word; do
  case "$word" in
    -c) echo compile >> {log};;
    -shared) echo link >> {log};;
  esac
done
exec {compiler} "$@"
"""


def main() -> int:
    """Start the processes, count, print."""
    from deepinsight.trainer.kernels.sources import SOURCES, read_sources, units
    from deepinsight.trainer.kernels.toolchain import find_compiler

    compiler = shlex.join(find_compiler().command)
    with tempfile.TemporaryDirectory(prefix="deepinsight-build-") as name:
        folder = Path(name)
        log, script = folder / "calls", folder / "counting-c++"
        log.touch()
        script.write_text(_COUNT.format(log=shlex.quote(str(log)), compiler=compiler))
        script.chmod(0o755)
        began = time.time()
        outputs = _run_all(folder, {"CXX": str(script), "XDG_CACHE_HOME": str(folder / "cache")})
        elapsed = time.time() - began
        calls = log.read_text().split()
    ran = [line.split() for text in outputs for line in text.splitlines() if line[:4] == "RAN "]
    right = [float(when) - began for _, correct, when in ran if correct == "True"]
    for when in sorted(right):
        print(f"an op ran after {when:6.1f} s")
    result = {
        "build_s": round(elapsed, 1),
        "first_ran_s": round(min(right, default=float("nan")), 1),
        "processes": PROCESSES,
        "ran": len(right),
        "compilations": calls.count("compile"),
        "units": len(units(read_sources(SOURCES))),
        "links": calls.count("link"),
    }
    print("RESULT " + json.dumps(result))
    return 0 if len(right) == PROCESSES else 1


def _run_all(folder: Path, changed: dict[str, str]) -> list[str]:
    """Run the processes at once; returns what they print, and passes on what they complain of."""
    environment = {k: v for k, v in os.environ.items() if k != "DEEPINSIGHT_KERNELS"} | changed
    command = [sys.executable, "-c", _RUN_AN_OP]
    errors = [folder / f"{i}.txt" for i in range(PROCESSES)]
    started = []
    for path in errors:
        with path.open("w") as file:
            started.append(
                subprocess.Popen(
                    command, stdout=subprocess.PIPE, stderr=file, text=True, env=environment
                )
            )
    outputs = []
    for process, path in zip(started, errors, strict=True):
        try:
            outputs.append(process.communicate(timeout=TIMEOUT_S)[0])
        except subprocess.TimeoutExpired:
            process.kill()
            outputs.append(process.communicate()[0])
        if process.returncode:
            print(f"process {process.pid} ended with {process.returncode}:\n{path.read_text()}")
    return outputs
