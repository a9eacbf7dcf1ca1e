"""Where the Keras optimizers cannot run."""

from deepinsight.errors import DeepInsightError


class BackendError(DeepInsightError, RuntimeError):
    """Keras runs on another backend than TensorFlow."""


class CompiledStepError(DeepInsightError, RuntimeError):
    """A training step is compiled with XLA, which knows no kernels but its own."""

    # AutoGraph makes an exception anew, of its own type only if it is made as Exception itself is.
    __init__ = Exception.__init__
