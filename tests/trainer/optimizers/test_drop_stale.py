"""Gradients that are too old are dropped: against the oracle, on one and two servers."""

import numpy as np
import pytest
import tensorflow as tf

import deepinsight as di
from deepinsight.collectors.collection import traced_tensors
from deepinsight.collectors.graph import closure
from deepinsight.trainer import rules
from deepinsight.trainer.optimizers import (
    AccumulatedGradients,
    BoostedAdamOptimizer,
    DelayCompensatedGradientDescentOptimizer,
    UpdateCounts,
)
from deepinsight.trainer.optimizers.staleness.drop_stale import (
    DropStaleGradientOptimizer,
    push_drop_stale,
)

from .scripted import (
    ROWS,
    Scripted,
    fresh,
    gradients_of,
    initial_values,
    loss_of,
    make_variables,
    start_cluster,
)

v1 = tf.compat.v1
RATE, MOMENTUM, WORKERS = 0.25, 0.5, 3
CLOSE = {"rtol": 2e-6, "atol": 2e-6}  # float32, some tens of updates


@pytest.fixture(scope="module")
def clusters():
    return {ps: start_cluster(ps) for ps in (1, 2)}


@pytest.fixture
def two_servers(clusters):
    return fresh(clusters[2])


def momentum():
    return v1.train.MomentumOptimizer(RATE, MOMENTUM)


def wrapped(bound, make=momentum, **options):
    """A worker as users write it."""

    def build(worker, gate):
        step, variables = make_variables()
        dense, table, bias = variables
        loss = loss_of([dense * 1.0, bias * 1.0], tf.gather(table, ROWS), worker.index)
        worker.optimizer = DropStaleGradientOptimizer(make(), bound)
        gradients, found = zip(*worker.optimizer.compute_gradients(loss), strict=True)
        pairs = zip(gate.hold(gradients), found, strict=True)
        more = {key: value(worker.index) for key, value in options.items()}
        dropped = worker.optimizer.apply_gradients(list(pairs), step, **more)
        worker.state = read_state(worker.optimizer, step, variables)
        return {"dropped": dropped}

    return build


def pushed(bound, make=momentum, with_facts=False):
    """A worker as the trainer builds it; for a compensated rule with what it has read."""

    def build(worker, gate):
        step, variables = make_variables()
        named = dict(zip(("dense", "table", "bias"), variables, strict=True))
        counts = UpdateCounts(named, step)
        pulled = counts.read()
        with tf.control_dependencies(pulled.tensors()):
            read = [named["dense"].read_value(), named["bias"].read_value()]
            rows = tf.gather(named["table"], ROWS)
        seen = {"dense": read[0], "table": tf.IndexedSlices(rows, ROWS), "bias": read[1]}
        loss = loss_of(read, rows, worker.index)
        dense, bias, table = gate.hold(v1.gradients(loss, [*read, rows]))
        given = {"dense": dense, "table": tf.IndexedSlices(table, ROWS), "bias": bias}
        rule = make()
        pairs = [(at(named[name].device, given[name]), named[name]) for name in named]
        backup = [(seen[name], named[name]) for name in named]
        push = push_drop_stale(
            rule, pairs, counts, pulled, worker=worker.index, workers=WORKERS, bound=bound,
            facts={"worker_index": worker.index, "backup": backup} if with_facts else None,
        )  # fmt: skip
        worker.push_built, worker.labels = push, counts.labels
        worker.state = read_state(rule, step, variables) | {"counts": counts.read().variables}
        traced = {t.stream.name: t.tensor for t in traced_tensors(worker.graph)}
        return {
            "op": push.op, "step": push.step, "reached": push.reached, "mine": push.dropped,
            "accepted": traced["sync/accepted_gradients"],
            "dropped": traced["sync/dropped_gradients"],
            "staleness": push.staleness.overall, "variables": push.staleness.variables,
        }  # fmt: skip

    return build


def at(device, gradient):
    with tf.device(device):
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(tf.identity(gradient.values), tf.constant(ROWS))
        return tf.identity(gradient)


