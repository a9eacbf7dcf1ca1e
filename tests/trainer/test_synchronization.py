"""The settings of ``--synchronization``, and what goes with what."""

import pytest

from deepinsight.trainer.arguments import parser
from deepinsight.trainer.errors import OptionError
from deepinsight.trainer.options import COMPENSATED, OPTIMIZERS, Options
from deepinsight.trainer.placement import device_of, parse_placement
from deepinsight.trainer.synchronization import LOCAL, SETTINGS, SYNCHRONIZATIONS


def options(**given):
    return Options(run_dir="r", **given)


def test_settings_get_the_defaults_of_their_synchronization_and_of_no_other():
    assert options(synchronization="bounded").staleness_bound == 3
    assert options(synchronization="drop-stale").staleness_bound == 10
    assert options(synchronization="block-momentum", workers=4).block_momentum == 0.75
    assert options(synchronization="elastic-average").communication_period == 10
    assert options(synchronization="elastic-average").moving_rate is None  # the optimizer's own
    asynchronous = options()
    assert all(getattr(asynchronous, name) is None for name in SETTINGS)


def test_every_synchronization_has_an_update_rule_that_fits():
    assert options().optimizer == "adagrad"
    assert options(synchronization="kfac").optimizer == "momentum"
    assert {options(synchronization=name).synchronization for name in SYNCHRONIZATIONS} == set(
        SYNCHRONIZATIONS
    )


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_of_another_synchronization_is_refused(name):
    flag = "--" + name.replace("_", "-")
    with pytest.raises(OptionError, match=rf"{flag} needs --synchronization .*Received: --sy"):
        options(**{name: 1})


