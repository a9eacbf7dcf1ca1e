"""The data sets that a model can be trained on; `open_data` picks one by its name."""

from deepinsight.trainer.data.base import Batch, DataSet, FeatureGroup
from deepinsight.trainer.data.criteo import Criteo
from deepinsight.trainer.data.ctr import ClickStream
from deepinsight.trainer.data.digits import Digits
from deepinsight.trainer.options import Options

__all__ = ["Batch", "ClickStream", "Criteo", "DataSet", "Digits", "FeatureGroup", "open_data"]


def open_data(options: Options) -> DataSet:
    """Open the data set that the options name.

    Raises:
        DataError: If a file cannot be read or holds a malformed line.
    """
    if options.data == "digits":
        return Digits()
    if options.data == "criteo":
        return Criteo(
            options.data_path, buckets=options.hash_buckets, held_out_limit=options.held_out
        )
    return ClickStream(
        groups=options.ctr_groups,
        slots=options.ctr_slots,
        vocabulary=options.ctr_vocabulary,
        zipf=options.ctr_zipf,
        click_rate=options.ctr_click_rate,
        signal=options.ctr_signal,
        drift_period=options.ctr_drift,
        leak=options.ctr_leak,
        held_out=options.held_out,
    )