def read_state(optimizer, step, variables):
    slots = [optimizer.get_slot(v, name) for name in optimizer.get_slot_names() for v in variables]
    return {
        "step": step.read_value(),
        "values": [v.read_value() for v in variables],
        "slots": [s.read_value() for s in slots if s is not None],
    }


class Oracle:
    """The same in NumPy, with momentum."""

    def __init__(self, bound):
        self._bound = bound
        self.values = initial_values()
        self.slots = [np.zeros_like(v) for v in self.values]
        self.step, self.read = 0, {}
        self.dropped, self.accepted = [0] * WORKERS, [0] * WORKERS

    def pull(self, worker):
        self.read[worker] = self.step, gradients_of(self.values, worker)

    def push(self, worker):
        local_step, grads = self.read.pop(worker)
        if not rules.accepts_gradient(self.step, local_step, bound=self._bound):
            self.dropped[worker] += 1
            return self.step - local_step, False
        hyper = {"learning_rate": RATE, "momentum": MOMENTUM}
        for i, grad in enumerate(grads):
            pair = self.values[i], self.slots[i]
            if i == 1:
                updated = rules.sparse_momentum_step(*pair, grad, np.array(ROWS), **hyper)
            else:
                updated = rules.momentum_step(*pair, grad, **hyper)
            self.values[i], self.slots[i] = updated
        self.step += 1
        self.accepted[worker] += 1
        return self.step - 1 - local_step, True


def play(cluster, build, bound, *, turns, seed, check):
    """Random interleavings: a worker that is chosen pulls, or pushes what it has pulled."""
    workers = [Scripted(cluster, i, build) for i in range(WORKERS)]
    if "op" in workers[0].fetches:
        workers[0].run(workers[0].push_built.start_op)
    oracle, generator = Oracle(bound), np.random.default_rng(seed)
    outcomes = []
    while len(outcomes) < turns:
        turn = int(generator.integers(WORKERS))
        if turn not in oracle.read:
            workers[turn].pull()
            oracle.pull(turn)
            continue
        result, (age, accepted) = workers[turn].push(), oracle.push(turn)
        outcomes.append((age, accepted))
        state = workers[turn].run(workers[turn].state)
        assert state["step"] == oracle.step
        for one, other in zip(state["values"], oracle.values, strict=True):
            np.testing.assert_allclose(one, other, **CLOSE)
        for one, other in zip(state["slots"], oracle.slots, strict=True):
            np.testing.assert_allclose(one, other, **CLOSE)
        check(turn, result, state, oracle, outcomes[-1])
    for worker in workers:
        if worker.index in oracle.read:
            worker.push()
        worker.session.close()
    return outcomes


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("servers", "bound"), [(1, 0), (2, 2)])
def test_the_wrapper_is_the_oracle_under_random_interleavings(clusters, servers, bound):
    def check(turn, result, state, oracle, outcome):
        assert result["dropped"] == sum(oracle.dropped)

    outcomes = play(
        fresh(clusters[servers]), wrapped(bound), bound, turns=20, seed=bound, check=check
    )
    assert (bound, True) in outcomes
    assert (bound + 1, False) in outcomes
    assert all(accepted == (age <= bound) for age, accepted in outcomes)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("servers", "bound"), [(1, 2), (2, 0)])
def test_the_trainers_push_is_the_oracle_and_counts_what_was_accepted(clusters, servers, bound):
    def check(turn, result, state, oracle, outcome):
        age, accepted = outcome
        assert result["staleness"] == age
        assert result["reached"] == oracle.step
        assert result["step"] == oracle.step - accepted
        assert result["mine"] == result["dropped"] == oracle.dropped[turn]
        assert result["accepted"] == oracle.accepted[turn]
        for counts in state["counts"].values():
            assert (counts == oracle.step).all()
        for ages in result["variables"].values():
            assert (ages == age).all()

    outcomes = play(
        fresh(clusters[servers]), pushed(bound), bound, turns=20, seed=3 + bound, check=check
    )
    assert (bound, True) in outcomes
    assert (bound + 1, False) in outcomes


