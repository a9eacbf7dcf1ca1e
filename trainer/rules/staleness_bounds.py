"""When a gradient is too old, and when a worker is too far ahead.

References:
    Ho et al., 2013, More Effective Distributed ML via a Stale Synchronous Parallel Parameter
    Server. NeurIPS.
"""

from collections.abc import Sequence

from deepinsight.trainer.rules._checks import whole


def accepts_gradient(global_step: int, local_step: int, *, bound: int) -> bool:
    r"""Return whether a gradient is fresh enough, :math:`S - L \le bound`.

    Args:
        global_step: :math:`S`, updates made when the gradient arrives.
        local_step: :math:`L`, updates made when its worker began to read the variables, <= S.
        bound: The largest difference that is accepted; negative: nothing is.

    Raises:
        ValueError: If a step is negative, or a gradient from the future.

    Example:
        >>> [accepts_gradient(7, local_step, bound=2) for local_step in (7, 5, 4)]
        [True, True, False]
    """
    age = whole(0, global_step=global_step) - whole(0, local_step=local_step)
    if age < 0:
        raise ValueError(
            f"`local_step` must be <= `global_step`. Received: local_step={local_step}, "
            f"global_step={global_step}."
        )
    return age <= bound


def clock_lead(clocks: Sequence[int], live: Sequence[bool], worker: int) -> int:
    r"""Return how far a worker is ahead of the slowest live one, itself among them.

    .. math::  c_m - \min_{k \in live \cup \{m\}} c_k

    Under stale-synchronous parallel it may begin a step as long as this is at most the bound.

    Args:
        clocks: :math:`c`, steps made by each worker, >= 0.
        live: Whether each worker is waited for.
        worker: :math:`m`.

    Raises:
        ValueError: If a clock is negative.

    Example:
        >>> clock_lead([5, 2, 0], [True, True, False], 0)
        3
    """
    counted = [whole(0, clock=c) for k, c in enumerate(clocks) if live[k] or k == worker]
    return clocks[worker] - min(counted)


def joined_clock(clocks: Sequence[int], live: Sequence[bool], worker: int) -> int:
    """Return the clock of a worker that comes in late, or again: the front of the live ones.

    What it pulls next is fresh, so that nobody has reason to wait until it has caught up.

    Args:
        clocks: Steps made by each worker, >= 0.
        live: Whether each worker is waited for.
        worker: The worker that comes in; its clock never goes back.

    Raises:
        ValueError: If a clock is negative.

    Example:
        >>> joined_clock([5, 2, 0], [True, True, False], 2)
        5
    """
    return max(whole(0, clock=c) for k, c in enumerate(clocks) if live[k] or k == worker)
