"""Savers that write the centre under the variables' own names."""

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1


def swapping_saver(
    var_list: Any, centers: Mapping[tf.Variable, tf.Variable], name: str, options: dict[str, Any]
) -> v1.train.Saver:
    """A saver in which each variable with a centre is exchanged for it.

    Args:
        var_list: Variables, or variables and lists of the parts of one by their names.
        centers: The centres of variables.
        name: Prefix of the saver's ops.
        options: More arguments of the saver.

    Raises:
        RuntimeError: If there are no centres.
    """
    if not centers:
        raise RuntimeError(
            "`swapping_saver` must be called after the model was made with the "
            "ElasticAverageCustomGetter. Received: no variable with a centre."
        )
    named = var_list if isinstance(var_list, Mapping) else _by_name(var_list)
    swapped = {key: _swap(variable, centers) for key, variable in named.items()}
    return v1.train.Saver(swapped, name=name, **options)


def _swap(variable: Any, centers: Mapping[tf.Variable, tf.Variable]) -> Any:
    if isinstance(variable, tf.Variable):
        return centers.get(variable, variable)
    return [centers.get(part, part) for part in variable]


def _by_name(variables: Iterable[Any]) -> dict[str, Any]:
    """Variables by the names under which savers save them; the parts of one are together."""
    named: dict[str, Any] = {}
    for variable in variables:
        parts = [variable] if isinstance(variable, tf.Variable) else list(variable)
        for part in parts:
            place = part._get_save_slice_info()
            if place is None:
                named[part.op.name] = part
            else:
                named.setdefault(place.full_name, []).append(part)
    return named