@pytest.mark.parametrize(
    ("synchronization", "given", "message"),
    [
        ("drop-stale", {"staleness_bound": -1}, r"--staleness-bound must be >= 0\. Received: -1"),
        ("softsync", {"splits": 3}, r"--splits must be <= --workers \(2\)"),
        ("softsync", {"staleness_weighting": "some"}, "must be inverse or none. Received: some"),
        ("model-average", {"communication_period": 0}, "--communication-period must be >= 1"),
        ("model-average", {"steps": 99}, r"--communication-period must be <= --steps \(99\)"),
        ("elastic-average", {"steps": 9}, r"or the workers never exchange .* Received: 10\."),
        ("model-average", {"ps": 0, "workers": 1}, "it needs --ps >= 1. Received: --ps 0"),
        ("block-momentum", {"block_momentum": 1.0}, "--block-momentum must be >= 0 and < 1"),
        ("elastic-average", {"moving_rate": float("nan")}, "--moving-rate must be > 0 and <= 1"),
        ("gradient-compression", {"optimizer": "sgd", "sparsity": 1.0}, "--sparsity must be >= 0"),
        ("kfac", {"optimizer": "sgd", "damping": 0.0}, "--damping must be finite and > 0"),
        ("async", {"nesterov": True}, "--nesterov belongs to --optimizer momentum, boosted-mom"),
        ("async", {"replication": "in-graph"}, "it needs --synchronization sync without backup"),
        (
            "sync",
            {"replication": "in-graph", "workers": 2, "replicas_to_aggregate": 1},
            "it needs --synchronization sync without backup",
        ),
        ("sync", {"replication": "in-graph", "ps": 0, "workers": 1}, "it needs --ps >= 1"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(synchronization, given, message):
    with pytest.raises(OptionError, match=message):
        options(synchronization=synchronization, **given)


def fits(synchronization, optimizer):
    if synchronization == "gradient-compression":
        return optimizer == "sgd"
    if synchronization == "kfac":
        return optimizer in ("sgd", "momentum")
    if synchronization in LOCAL:
        return optimizer not in (*COMPENSATED, "ftrl")
    return not (synchronization in ("sync", "softsync") and optimizer in COMPENSATED)


@pytest.mark.parametrize("synchronization", SYNCHRONIZATIONS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_combination_is_taken_or_refused_with_the_reason(synchronization, optimizer):
    given = {"synchronization": synchronization, "optimizer": optimizer}
    if fits(synchronization, optimizer):
        assert options(**given).synchronization == synchronization
        return
    with pytest.raises(OptionError, match=r"do not go together: .{40,} Use "):
        options(**given)


@pytest.mark.parametrize(
    ("synchronization", "more", "samples"),
    [
        ("async", {}, 10),
        ("sync", {}, 40),
        ("sync", {"replication": "in-graph"}, 40),
        (
            "sync",
            {"replication": "in-graph", "placement": "layers=worker:0,worker:1,here"},
            10,
        ),
        ("softsync", {"splits": 2}, 20),
        ("softsync", {"splits": 3}, 10),
        ("elastic-average", {}, 40),
        ("drop-stale", {}, 10),
    ],
)
def test_a_step_has_as_many_samples_as_are_computed_for_it(synchronization, more, samples):
    given = options(synchronization=synchronization, workers=4, batch_size=10, **more)
    assert given.samples_per_step == samples
    assert given.config()["samples_per_step"] == samples
    assert given.examples(7) == 7 * samples


def test_a_resumed_run_takes_the_settings_over_with_the_synchronization():
    config = options(synchronization="bounded", staleness_bound=7).config()
    same = Options(**Options.taken_over({"run_dir": "r"}, config))
    assert (same.synchronization, same.staleness_bound) == ("bounded", 7)
    other = Options(**Options.taken_over({"run_dir": "r", "synchronization": "softsync"}, config))
    assert (other.staleness_bound, other.splits) == (None, 1)


def test_what_follows_the_number_of_workers_is_not_taken_over():
    config = options(synchronization="block-momentum", workers=2).config()
    more = {"run_dir": "r", "workers": 4}
    assert Options(**Options.taken_over(more, config)).block_momentum == 0.75
    config = options(synchronization="block-momentum", workers=2, block_momentum=0.6).config()
    assert Options(**Options.taken_over(more, config)).block_momentum == 0.6


@pytest.mark.parametrize(
    ("now", "before", "lacks"),
    [
        ("model-average", "async", "averages"),
        ("async", "elastic-average", "weights"),
        ("block-momentum", "model-average", "block updates"),
        ("kfac", "async", "covariances"),
    ],
)
def test_resume_needs_the_variables_of_the_synchronization(now, before, lacks):
    config = options(synchronization=before, optimizer="sgd").config()
    with pytest.raises(OptionError, match=rf"needs a checkpoint with {lacks}.* {before} does not"):
        options(synchronization=now, optimizer="sgd").check_resumes(config)


@pytest.mark.parametrize(
    ("now", "before"),
    [("sync", "async"), ("softsync", "gradient-compression"), ("elastic-average", "block-momentum"),
     ("async", "kfac")],
)  # fmt: skip
def test_resume_goes_on_with_another_synchronization_of_the_same_variables(now, before):
    config = options(synchronization=before, optimizer="sgd").config()
    options(synchronization=now, optimizer="sgd").check_resumes(config)


def test_the_command_line_knows_every_setting():
    given = ["--synchronization", "block-momentum", "--block-nesterov", "--block-momentum", "0.9"]
    parsed = vars(parser().parse_args(given))
    assert parsed == {
        "synchronization": "block-momentum", "block_nesterov": True, "block_momentum": 0.9,
    }  # fmt: skip


def test_a_placement_names_a_device_per_layer():
    places = parse_placement("layers=here, ps:1,worker:0")
    assert [device_of(place) for place in places] == [None, "/job:ps/task:1", "/job:worker/task:0"]


@pytest.mark.parametrize(
    ("placement", "more", "message"),
    [
        ("here,here,here", {}, "--placement must be layers= and a place per layer"),
        ("layers=here,gpu:0,here", {}, "--placement must be layers= and a place per layer"),
        ("layers=here,here", {}, "for each of the 3 layers of the tower"),
        ("layers=here,ps:1,here", {}, "which has 1 of the job 'ps'. Received: ps:1"),
        ("layers=here,worker:1,here", {}, "needs --replication in-graph"),
        (
            "layers=here,worker:2,here",
            {"synchronization": "sync", "replication": "in-graph"},
            "which has 2 of the job 'worker'. Received: worker:2",
        ),
        (
            "layers=here,ps:0,here",
            {"synchronization": "model-average"},
            "keeps copies or sums of them on every worker",
        ),
    ],
)
def test_a_placement_that_does_not_fit_is_refused(placement, more, message):
    with pytest.raises(OptionError, match=message):
        options(placement=placement, **more)
