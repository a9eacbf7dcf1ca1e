"""Gradients: their norm, and how far a step moves the weights."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from deepinsight.collectors.probes.base import (
    GRADIENT,
    WEIGHT,
    WEIGHT_BEFORE,
    Part,
    Probe,
    Slices,
    Stream,
    Variable,
)


class Gradients(Probe):
    r"""Norm of each variable's gradient, and its update-to-weight ratio.

    Per variable:

    - ``gradients/<var>/norm``: :math:`\|g\|_2` of the gradient that reaches the optimizer. Rows of
      a sparse gradient that carry the same index are added up first, so that it is the norm of the
      dense gradient.
    - ``gradients/<var>/update_ratio``: :math:`\|w_{after} - w_{before}\|_2 / \|w_{before}\|_2`
      over one step; infinite where only the denominator is 0. With several workers it
      holds what all of them applied between the two readings.

    Args:
        include: Regular expression searched in the variable's name; None takes all.
        update_ratio: Whether to record the update ratio. It holds a second copy of each variable
            for the length of a recorded step (in Keras: until training ends).
        max_elements: No update ratio for variables with more elements, >= 0.
        grads_and_vars: For the session hook, where no apply op can be found (an optimizer composed
            from plain assignments): the pairs given to ``apply_gradients``.
        every_n_steps: See :class:`Probe`.
        every_n_seconds: See :class:`Probe`.

    Raises:
        ValueError: If an argument is out of range.
    """

    name = "gradients"

    def __init__(
        self,
        include: str | None = None,
        *,
        update_ratio: bool = True,
        max_elements: int = 1 << 24,
        grads_and_vars: Iterable[tuple[Any, Any]] | None = None,
        every_n_steps: int | None = None,
        every_n_seconds: float | None = None,
    ) -> None:
        super().__init__(every_n_steps=every_n_steps, every_n_seconds=every_n_seconds)
        if not max_elements >= 0:
            raise ValueError(f"`max_elements` must be >= 0. Received: max_elements={max_elements}.")
        self.include = re.compile(include) if include is not None else None
        self.update_ratio = update_ratio
        self.max_elements = max_elements
        self.grads_and_vars = list(grads_and_vars) if grads_and_vars is not None else None

    def parts(self) -> tuple[Part, ...]:
        """The norm needs the gradient; the ratio needs the weights before and after."""
        norm = Part(frozenset({GRADIENT}), self.measure_norm)
        if not self.update_ratio:
            return (norm,)
        return norm, Part(frozenset({WEIGHT, WEIGHT_BEFORE}), self.measure_ratio)

    def accepts(self, variable: Variable) -> bool:
        """Variables with at least one element whose name matches `include`."""
        named = self.include is None or self.include.search(variable.name) is not None
        return named and variable.elements > 0

    def wants_before(self, variable: Variable) -> bool:
        """Whether the weights before the step are needed: not for variables that are too large."""
        return self.update_ratio and variable.elements <= self.max_elements

    def measure_norm(self, xp: Any, variable: Variable, *, gradient: Any) -> dict[str, Any]:
        """L2 norm of a dense or sparse gradient."""
        if isinstance(gradient, Slices):
            values = xp.sum_duplicate_rows(xp.floating(gradient.values), gradient.indices)
        else:
            values = xp.floating(gradient)
        return {"norm": xp.sqrt(xp.sum_of_squares(values))}

    def measure_ratio(
        self, xp: Any, variable: Variable, *, weight: Any, weight_before: Any
    ) -> dict[str, Any]:
        """Norm of the difference over the norm before."""
        before = xp.floating(weight_before)
        moved = xp.sum_of_squares(xp.subtract(xp.floating(weight), before))
        return {"update_ratio": xp.divide(xp.sqrt(moved), xp.sqrt(xp.sum_of_squares(before)))}

    def finish(self, variable: Variable, measured: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """As measured."""
        return {f"gradients/{variable.name}/{key}": value for key, value in measured.items()}

    def variable_streams(self, variable: Variable, offered: frozenset[str]) -> Iterable[Stream]:
        """Norm and, unless the variable is too large, update ratio."""
        if GRADIENT in offered:
            yield Stream(
                f"gradients/{variable.name}/norm",
                dtype=variable.dtype,
                description="L2 norm of the gradient that reaches the optimizer; rows of a sparse "
                "gradient with the same index added up first.",
                reduction="L2 norm over all elements",
            )
        if {WEIGHT, WEIGHT_BEFORE} <= offered and self.wants_before(variable):
            yield Stream(
                f"gradients/{variable.name}/update_ratio",
                dtype=variable.dtype,
                description="Norm of w_after - w_before over norm of w_before, over one step; "
                "holds the updates of every worker between the two readings.",
                reduction="ratio of L2 norms over all elements",
            )
