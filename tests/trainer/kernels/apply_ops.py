"""What the tests of the apply ops share: each op beside its rule, variables and the two's steps."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from deepinsight.trainer import kernels, rules

AVERAGES = ("correlation", "gradient_square", "movement_square")
BOOST = {"boost": 0.5, "staleness": 0, "staleness_scale": 10.0, "decay": 0.9, "epsilon": 1e-12}
RATE = {"learning_rate": 0.05}
ADAM = {"beta1_power": 0.9, "beta2_power": 0.999, "beta1": 0.9, "beta2": 0.999}
LARS = {"eeta": 0.1, "weight_decay": 0.01, "momentum": 0.9, "epsilon": 1e-3}
# Relative to the largest number of an array. float32 and float64: 25 steps, a few roundings each,
# in another order than the rule's; half types start each step from the op's own values: they differ
# by one rounding of the storage, 2^-11 and 2^-8, which two near values may take to two sides.
TOLERANCE = {"float32": 3e-6, "float64": 1e-14, "float16": 2.0**-10, "bfloat16": 2.0**-7}
DTYPES = {"float32": tf.float32, "float64": tf.float64, "half": tf.half, "bfloat16": tf.bfloat16}


@dataclass(frozen=True)
class Case:
    """An op and its rule: the slots in the rule's order, the scalars by name."""

    op: str
    rule: str
    slots: tuple[str, ...]
    hyper: dict[str, Any]
    attrs: dict[str, Any] = field(default_factory=dict)

    @property
    def has_backup(self) -> bool:
        return "backup" in self.slots


def boosted(base: str, state: tuple[str, ...], hyper: dict[str, float], **attrs: Any) -> Case:
    slots = (*state, "backup", *AVERAGES)
    return Case(f"boosted_{base}", f"boosted_{base}_step", slots, RATE | hyper | BOOST, attrs)


DC = "delay_compensated_gradient_descent"
CASES = {
    "dc": Case(DC, "delay_compensated_step", ("backup",), RATE | {"variance_parameter": 0.5}),
    "adaptive": Case(
        f"adaptive_{DC}",
        "adaptive_delay_compensated_step",
        ("backup", "mean_square"),
        RATE | {"variance_parameter": 0.5, "decay": 0.95, "epsilon": 1e-7},
    ),
    "gradient_descent": boosted("gradient_descent", (), {}),
    "momentum": boosted("momentum", ("accum",), {"momentum": 0.9}),
    "nesterov": boosted("momentum", ("accum",), {"momentum": 0.9}, use_nesterov=True),
    "adagrad": boosted("adagrad", ("accum",), {"accum_epsilon": 1e-7}),
    "adam": boosted("adam", ("m", "v"), ADAM | {"adam_epsilon": 1e-7}),
    "lars": Case("lars", "lars_step", ("accum",), RATE | LARS),
    "lars_nesterov": Case("lars", "lars_step", ("accum",), RATE | LARS, {"use_nesterov": True}),
}


def compute(dtype: tf.DType) -> tf.DType:
    """The dtype of the arithmetic."""
    return tf.float64 if dtype == tf.float64 else tf.float32


def wide(values: Any, dtype: tf.DType) -> np.ndarray:
    """In the dtype of the arithmetic."""
    return np.asarray(values).astype(compute(dtype).as_numpy_dtype)


def random(rng: np.random.Generator, shape: Any, dtype: tf.DType) -> np.ndarray:
    """Normal numbers in a storage dtype."""
    return rng.standard_normal(shape).astype(dtype.as_numpy_dtype)