@pytest.mark.timeout(120)
def test_control_flow_of_version_1_gives_the_same(two_servers):
    """As after tf.compat.v1.disable_v2_behavior(), with which older scripts begin."""

    def check(turn, result, state, oracle, outcome):
        assert result["mine"] == oracle.dropped[turn]

    v1.disable_control_flow_v2()
    try:
        outcomes = play(two_servers, pushed(1), 1, turns=12, seed=5, check=check)
    finally:
        v1.enable_control_flow_v2()
    assert {accepted for _, accepted in outcomes} == {True, False}


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("make", "options"),
    [
        (lambda: BoostedAdamOptimizer(0.1, num_workers=2), {"worker_index": int}),
        (
            lambda: DelayCompensatedGradientDescentOptimizer(0.1, num_workers=2, adaptive=True),
            {"worker_index": int},
        ),
        (lambda: v1.train.AdamOptimizer(0.1), {}),
    ],
    ids=["boosted", "compensated", "adam"],
)
def test_a_dropped_gradient_changes_nothing_and_its_server_neither(two_servers, make, options):
    workers = [Scripted(two_servers, i, wrapped(0, make, **options)) for i in range(2)]
    known = workers[0].optimizer.variables()
    for worker in workers:
        worker.pull()
    assert workers[0].push()["dropped"] == 0
    before = workers[0].run([workers[0].state, known])
    assert workers[1].push()["dropped"] == 1
    after = workers[0].run([workers[0].state, known])
    counter = [v.name for v in known].index("stale_counter:0")
    assert (before[1].pop(counter), after[1].pop(counter)) == (0, 1)
    for one, other in zip(tf.nest.flatten(before), tf.nest.flatten(after), strict=True):
        np.testing.assert_array_equal(one, other)
    workers[1].pull()  # what it reads now is fresh
    assert workers[1].push()["dropped"] == 1
    changed = workers[1].run(workers[1].state)
    assert changed["step"] == 2
    assert any((a != b).any() for a, b in zip(changed["values"], after[0]["values"], strict=True))
    for worker in workers:
        worker.session.close()


@pytest.mark.timeout(120)
def test_a_compensated_rule_gets_what_the_worker_has_read(two_servers):
    rate, variance = 0.125, 0.5

    def make():
        return DelayCompensatedGradientDescentOptimizer(rate, variance, num_workers=WORKERS)

    workers = [Scripted(two_servers, i, pushed(1, make, with_facts=True)) for i in range(WORKERS)]
    workers[0].run(workers[0].push_built.start_op)
    values = read = initial_values()
    for worker in workers:
        worker.pull()
    hyper = {"learning_rate": rate, "variance_parameter": variance}
    for worker in workers:
        result = worker.push()
        assert (result["reached"], result["dropped"]) == [(1, 0), (2, 0), (2, 1)][worker.index]
        if result["dropped"]:
            continue
        grads = gradients_of(read, worker.index)
        dense = [
            rules.delay_compensated_step(values[i], read[i], grads[i], **hyper)[0] for i in (0, 2)
        ]
        table, _ = rules.sparse_delay_compensated_step(
            values[1], read[1], grads[1], np.array(ROWS), **hyper
        )
        values = [dense[0], table, dense[1]]
    for one, other in zip(workers[0].run(workers[0].state)["values"], values, strict=True):
        np.testing.assert_allclose(one, other, **CLOSE)
    for worker in workers:
        worker.session.close()


