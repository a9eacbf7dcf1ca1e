"""What a worker's hook records of a training graph."""

from deepinsight.collectors import TraceHook, probes, trace_tensor
from deepinsight.traces import Axis
from deepinsight.trainer.data import DataSet
from deepinsight.trainer.graph import TrainingGraph
from deepinsight.trainer.options import Options

AUC_HALF_LIFE = 500  # global steps


def create_hook(
    graph: TrainingGraph, options: Options, data: DataSet, process: str, is_chief: bool
) -> TraceHook:
    """Create a worker's hook.

    Args:
        graph: The worker's graph.
        options: The run's options.
        data: The data set.
        process: The worker's name in the trace.
        is_chief: The chief records weights and gradients, and what the run is.
    """
    _offer(graph)
    cadence = options.trace_every or None
    chosen: list[probes.Probe] = [probes.Throughput(every_n_steps=min(cadence or 10, 10))]
    if cadence:
        live = probes.AUC(
            graph.labels, graph.logits, half_life=AUC_HALF_LIFE, window=AUC_HALF_LIFE,
            from_logits=True, every_n_steps=min(cadence, 20),
        )  # fmt: skip
        chosen.append(live)
    if cadence and is_chief:
        chosen += [probes.Weights(), probes.Gradients(grads_and_vars=graph.gradients)]
    return TraceHook(
        options.run_dir,
        chosen,
        every_n_steps=cadence or 10,
        process=process,
        config={**options.config(), "data_facts": data.facts()} if is_chief else None,
        feature_groups=graph.model.feature_groups() if is_chief else None,
        batch_size=options.samples_per_push,
    )


def _offer(graph: TrainingGraph) -> None:
    trace_tensor("train/batch_loss", graph.loss, "nat", description="Loss of the step's batch.")
    if graph.staleness is None:
        return
    trace_tensor(
        "staleness/global", graph.staleness, "updates",
        description="Global step at the push minus global step at the pull.",
    )  # fmt: skip
    trace_tensor(
        "staleness/variables", graph.variable_staleness, "updates",
        description="The same for the update count of each variable.",
        axes=[Axis("variable", graph.variable_names)],
    )  # fmt: skip
