"""The examples in the docstrings."""

import doctest

import pytest
import tensorflow as tf

from deepinsight.trainer import optimizers


@pytest.mark.parametrize(
    "name", [n for n in optimizers.__all__ if n.endswith(("Optimizer", "AccumulatedGradients"))]
)
def test_examples_print_what_they_say(name):
    public = getattr(optimizers, name)
    names = {kind: getattr(optimizers, kind) for kind in optimizers.__all__} | {"tf": tf}
    (found,) = doctest.DocTestFinder(recurse=False).find(public, name, globs=names)
    assert found.examples
    assert doctest.DocTestRunner().run(found).failed == 0