@pytest.mark.timeout(60)
def test_updates_slots_and_the_decision_are_on_the_right_servers(two_servers):
    def find(worker, gate):
        fetches = wrapped(0)(worker, gate)
        worker.metadata = v1.RunMetadata()
        return fetches

    worker = Scripted(two_servers, 0, find)
    placed = {name: v.device for name, v in zip("dtb", trainable(worker), strict=True)}
    assert len(set(placed.values())) == 2
    options = v1.RunOptions(output_partition_graphs=True)
    worker.session.run(worker._gate.open)
    worker.session.run(worker.fetches, options=options, run_metadata=worker.metadata)
    nodes = [n for graph in worker.metadata.partition_graphs for n in graph.node]
    updates = [n for n in nodes if "Apply" in n.op]
    assert len(updates) == 3
    assert len({n.device for n in updates}) == 2
    assert all("/job:ps" in n.device for n in updates)
    (decision,) = [n for n in nodes if n.op == "LessEqual"]
    assert "/job:ps/replica:0/task:0" in decision.device
    # The decision travels once to the other server, and to nobody else.
    sent = [n for n in nodes if n.op.endswith("Send") and n.input[0].startswith(decision.name)]
    assert [n.attr["recv_device"].s.decode().split("/device")[0] for n in sent] == [
        "/job:ps/replica:0/task:1"
    ]
    worker.session.close()


def trainable(worker):
    with worker.graph.as_default():
        return v1.trainable_variables()


def one_variable(make_train):
    with tf.Graph().as_default():
        step = v1.train.get_or_create_global_step()
        w = v1.get_variable("w", initializer=[1.0, 2.0], use_resource=True)
        return make_train(w, step)


def test_what_the_loss_reads_is_read_after_the_step():
    def build(w, step):
        loss = tf.reduce_sum(w)
        (read,) = [op for op in closure([loss]) if op.type == "ReadVariableOp"]
        assert not read.control_inputs
        optimizer = DropStaleGradientOptimizer(momentum(), 0)
        optimizer.compute_gradients(loss)
        assert step.handle.op in closure(read.control_inputs)

    one_variable(build)


def test_control_dependencies_on_the_loss_itself_are_no_cycle():
    def build(w, step):
        loss = tf.reduce_sum(w * w)
        optimizer = DropStaleGradientOptimizer(v1.train.GradientDescentOptimizer(0.25), 0)
        with tf.control_dependencies([loss]):
            train = optimizer.minimize(loss, step)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            assert session.run(train) == 0
            assert session.run(w).tolist() == [0.5, 1.0]

    one_variable(build)


def test_a_negative_bound_drops_everything():
    def build(w, step):
        train = DropStaleGradientOptimizer(momentum(), -1).minimize(tf.reduce_sum(w), step)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            assert [session.run(train) for _ in range(3)] == [1, 2, 3]
            assert session.run([step, w])[0] == 0
            assert session.run(w).tolist() == [1.0, 2.0]

    one_variable(build)


def test_the_bound_may_be_a_tensor():
    def build(w, step):
        bound = v1.placeholder_with_default(np.int32(0), [])
        optimizer = DropStaleGradientOptimizer(momentum(), bound)
        train = optimizer.minimize(tf.reduce_sum(w), step)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            assert session.run(train, {bound: -1}) == 1
            assert session.run(train) == 1
            assert session.run(step) == 1

    one_variable(build)


def test_gradients_that_are_accumulated_raise_the_step_with_the_base():
    def build(w, step):
        base = AccumulatedGradients(v1.train.GradientDescentOptimizer(0.5), 2)
        train = DropStaleGradientOptimizer(base, 0).minimize(tf.reduce_sum(w), step)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            seen = [(session.run(train), int(session.run(step))) for _ in range(4)]
            assert seen == [(0, 0), (0, 1), (0, 1), (0, 2)]
            assert session.run(w).tolist() == [0.0, 1.0]

    one_variable(build)


def test_slots_are_the_optimizers_own():
    def build(w, step):
        base = momentum()
        optimizer = DropStaleGradientOptimizer(base, 3)
        optimizer.minimize(tf.reduce_sum(w), step)
        assert optimizer.get_slot_names() == ["momentum"]
        assert optimizer.get_slot(w, "momentum") is base.get_slot(w, "momentum")
        names = [v.name for v in optimizer.variables()]
        assert names == ["w/Momentum:0", "stale_counter:0"]

    one_variable(build)


