import json
import socket
import time

import pytest

from deepinsight.trainer.cluster.topology import read_tf_config, tf_config, wait_for_servers
from deepinsight.trainer.errors import ClusterError, OptionError


def config(cluster, job, index):
    return json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})


def test_the_chief_is_worker_0_and_the_workers_follow():
    cluster = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}
    chief = read_tf_config(config(cluster, "chief", 0))
    assert (chief.process, chief.is_chief, chief.workers) == (
        "worker-0",
        True,
        ("a:1", "b:1", "c:1"),
    )
    last = read_tf_config(config(cluster, "worker", 1))
    assert (last.process, last.is_chief) == ("worker-2", False)
    server = read_tf_config(config(cluster, "ps", 0))
    assert (server.process, server.is_chief) == ("ps-0", False)
    assert server.cluster() == {"ps": ["d:1"], "worker": ["a:1", "b:1", "c:1"]}


def test_without_a_chief_worker_0_is_the_chief():
    topology = read_tf_config(tf_config(["d:1"], ["a:1", "b:1"], "worker", 0))
    assert topology.is_chief
    assert topology.workers == ("a:1", "b:1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "must be JSON like"),
        ("{}", "must be JSON like"),
        (config({"worker": ["a:1"], "ps": []}, "worker", 0), "Received: 0 ps"),
        (config({"ps": ["a:1"]}, "ps", 0), "0 chief or worker"),
        (config({"worker": ["a:1"], "ps": ["b:1"]}, "worker", 1), "has 1 of type 'worker'"),
        (config({"worker": ["a:1"], "ps": ["b:1"]}, "chief", 0), "has 0 of type 'chief'"),
        (
            config({"worker": ["a:1"], "ps": ["b:1"], "evaluator": ["c:1"]}, "ps", 0),
            "Received: evaluator",
        ),
    ],
)
def test_a_wrong_configuration_is_refused(text, message):
    with pytest.raises(OptionError, match=message):
        read_tf_config(text)


def test_waiting_for_a_server_ends_when_it_listens_and_is_bounded():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{server.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(ClusterError, match=f"The server at {address} did not answer"):
            wait_for_servers([address], timeout_s=0.3)
        assert time.monotonic() - began < 5
        server.listen()
        wait_for_servers([address], timeout_s=5)
