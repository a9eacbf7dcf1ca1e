"""The models; `create_model` makes the variables of the one that the options name."""

from deepinsight.trainer.data.base import DataSet
from deepinsight.trainer.models.base import LayerTensors, Model
from deepinsight.trainer.models.dense import Dense, column_slices
from deepinsight.trainer.models.wide_deep import WideDeep
from deepinsight.trainer.options import Options
from deepinsight.trainer.placement import device_of, parse_placement

__all__ = ["Dense", "LayerTensors", "Model", "WideDeep", "column_slices", "create_model"]


def create_model(options: Options, data: DataSet) -> Model:
    """Create the variables of a model in the default graph, where its device function puts them.

    Raises:
        OptionError: If the model cannot take the data set's examples.
    """
    places = parse_placement(options.placement) if options.placement else ()
    devices = [device_of(place) for place in places]
    if options.model == "dense":
        return Dense(data.groups, options.input_width, options.hidden, options.seed, devices)
    return WideDeep(data.groups, options.embedding_dim, options.hidden, options.seed, devices)
