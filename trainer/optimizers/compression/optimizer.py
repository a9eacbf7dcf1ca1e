"""Deep Gradient Compression (DGC): a worker sends what is largest and keeps the rest for later."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from deepinsight.trainer.cluster.own_state import OwnStateHook
from deepinsight.trainer.optimizers._apply import (
    POSITIVE,
    SHARE,
    Gradient,
    check_gradient,
    check_hyperparameter,
)
from deepinsight.trainer.optimizers._arguments import whole
from deepinsight.trainer.optimizers.compression.checks import (
    check_pairs,
    check_place,
    rate_of,
    share,
)
from deepinsight.trainer.optimizers.compression.message import byte_counts
from deepinsight.trainer.optimizers.compression.send import (
    Rates,
    apply_rows,
    clip_together,
    dense_bytes,
    send,
)
from deepinsight.trainer.optimizers.compression.state import Progress, Waiting
from deepinsight.trainer.optimizers.compression.trace import Step, trace_step
from deepinsight.trainer.optimizers.exchange import GradientAndVariable
from deepinsight.trainer.optimizers.push import Push
from deepinsight.trainer.optimizers.versions import UpdateCounts, Versions

v1 = tf.compat.v1
WARM_UP = (0.75, 0.9375, 0.984375, 0.996)  # the first four epochs of the paper


class GradientCompressionOptimizer(v1.train.Optimizer):
    r"""Gradient descent to which each worker sends only the largest elements of its gradient.

    A worker keeps, for each variable, a velocity U and what it has not sent yet, V. Each step

    .. math::

        U \leftarrow \mu U + s g; \quad V \leftarrow V + U; \quad
        w_i \leftarrow w_i - \eta V_i \text{ and } U_i, V_i \leftarrow 0
        \text{ for the } k \text{ largest } |V_i|

    with :math:`k = \max(1, round((1 - sparsity)\, n))` of a variable's n elements, and the local
    clipping :math:`s = \min(1, (\theta M^{-1/2}) / \|g\|)`, where the norm is that of all gradients
    that are compressed, together. Nothing is lost: with :math:`\mu = 0` and no clipping, all that
    a worker has sent plus its V is the sum of its gradients. Clearing U with V (momentum factor
    masking) keeps old momentum from carrying on what was late already.

    Only indices and values travel to the parameter servers: one message per server and dtype,
    4 bytes for an index and those of the value for each element. Each worker's message is applied
    when it arrives; the paper averages them in synchronous steps, so its learning rate for M
    workers corresponds to :math:`\eta / M` here.

    What is not compressed:

    - Variables of fewer than `dense_below` elements, such as biases, are sent whole in the same
      message, with momentum and without masking. A share of them would be less than one element;
      the authors' own program, too, compresses nothing of a single dimension.
    - A `tf.IndexedSlices` is applied as it is, by gradient descent without momentum: it has the
      rows of a batch only, and U and V would take twice the table's memory on every worker. With
      `compress_sparse` it is compressed too; the elements of rows without a gradient wait, their
      velocity does not decay.

    State is on the worker, in the collection LOCAL_VARIABLES: U and V (the variable's shape,
    float32, for float64 variables float64), the number of its steps, and the bytes it has sent.
    No checkpoint of the model has it, and without it what has not been sent is lost: use the hook
    of `make_session_run_hook`, or `deepinsight.trainer.cluster.own_state.OwnState` with `own`.

    The session hook records, of this worker: ``sync/bytes_sent`` and ``sync/dense_bytes`` (of this
    push, and what it would have been uncompressed), ``sync/compression_ratio``,
    ``sync/total_bytes_sent``, ``sync/total_dense_bytes``, ``sync/residual_norm``,
    ``sync/threshold``, ``sync/sparsity``. It works in graphs only. NaN and infinity are sent first,
    and remain in V: they are never hidden.

    Args:
        learning_rate: :math:`\eta` > 0; a number, a tensor, a callable that returns one, or a
            ``tf.compat.v1.train.GradientDescentOptimizer``. Other optimizers are refused: the
            server must apply plain gradient descent.
        momentum: :math:`\mu` in [0, 1); a number, a tensor or a callable.
        num_workers: Number of workers M, >= 1, for the clipping.
        sparsity: Share of the elements that is not sent, in [0, 1).
        warm_up_steps: This worker's first steps, in which the sparsity rises; >= 0. The paper
            takes those of four epochs.
        warm_up: Sparsities in [0, 1) of the warm-up, each for the same share of it; none exceeds
            `sparsity`.
        clip_norm: :math:`\theta` > 0 for the sum over the workers; None does not clip.
        worker_device: The worker's device, for its state; None: that of each gradient.
        momentum_factor_masking: Whether U is cleared where something is sent.
        compress_sparse: Whether `tf.IndexedSlices` are compressed.
        dense_below: Variables of fewer elements are sent whole; None: :math:`1 / (1 - sparsity)`.
        exact: Whether the threshold is found in all elements at once instead of a sample first.
            Both send the same elements.
        name: Name of the optimizer, a part of its variables' names.

    Attributes:
        own: This worker's state, after `apply_gradients`.

    Raises:
        ValueError: If an argument is out of range, or the base optimizer is refused.

    Example:
        >>> with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        ...     w = tf.compat.v1.get_variable("w", initializer=[4.0, 1.0], use_resource=True)
        ...     optimizer = GradientCompressionOptimizer(
        ...         0.25, momentum=0.0, num_workers=1, sparsity=0.5, dense_below=0
        ...     )
        ...     train = optimizer.minimize(tf.reduce_sum(w**2))
        ...     session.run(tf.compat.v1.global_variables_initializer())
        ...     session.run(tf.compat.v1.local_variables_initializer())
        ...     _ = session.run(train)
        ...     session.run(w)
        array([2., 1.], dtype=float32)

    References:
        Lin et al., 2018, Deep Gradient Compression. ICLR. arXiv:1712.01887.
    """

    def __init__(
        self,
        learning_rate: Any,
        momentum: Any = 0.9,
        *,
        num_workers: int,
        sparsity: float = 0.999,
        warm_up_steps: int = 0,
        warm_up: Sequence[float] = WARM_UP,
        clip_norm: float | None = None,
        worker_device: str | None = None,
        momentum_factor_masking: bool = True,
        compress_sparse: bool = False,
        dense_below: int | None = None,
        exact: bool = False,
        name: str = "GradientCompression",
    ) -> None:
        super().__init__(use_locking=True, name=name)
        self._rate = check_hyperparameter("learning_rate", rate_of(learning_rate), POSITIVE)
        self._momentum = check_hyperparameter("momentum", momentum, SHARE)
        self._sparsity = share("sparsity", sparsity)
        self._stages = [share(f"warm_up[{i}]", stage) for i, stage in enumerate(warm_up)]
        self._warm_up_steps = whole("warm_up_steps", warm_up_steps, 0)
        workers = whole("num_workers", num_workers, 1)
        self._limit = None
        if clip_norm is not None:
            self._limit = check_hyperparameter("clip_norm", clip_norm, POSITIVE) / workers**0.5
        if dense_below is None:
            dense_below = round(1 / (1 - self._sparsity))
        self._dense_below = whole("dense_below", dense_below, 0)
        self._worker_device, self._masking = worker_device, momentum_factor_masking
        self._compress_sparse, self._exact = compress_sparse, exact
        self.own: list[tf.Variable] = []
        self._steps: tf.Variable | None = None

    def variables(self) -> list[tf.Variable]:
        """The state of this worker, the same as `own`."""
        return list(self.own)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[GradientAndVariable],
        global_step: tf.Variable | None = None,
        name: str | None = None,
    ) -> tf.Operation:
        """Compress a worker's gradients, send what is large and apply it.

        Each call makes the state of another worker: call it once, or once per tower.

        Args:
            grads_and_vars: (gradient, variable) pairs; a gradient is a tensor of the variable's
                shape on the worker, a `tf.IndexedSlices` (duplicate indices are summed) or None.
            global_step: Variable to raise by one after the update.
            name: Name of the op.

        Returns:
            The op that makes the update.

        Raises:
            ValueError: If a variable or a gradient does not fit, or no variable has a gradient.
            RuntimeError: In eager execution or a `tf.function`.
            tf.errors.InvalidArgumentError: When the op runs: if a hyperparameter is out of range.
        """
        if tf.executing_eagerly() or tf.inside_function():
            raise RuntimeError(
                "Gradient compression must be built into a graph. Received: a call in "
                f"{'eager execution' if tf.executing_eagerly() else 'a tf.function'}; build it "
                "under tf.Graph().as_default()."
            )
        pairs = [(check_gradient(grad, var), var) for grad, var in grads_and_vars]
        pairs = [(grad, var) for grad, var in pairs if grad is not None]
        check_pairs(pairs)
        rows = [pair for pair in pairs if not self._compressed(pair[0])]
        with v1.name_scope(name or self._name) as scope:
            rates = Rates(self._rate() if callable(self._rate) else self._rate)
            updates = self._push([p for p in pairs if self._compressed(p[0])], rates)
            updates += [apply_rows(grad, var, rates) for grad, var in rows]
            if global_step is None:
                done = tf.group(*updates, name=scope)
            else:
                with tf.control_dependencies(updates), tf.device(global_step.device):
                    done = global_step.assign_add(1, read_value=False, name=scope)
        v1.add_to_collection(v1.GraphKeys.TRAIN_OP, done)
        return done

    def make_session_run_hook(
        self, directory: str | Path, worker: int = 0, every_n_steps: int | None = 1000
    ) -> OwnStateHook:
        """A hook that keeps this worker's state across restarts.

        Args:
            directory: The directory of the model's checkpoints; the state goes into a directory
                ``worker-<worker>`` there.
            worker: Index of this worker.
            every_n_steps: Own steps between saves, >= 1: about as often as the model is saved.
                None saves at the end only.

        Returns:
            A session hook; it needs the graph's global step.

        Raises:
            ValueError: If an argument is out of range.
            RuntimeError: Before `apply_gradients`, or if nothing is compressed.
        """
        if self._steps is None:
            raise RuntimeError(
                "`make_session_run_hook` must follow `apply_gradients` with a gradient that is "
                "compressed. Received: no state to save."
            )
        return OwnStateHook(
            self.own, directory, worker, steps=self._steps, every_n_steps=every_n_steps
        )

    def _compressed(self, gradient: Gradient) -> bool:
        return self._compress_sparse or not isinstance(gradient, tf.IndexedSlices)

    def _push(self, pairs: Sequence[GradientAndVariable], rates: Rates) -> list[tf.Operation]:
        if not pairs:
            return []
        home = self._worker_device or _device(pairs[0][0])
        with tf.device(home):
            progress = Progress(self._name, self._stages, self._sparsity, self._warm_up_steps)
            sparsity, counted = progress.next()
            momentum = self._momentum() if callable(self._momentum) else self._momentum
            gradients = [grad for grad, _ in pairs]
            if self._limit is not None:
                gradients = clip_together(gradients, self._limit)
        waiting, taken = [], []
        for gradient, (_, var) in zip(gradients, pairs, strict=True):
            place = self._worker_device or _device(gradient)
            with tf.device(place):
                state = self._state(var)
                check_place(place, state.velocity)
                with tf.control_dependencies([state.add(gradient, momentum)]):
                    taken.append(state.take(sparsity, exact=self._exact))
                waiting.append(state)
        messages, updates = [], []
        for group in _groups(waiting):
            message, applied = send(
                [waiting[i] for i in group], [taken[i] for i in group], rates, home
            )
            messages.append(message)
            updates += applied
        with tf.device(home):
            sent, dense = byte_counts(messages), dense_bytes(pairs)
            total = progress.add_bytes(sent, dense)
            trace_step(self._name, Step(sent, dense, total, sparsity, waiting, taken))
        self._steps = progress.steps
        self.own += [progress.steps, progress.total_bytes]
        self.own += [part for state in waiting for part in (state.velocity, state.residual)]
        return [*updates, counted, total.op]

    def _state(self, var: tf.Variable) -> Waiting:
        elements = var.shape.num_elements()
        all_of_it = elements < max(1, self._dense_below)
        return Waiting(var, self._name, whole=all_of_it, masking=self._masking)


def push_compressed(
    rule: v1.train.GradientDescentOptimizer,
    gradients: Sequence[GradientAndVariable],
    counts: UpdateCounts,
    pulled: Versions,
    *,
    workers: int,
    **options: Any,
) -> Push:
    """Send the largest part of the gradients, and apply it as soon as it arrives.

    Args:
        rule: Gradient descent; other rules are refused.
        gradients: Dense ones on the worker; those of tables, on their servers, are applied there.
        counts: The update counters.
        pulled: Their values at the pull.
        workers: Number of workers.
        **options: Further arguments of `GradientCompressionOptimizer`.

    Returns:
        The push; `own` is the worker's state.

    Raises:
        ValueError: As `GradientCompressionOptimizer`.
    """
    optimizer = GradientCompressionOptimizer(rule, num_workers=workers, **options)
    graph = v1.get_default_graph()
    known = len(graph.get_operations())
    apply = optimizer.apply_gradients(gradients)
    before = counts.raise_after(graph.get_operations()[known:], apply)
    with tf.device(counts.global_step.device):
        op = tf.group(apply, *before.tensors())
        reached = before.overall + 1
    return Push(op, before.overall, before.since(pulled), reached=reached, own=tuple(optimizer.own))


def _groups(states: Sequence[Waiting]) -> list[list[int]]:
    """Which variables share a message: those of one device and dtype."""
    groups: dict[tuple[str, tf.DType], list[int]] = {}
    for i, state in enumerate(states):
        key = (state.variable.device, state.variable.dtype.base_dtype)
        groups.setdefault(key, []).append(i)
    return list(groups.values())


def _device(gradient: Gradient) -> str:
    """A gradient's device; the kernels run on a CPU."""
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    spec = tf.DeviceSpec.from_string(values.device or "")
    if spec.device_type not in (None, "CPU"):
        spec = spec.replace(device_type="CPU", device_index=0)
    return spec.to_string()