class Applied:
    """A variable, its slots, and a backup per worker; the op's way and the rule's."""

    def __init__(
        self, case: Case, value: np.ndarray, *, workers: int = 1, snapshot: bool = False
    ) -> None:
        self.case, self.snapshot = case, snapshot
        self.var = tf.Variable(value)
        self.dtype = self.var.dtype
        # Averages and sums of squares begin above 0, as Adagrad's do: no step divides by epsilon.
        self.slots = {
            name: tf.Variable(np.full(value.shape, 0.1, compute(self.dtype).as_numpy_dtype))
            for name in case.slots
            if name != "backup"
        }
        self.backups = [value if snapshot else tf.Variable(value) for _ in range(workers)]
        self.expected = self.values(0)
        self.pulled = [self.expected[0]] * workers

    @property
    def variables(self) -> list[Any]:
        own = [] if self.snapshot or not self.case.has_backup else self.backups
        return [self.var, *self.slots.values(), *own]

    def values(self, worker: int) -> list[np.ndarray]:
        """The arrays that the rule takes, in its order and dtype."""
        backup = self.backups[worker]
        held = {name: slot.numpy() for name, slot in self.slots.items()}
        held["backup"] = backup if self.snapshot else backup.numpy()
        return [wide(x, self.dtype) for x in (self.var, *(held[n] for n in self.case.slots))]

    def bytes(self) -> list[bytes]:
        """Every bit of the variables."""
        return [variable.numpy().tobytes() for variable in self.variables]

    def inputs(self, grad: Any, indices: Any = None, worker: int = 0, **hyper: Any) -> dict:
        """The op's inputs by name; scalars may be replaced."""
        c = compute(self.dtype)
        inputs: dict[str, Any] = {"var": self.var.handle, "grad": grad, **self.case.attrs}
        inputs |= {name: slot.handle for name, slot in self.slots.items()}
        for name, value in (self.case.hyper | hyper).items():
            inputs[name] = tf.constant(value, tf.int64 if name == "staleness" else c)
        if indices is not None:
            inputs["indices"] = indices
        if self.case.has_backup:
            backup = self.backups[worker]
            if self.snapshot:
                inputs["backup"] = backup if indices is None else backup[np.asarray(indices)]
            else:
                inputs["backup"] = backup.handle
        return inputs

    def op(self, sparse: bool) -> Any:
        kind = "resource_sparse_apply" if sparse else "resource_apply"
        return getattr(kernels.ops(), f"{kind}_{self.case.op}")

    def apply(
        self,
        grad: Any,
        indices: Any = None,
        worker: int = 0,
        use_locking: bool = False,
        **hyper: Any,
    ) -> Any:
        """Run the op; returns its statistics."""
        inputs = self.inputs(grad, indices, worker, **hyper)
        return self.op(indices is not None)(**inputs, use_locking=use_locking)

    def follow(self, grad: Any, indices: Any = None, worker: int = 0, **hyper: Any) -> None:
        """Run the rule on its own arrays, or for half types on the op's."""
        if self.case.has_backup:
            self.expected[1 + self.case.slots.index("backup")] = self.pulled[worker]
        arrays = self.expected if self.dtype == compute(self.dtype) else self.values(worker)
        name, given = self.case.rule, [wide(grad, self.dtype)]
        if indices is not None:
            name, given = f"sparse_{name}", [*given, np.asarray(indices)]
        hyper = self.case.hyper | self.case.attrs | hyper
        self.expected = list(getattr(rules, name)(*arrays, *given, **hyper))[: len(arrays)]
        if self.case.has_backup:
            backup = self.expected[1 + self.case.slots.index("backup")]
            self.pulled[worker] = self.expected[0] if self.snapshot else backup

    def step(self, grad: Any, indices: Any = None, worker: int = 0, **hyper: Any) -> Any:
        """Run both and compare them; the worker pulls afterwards."""
        self.follow(grad, indices, worker, **hyper)
        statistics = self.apply(grad, indices, worker, **hyper).numpy()
        if self.snapshot:
            self.backups[worker] = self.var.numpy()
        self.compare(worker)
        return statistics

    def compare(self, worker: int) -> None:
        names = ("var", *self.case.slots)
        for name, mine, theirs in zip(names, self.values(worker), self.expected, strict=True):
            if name == "backup" and self.snapshot:
                continue
            storage = self.dtype if name in ("var", "backup") else compute(self.dtype)
            tolerance = TOLERANCE[storage.name]
            scale = max(1.0, float(np.abs(theirs).max(initial=0)))
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=tolerance * scale, err_msg=name)
