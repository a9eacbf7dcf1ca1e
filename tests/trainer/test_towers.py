"""In-graph replication and layers on several devices compute what one process computes."""

import socket

import numpy as np
import pytest
import tensorflow as tf

from deepinsight.trainer.cluster.members import Patience
from deepinsight.trainer.data import open_data
from deepinsight.trainer.graph import Replica, build_graph
from deepinsight.trainer.options import Options
from deepinsight.trainer.towers import build_towers

v1 = tf.compat.v1
STEPS = 6
SERVERS = []  # TensorFlow cannot end a server, so none may be collected


@pytest.fixture(scope="module")
def target():
    """Two parameter servers and two workers, all in this process."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(4)]
    addresses = [f"127.0.0.1:{server.getsockname()[1]}" for server in held]
    for server in held:
        server.close()
    cluster = {"ps": addresses[:2], "worker": addresses[2:]}
    for job, tasks in cluster.items():
        SERVERS.extend(
            v1.train.Server(cluster, job_name=job, task_index=index) for index in range(len(tasks))
        )
    return f"grpc://{addresses[2]}"


def trained(target, options, batch_size, placed=None):
    """The losses of some steps, and every variable after them."""
    data = open_data(options)
    replica = Replica(0, options.workers, options.ps)
    batches = data.batches(worker=0, workers=1, batch_size=batch_size, seed=3)
    with tf.Graph().as_default() as tf_graph:
        in_graph = options.replication == "in-graph"
        graph = (
            build_towers(options, data, replica)
            if in_graph
            else build_graph(options, data, replica, Patience())
        )
        if placed is not None:
            placed.extend(tf_graph.get_operations())
        with v1.Session(target) as session:
            session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
            losses = []
            for _, batch in zip(range(STEPS), batches, strict=False):
                feeds = {graph.ids: batch.ids, graph.labels: batch.labels}
                _, loss, reached = session.run([graph.push.op, graph.loss, graph.reached], feeds)
                losses.append(loss)
                assert reached == len(losses)
            values = session.run(graph.model.variables)
            few = data.held_out().ids[:7]
            logits = session.run(graph.evaluated, {graph.ids: few})
    return np.array(losses), values, logits


def options(**given):
    return Options(run_dir="r", hidden=(8, 4), embedding_dim=4, seed=5, **given)


@pytest.fixture(scope="module", params=["adagrad", "sgd"])
def alone(request):
    """What a single process computes with batches of 31."""
    given = options(ps=0, workers=1, optimizer=request.param)
    return request.param, trained("", given, 31)


@pytest.mark.parametrize(
    "given",
    [
        {"synchronization": "sync", "replication": "in-graph"},
        {
            "synchronization": "sync",
            "replication": "in-graph",
            "placement": "layers=worker:1,here,worker:0",
        },
        {
            "synchronization": "sync",
            "replication": "in-graph",
            "placement": "layers=ps:1,here,ps:0",
        },
        {"placement": "layers=here,ps:1,ps:0"},
        {},
    ],
    ids=["towers", "layers on workers", "towers with layers on servers", "layers on servers", "no"],
)
def test_the_cluster_computes_what_one_process_computes(target, alone, given):
    optimizer, (losses, values, logits) = alone
    mine = trained(target, options(ps=2, workers=2, optimizer=optimizer, **given), 31)
    # float32 sums in another order; the difference grows over the steps
    np.testing.assert_allclose(mine[0], losses, rtol=2e-5)
    for name, value in values.items():
        np.testing.assert_allclose(mine[1][name], value, rtol=2e-4, atol=2e-6, err_msg=name)
    np.testing.assert_allclose(mine[2], logits, rtol=2e-4, atol=2e-6)


def test_a_layer_is_computed_where_it_is_placed(target):
    operations = []
    given = options(ps=2, workers=2, placement="layers=here,ps:1,ps:0")
    trained(target, given, 10, operations)
    devices = [op.device for op in operations if op.type == "MatMul"]
    forward = devices[: len(devices) // 3]
    assert [d.split("/")[1:3] for d in forward] == [
        ["job:worker", "task:0"], ["job:ps", "task:1"], ["job:ps", "task:0"],
    ]  # fmt: skip
    assert sorted(devices) == sorted(3 * forward[:1] + 3 * forward[1:2] + 3 * forward[2:])
