"""The arithmetic of K-FAC in TensorFlow; `deepinsight.trainer.rules.kfac` states the formulas."""

import tensorflow as tf

from deepinsight.trainer.optimizers.kfac.layers import DenseLayer

v1 = tf.compat.v1
DISTRIBUTIONS = ("bernoulli", "categorical", "normal")


def sampled_loss(
    logits: tf.Tensor, distribution: str = "bernoulli", seed: int | None = None
) -> tf.Tensor:
    r"""The loss of labels drawn from the model's own predictive distribution.

    .. math::  \ell_i = -\log p(y_i | z_i), \quad y_i \sim p(\cdot | z_i)

    The covariance of its gradients is the Fisher matrix; that of the gradients for the data's
    labels (the empirical Fisher matrix) is another one, and vanishes where the model fits.

    Args:
        logits: z, float32 or float64 ``[n, ...]``.
        distribution: ``"bernoulli"``: each element is the logit of an independent binary label.
            ``"categorical"``: ``[n, classes]``, the logits of a softmax. ``"normal"``: means of
            independent normal distributions with variance 1 (half of the squared error).
        seed: Seed of the labels; None: TensorFlow's choice.

    Returns:
        The loss of each example, ``[n]``, in nat; no gradient flows through the labels.

    Raises:
        ValueError: If the distribution is not known or the logits do not fit it.
    """
    logits = tf.convert_to_tensor(logits)
    if distribution not in DISTRIBUTIONS:
        raise ValueError(
            f"`distribution` must be one of {', '.join(DISTRIBUTIONS)}. Received: {distribution!r}."
        )
    rank, categorical = logits.shape.rank, distribution == "categorical"
    if logits.dtype not in (tf.float32, tf.float64) or not rank or (categorical and rank != 2):
        raise ValueError(
            f"`logits` must be float32 or float64 of the shape "
            f"{'[n, classes]' if categorical else '[n, ...]'}. Received: {logits.dtype.name} of "
            f"shape {logits.shape}."
        )
    if categorical:
        drawn = tf.random.categorical(tf.stop_gradient(logits), 1, seed=seed)[:, 0]
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=drawn, logits=logits)
    if distribution == "normal":
        noise = tf.random.normal(tf.shape(logits), dtype=logits.dtype, seed=seed)
        losses = 0.5 * tf.math.squared_difference(logits, tf.stop_gradient(logits + noise))
    else:
        uniform = tf.random.uniform(tf.shape(logits), dtype=logits.dtype, seed=seed)
        labels = tf.cast(uniform < tf.stop_gradient(tf.sigmoid(logits)), logits.dtype)
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
    return tf.reduce_sum(losses, axis=list(range(1, rank)))


def batch_moments(layers: list[DenseLayer], loss: tf.Tensor) -> list[tf.Tensor]:
    """The second moments of a batch.

    Args:
        layers: The layers.
        loss: The loss of each example, ``[n]``, or their mean, a scalar.

    Returns:
        For each layer that of its inputs with a 1 for the bias, ``[rows, rows]``, and that of
        the gradients of single examples by the pre-activations, ``[columns, columns]``.

    Raises:
        ValueError: If the loss has another shape or does not depend on a layer.
    """
    loss = tf.convert_to_tensor(loss)
    if loss.shape.rank not in (0, 1):
        raise ValueError(
            "The Fisher loss must be the mean over the examples, a scalar, or the loss of each "
            f"example, [n]. Received: shape {loss.shape}."
        )
    with tf.name_scope("moments"):
        outputs = [layer.outputs for layer in layers]
        gradients = v1.gradients(loss, outputs)
        moments = []
        for layer, gradient in zip(layers, gradients, strict=True):
            if gradient is None:
                raise ValueError(
                    "The Fisher loss must depend on the `outputs` of every layer; give the tensor "
                    "that the loss is computed from, before its activation. Received: no "
                    f"dependence for the layer of {layer.kernel.name!r}."
                )
            inputs = layer.inputs
            if layer.bias is not None:
                inputs = tf.concat([inputs, tf.ones_like(inputs[:, :1])], axis=1)
            # The gradient of a mean over n examples is 1 / n of that of an example.
            count = tf.cast(tf.shape(gradient)[0], gradient.dtype)
            single = gradient * count if loss.shape.rank == 0 else gradient
            moments += [_moment(inputs, layer), _moment(single, layer)]
        return moments


def _moment(rows: tf.Tensor, layer: DenseLayer) -> tf.Tensor:
    count = tf.shape(rows)[0]
    checked = tf.debugging.assert_positive(
        count,
        f"K-FAC needs at least one example in every batch. The layer of {layer.kernel.name} "
        "received none.",
    )
    with tf.control_dependencies([checked]):
        moment = tf.matmul(rows, rows, transpose_a=True) / tf.cast(count, rows.dtype)
    size = int(rows.shape[1])
    return tf.ensure_shape(moment, [size, size])


def average(old: tf.Tensor, batch: tf.Tensor, updates: tf.Tensor, decay: float) -> tf.Tensor:
    """The running mean with one batch more, the `updates`-th; see `average_covariance`."""
    past = tf.minimum(1 - 1 / tf.cast(updates, tf.float64), decay)
    past = tf.cast(past, old.dtype)
    return past * old + (1 - past) * batch


def invert(
    layer: DenseLayer, inputs: tf.Tensor, outputs: tf.Tensor, damping: float
) -> list[tf.Tensor]:
    """The inverses of a layer's damped factors; see `invert_covariances`.

    Raises:
        tf.errors.InvalidArgumentError: When it runs: if a factor is not positive definite.
    """
    factors = [tf.cast(inputs, tf.float64), tf.cast(outputs, tf.float64)]
    means = [tf.linalg.trace(f) / int(f.shape[0]) for f in factors]
    usable = tf.logical_and(means[0] > 0, means[1] > 0)
    ratio = tf.where(usable, tf.sqrt(means[0] / means[1]), tf.ones([], tf.float64))
    root = damping**0.5
    inverses = []
    for name, factor, share in zip(
        ("inputs", "gradients"), factors, (root * ratio, root / ratio), strict=True
    ):
        size = int(factor.shape[0])
        lower = tf.linalg.cholesky(factor + share * tf.eye(size, dtype=tf.float64))
        diagonal = tf.linalg.diag_part(factor)
        # Where there is no such root, TensorFlow's kernel gives NaN or says so itself.
        checked = tf.debugging.Assert(
            tf.reduce_all(tf.math.is_finite(lower)),
            [
                f"K-FAC: the covariance of the {name} of the layer of {layer.kernel.name} must "
                "be finite, and positive definite with its damping. Raise the damping or the "
                "burn-in, or lower the learning rate. Received: damping of this factor, smallest "
                "and largest diagonal element:",
                share, tf.reduce_min(diagonal), tf.reduce_max(diagonal),
            ],
        )  # fmt: skip
        with tf.control_dependencies([checked]):
            half = tf.linalg.triangular_solve(lower, tf.eye(size, dtype=tf.float64))
            inverse = tf.matmul(half, half, transpose_a=True)
        inverses.append(tf.cast(inverse, inputs.dtype))
    return inverses


def step_scale(
    norm: tf.Tensor, learning_rate: tf.Tensor | float, norm_constraint: float | None
) -> tf.Tensor:
    """The factor that caps the Fisher norm of a step, float64; see `fisher_step_scale`."""
    if norm_constraint is None:
        return tf.ones([], tf.float64)
    length = tf.cast(learning_rate, tf.float64) ** 2 * norm
    return tf.where(length > norm_constraint, tf.sqrt(norm_constraint / length), 1 + 0 * length)
