"""Every worker-aware optimizer against its NumPy rule, with interleaved workers."""

import numpy as np
import pytest
import tensorflow as tf

from .execution import MODES, random_gradients, random_values
from .rule_cases import CASES, WORKERS, Reference

PUSHES = 24
# Values are about 1; a few roundings per push and element, over 24 pushes.
TOLERANCE = {"float32": 2e-5, "float64": 1e-12}


def assert_follows(mode, case, dtype):
    value_dtype = np.dtype(dtype)
    values = random_values(1, value_dtype)
    run = MODES[mode](case.make, values, WORKERS, dtype=tf.as_dtype(dtype))
    expected = [Reference(case, value) for value in values]
    generator = np.random.default_rng(2)
    order = [*range(WORKERS), *generator.integers(0, WORKERS, PUSHES - WORKERS)]
    for worker in order:
        dense, rows, indices = random_gradients(generator, value_dtype)
        run.push(int(worker), dense, rows, indices)
        expected[0].push(worker, dense)
        expected[1].push(worker, rows, indices)
    close = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    for variable, reference in zip(run.variables, expected, strict=True):
        np.testing.assert_allclose(run.read(variable), reference.value, **close)
        for name, slot in reference.slots.items():
            found = run.read(run.optimizer.get_slot(variable, name))
            np.testing.assert_allclose(found, slot, err_msg=name, **close)
        if case.stale:
            pushes = run.read(run.optimizer.get_slot(variable, "pushes_by_others"))
            assert pushes.tolist() == reference.missed


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
def test_follows_its_rule(mode, name):
    assert_follows(mode, CASES[name], "float32")


@pytest.mark.parametrize("name", CASES)
def test_follows_its_rule_in_float64(name):
    assert_follows("eager", CASES[name], "float64")


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_keeps_statistics_of_half_variables_in_float32(name, dtype):
    case = CASES[name]
    run = MODES["eager"](case.make, random_values(1), WORKERS, dtype=dtype)
    generator = np.random.default_rng(2)
    for worker in range(WORKERS):
        run.push(worker, *random_gradients(generator))
    for variable in run.variables:
        for kind in case.state:
            slot = run.optimizer.get_slot(variable, f"{kind}_1" if kind in case.own else kind)
            assert slot.dtype == (dtype if kind == "backup" else tf.float32)
            assert np.isfinite(tf.cast(slot, tf.float32).numpy()).all()