def test_towers_share_the_counter_and_each_decides():
    def build(w, step):
        optimizer = DropStaleGradientOptimizer(v1.train.GradientDescentOptimizer(0.25), 0)
        both = [optimizer.compute_gradients(tf.reduce_sum(w * s)) for s in (1.0, 2.0)]
        first = optimizer.apply_gradients(both[0], step)
        with tf.control_dependencies([first]):
            late = [(tf.identity(grad), var) for grad, var in both[1]]
            second = optimizer.apply_gradients(late, step)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            assert session.run([first, second]) == [0, 1]
            assert session.run(w).tolist() == [0.75, 1.75]
            assert session.run(step) == 1

    one_variable(build)


def test_a_graph_survives_its_meta_graph():
    def build(w, step):
        DropStaleGradientOptimizer(momentum(), 0).minimize(tf.reduce_sum(w), step)
        return v1.train.export_meta_graph()

    meta = one_variable(build)
    with tf.Graph().as_default() as graph, v1.Session() as session:
        v1.train.import_meta_graph(meta)
        (train,) = graph.get_collection(v1.GraphKeys.TRAIN_OP)
        session.run(v1.global_variables_initializer())
        session.run(train)
        assert session.run(v1.train.get_global_step()) == 1


@pytest.mark.timeout(60)
def test_the_hook_records_counts_and_what_the_rule_reports(tmp_path):
    with tf.Graph().as_default():
        step = v1.train.get_or_create_global_step()
        w = v1.get_variable("w", initializer=[1.0, 2.0], use_resource=True)
        rule = DelayCompensatedGradientDescentOptimizer(0.25, num_workers=1)
        bound = v1.placeholder_with_default(np.int64(0), [])
        train = DropStaleGradientOptimizer(rule, bound).minimize(tf.reduce_sum(w**2), step)
        hook = di.TraceHook(tmp_path, every_n_steps=1)
        with v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
            for given in (0, 0, -1, 0):
                session.run(train, {bound: given})
            session.run(w)
    with di.open_run(tmp_path) as run:
        for name, expected in (("dropped", [0, 0, 1, 1]), ("accepted", [1, 2, 2, 3])):
            assert run.array(f"sync/{name}_gradients").values.tolist() == expected
            assert run.stream(f"sync/{name}_gradients").unit == "gradients"
        ratio = run.array("optimizer/compensation_ratio")
        assert np.isnan(ratio.values[2]).all()
        assert (ratio.values[[0, 1, 3]] == 0).all()
        assert ratio.steps.tolist() == [1, 2, 2, 3]


def test_bad_arguments_are_refused():
    base = momentum()
    with pytest.raises(ValueError, match=r"`opt` must be a tf.compat.v1.train.Optimizer"):
        DropStaleGradientOptimizer(tf.keras.optimizers.SGD(), 0)
    with pytest.raises(ValueError, match=r"must be an int\. Received: 1\.5"):
        DropStaleGradientOptimizer(base, 1.5)
    with pytest.raises(ValueError, match=r"`loss` must be a tensor of a tf.compat.v1 graph"):
        DropStaleGradientOptimizer(base, 0).compute_gradients(lambda: 1.0)
    with tf.Graph().as_default():
        w = v1.get_variable("w", initializer=[1.0], use_resource=True)
        optimizer = DropStaleGradientOptimizer(base, 0)
        with pytest.raises(ValueError, match=r"must have a global step, by which gradients age"):
            optimizer.minimize(tf.reduce_sum(w))
        step = v1.train.create_global_step()
        other = v1.get_variable("other", initializer=np.int64(0), use_resource=True)
        with pytest.raises(ValueError, match=r"`compute_gradients` must be called before"):
            optimizer.apply_gradients([(tf.ones([1]), w)], step)
        pairs = optimizer.compute_gradients(tf.reduce_sum(w))
        for wrong in (None, other):
            with pytest.raises(ValueError, match=r"`global_step` must be the graph's"):
                optimizer.apply_gradients(pairs, wrong)
        with pytest.raises(ValueError, match=r"No gradients provided for any variable"):
            optimizer.apply_gradients([(None, w)], step)
        counts = UpdateCounts({"w": w}, step)
        with pytest.raises(ValueError, match=r"`bound` must be >= 0\. Received: bound=-1"):
            push_drop_stale(base, pairs, counts, counts.read(), worker=0, workers=1, bound=-1)
