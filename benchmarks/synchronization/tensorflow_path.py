"""One process of a run on TensorFlow's own path, as its guides for parameter servers wrote it.

    python -m benchmarks.synchronization.tensorflow_path JOB INDEX FOLDER STEPS KIND ADDRESS...

Variables are placed by `replica_device_setter` and read where they are used, rows are looked up
with `embedding_lookup`, and `Optimizer.minimize` or `SyncReplicasOptimizer` applies the gradients.
Model, data, batch size and rule are those of ``deepinsight train``. Each worker writes the time
and global step of every step to ``FOLDER/worker-INDEX.txt``; the chief then evaluates, and writes
``FOLDER/evaluation.json``.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import tensorflow as tf

from deepinsight.trainer.cluster.barriers import server_config
from deepinsight.trainer.data import DataSet, open_data
from deepinsight.trainer.evaluation import evaluate
from deepinsight.trainer.models import Model, create_model
from deepinsight.trainer.models.base import layer_names
from deepinsight.trainer.options import Options

v1 = tf.compat.v1


def main(arguments: list[str]) -> int:
    """Be one process; see the module."""
    job, index, folder, steps, kind, *addresses = arguments
    cluster = {"ps": addresses[:1], "worker": addresses[1:]}
    server = v1.train.Server(cluster, job_name=job, task_index=int(index), config=server_config())
    if job == "ps":
        server.join()
    v1.disable_v2_behavior()
    train(server.target, int(index), len(addresses) - 1, Path(folder), int(steps), kind)
    return 0


def train(target: str, worker: int, workers: int, folder: Path, steps: int, kind: str) -> None:
    """Train as one worker."""
    options = Options(run_dir=str(folder), synchronization=kind, workers=workers)
    data = open_data(options)
    with v1.device(
        v1.train.replica_device_setter(ps_tasks=1, worker_device=f"/job:worker/task:{worker}")
    ):
        global_step = v1.train.get_or_create_global_step()
        model = create_model(options, data)
        ids = v1.placeholder(tf.int32, [None, data.slots])
        labels = v1.placeholder(tf.float32, [None])
        logits = forward(model, data, ids)
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
        rule: Any = v1.train.AdagradOptimizer(options.learning_rate)
        hooks = []
        if kind == "sync":
            rule = v1.train.SyncReplicasOptimizer(rule, workers, workers)
            hooks.append(rule.make_session_run_hook(worker == 0))
        train_op = rule.minimize(loss, global_step)
    ready = folder / "ready"
    while worker and not ready.exists():  # a worker that is too early sleeps for 30 s
        time.sleep(0.1)
    config = server_config(device_filters=("/job:ps", f"/job:worker/task:{worker}"))
    with v1.train.MonitoredTrainingSession(
        target, is_chief=worker == 0, hooks=hooks, config=config
    ) as session:
        ready.touch()
        batches = data.batches(
            worker=worker, workers=workers, batch_size=options.batch_size, seed=options.seed
        )
        with (folder / f"worker-{worker}.txt").open("w", buffering=1) as log:
            for batch in batches:
                fetches = [train_op, global_step]
                _, step = session.run(fetches, {ids: batch.ids, labels: batch.labels})
                log.write(f"{time.time()} {step}\n")
                if step >= steps:
                    break
        if worker == 0:
            result = [
                evaluate(lambda rows: session.run(logits, {ids: rows}), part).auc
                for part in (data.training_sample(), data.held_out())
            ]
            (folder / "evaluation.json").write_text(json.dumps(result), encoding="utf-8")
        os._exit(0)  # closing a session of SyncReplicas waits for gradients that do not come


def forward(model: Model, data: DataSet, ids: tf.Tensor) -> tf.Tensor:
    """The wide and deep model's logits, with every variable read where it is used."""
    embedded, wide, start = [], [], 0
    for group in data.groups:
        mine = ids[:, start : start + group.slots]
        start += group.slots
        for part, parts in (("embedding", embedded), ("wide", wide)):
            rows = tf.nn.embedding_lookup(model.tables[f"{part}/{group.name}"], mine)
            parts.append(tf.reduce_sum(rows, axis=1))
    values = tf.concat(embedded, axis=1)
    for layer in layer_names(len(model.devices) - 1):
        values = tf.matmul(values, model.dense[f"{layer}/kernel"]) + model.dense[f"{layer}/bias"]
        if layer != "logits":
            values = tf.nn.relu(values)
    return tf.squeeze(values + tf.add_n(wide), axis=1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
