import doctest
import subprocess
import sys

from deepinsight import diagnostics
from deepinsight.diagnostics import auc


def test_all_is_sorted_and_every_name_is_there():
    assert diagnostics.__all__ == ["CumulativeAUC", "DecayedAUC", "WindowedAUC"]
    assert all(hasattr(diagnostics, name) for name in diagnostics.__all__)


def test_import_needs_neither_tensorflow_nor_dash_nor_plotly():
    code = (
        "import sys, deepinsight.diagnostics;"
        "print([m for m in ('tensorflow', 'keras', 'dash', 'plotly') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_docstring_examples_hold():
    failed, attempted = doctest.testmod(auc)
    assert failed == 0
    assert attempted >= 12  # the examples of all three metrics were found
