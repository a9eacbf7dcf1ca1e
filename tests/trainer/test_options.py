import json

import pytest

from deepinsight.errors import DeepInsightError
from deepinsight.trainer.errors import OptionError
from deepinsight.trainer.options import Options, checkpoint_step


def test_defaults_depend_on_the_model_and_the_rule():
    dense = Options(run_dir="r", model="dense", optimizer="adam")
    assert dense.hidden == (256, 128, 64, 32)
    assert dense.learning_rate == 0.001
    assert Options(run_dir="r").hidden == (64, 32)
    assert Options(run_dir="r", synchronization="sync", workers=3).replicas_to_aggregate == 3
    assert Options(run_dir="r").replicas_to_aggregate is None
    assert Options(run_dir="r", optimizer="dc-asgd").variance_parameter == 0.04
    assert Options(run_dir="r").variance_parameter is None


def test_config_is_json_and_has_what_viewers_need():
    config = Options(run_dir="r").config()
    assert json.loads(json.dumps(config)) == config
    assert {
        "model", "data", "optimizer", "synchronization", "workers", "ps", "batch_size",
        "learning_rate", "seed",
    } <= set(config)  # fmt: skip
    assert "resume" not in config


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": "deep"}, "--model must be one of dense, wide-deep. Received: deep"),
        ({"batch_size": 0}, "--batch-size must be >= 1. Received: 0"),
        ({"learning_rate": float("nan")}, "--learning-rate must be finite and > 0. Received: nan"),
        ({"learning_rate": -1.0}, "--learning-rate must be finite and > 0"),
        ({"momentum": 1.0}, "--momentum must be >= 0 and < 1"),
        ({"boost": 1.0}, "--boost must be >= 0 and < 1"),
        ({"staleness_scale": 0.0}, "--staleness-scale must be finite and > 0"),
        (
            {"optimizer": "dc-asgd", "variance_parameter": float("nan")},
            "--variance-parameter must be finite and >= 0. Received: nan",
        ),
        ({"variance_parameter": 1.0}, "belongs to --optimizer dc-asgd and dc-asgd-adaptive"),
        (
            {"optimizer": "boosted-adam", "synchronization": "sync"},
            "the rule corrects stale gradients, and synchronous rounds have none",
        ),
        ({"hidden": (8, 0)}, "--hidden must be widths >= 1"),
        ({"ctr_leak": 1.5}, "--ctr-leak must be >= 0 and <= 1"),
        ({"steps": None}, "One of --steps and --epochs"),
        ({"ps": 0, "workers": 2}, "--workers 2 needs --ps >= 1"),
        ({"data": "criteo"}, "needs --data-path"),
        ({"data_path": "x"}, "--data digits reads no file"),
        ({"data": "ctr", "epochs": 2}, "endless stream"),
        ({"replicas_to_aggregate": 1}, "needs --synchronization sync"),
        (
            {"replicas_to_aggregate": 3, "synchronization": "sync"},
            r"--replicas-to-aggregate must be <= --workers \(2\)",
        ),
    ],
)
def test_refuses_values_out_of_range_and_names_the_option(given, message):
    with pytest.raises(OptionError, match=message):
        Options(run_dir="r", **given)


def test_option_errors_are_value_errors_too():
    assert issubclass(OptionError, ValueError)
    assert issubclass(OptionError, DeepInsightError)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": "dense"}, "--model was wide-deep in r. Received: dense"),
        ({"hidden": (8, 4)}, "--hidden was 64,32 in r. Received: 8,4"),
        ({"data": "ctr"}, "--data was digits in r. Received: ctr"),
        ({"optimizer": "sgd"}, "--optimizer was adagrad in r. Received: sgd"),
    ],
)
def test_resume_refuses_another_model_or_data(changed, message):
    config = json.loads(json.dumps(Options(run_dir="r").config()))
    with pytest.raises(OptionError, match=message):
        Options(run_dir="r", **changed).check_resumes(config)


def test_resume_accepts_another_rate_and_cluster():
    config = json.loads(json.dumps(Options(run_dir="r").config()))
    changed = Options(run_dir="r", learning_rate=0.5, workers=3, ps=2, synchronization="sync")
    changed.check_resumes(config)


def test_resume_keeps_the_workers_where_each_has_a_mean_square():
    given = {"run_dir": "r", "optimizer": "dc-asgd-adaptive"}
    config = json.loads(json.dumps(Options(**given).config()))
    with pytest.raises(OptionError, match=r"needs as many --workers as before, 2: .* Received: 3"):
        Options(**given, workers=3).check_resumes(config)


def test_resume_with_another_rule_is_refused_by_its_name():
    config = json.loads(json.dumps(Options(run_dir="r", optimizer="dc-asgd").config()))
    again = Options(**Options.taken_over({"run_dir": "r", "optimizer": "sgd"}, config))
    with pytest.raises(OptionError, match="--optimizer was dc-asgd in r"):
        again.check_resumes(config)


def test_a_synchronous_step_takes_a_batch_of_every_worker():
    given = {"run_dir": "r", "workers": 3, "batch_size": 10}
    assert Options(**given).examples(7) == 70
    assert Options(**given, synchronization="sync").examples(7) == 210
    backed_up = Options(**given, synchronization="sync", replicas_to_aggregate=1)
    assert backed_up.examples(7) == 210  # a backup draws examples, whatever becomes of them


def test_a_resumed_run_takes_over_what_is_not_given():
    first = Options(run_dir="r", workers=3, batch_size=7, synchronization="sync", steps=50)
    config = json.loads(json.dumps({**first.config(), "data_facts": {}}))
    again = Options(**Options.taken_over({"run_dir": "r", "resume": True}, config))
    assert again.config() == first.config()
    assert again.differences(config) == []
    more = Options(**Options.taken_over({"run_dir": "r", "workers": 4, "epochs": 2}, config))
    assert (more.batch_size, more.workers, more.replicas_to_aggregate) == (7, 4, 4)
    assert (more.steps, more.epochs) == (None, 2)
    assert "--workers was 3, is 4 now" in more.differences(config)
    assert not any("samples" in line for line in more.differences(config))  # no option
    alone = Options(**Options.taken_over({"run_dir": "r", "synchronization": "async"}, config))
    assert alone.replicas_to_aggregate is None


def test_backups_are_taken_over():
    given = {"run_dir": "r", "workers": 3, "synchronization": "sync", "replicas_to_aggregate": 2}
    config = json.loads(json.dumps(Options(**given).config()))
    assert Options(**Options.taken_over({"run_dir": "r"}, config)).replicas_to_aggregate == 2


def test_the_step_of_the_newest_checkpoint_is_read(tmp_path):
    assert checkpoint_step(str(tmp_path)) is None
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "checkpoint").write_text(
        'model_checkpoint_path: "model-1200"\nall_model_checkpoint_paths: "model-1000"\n'
        'all_model_checkpoint_paths: "model-1200"\n'
    )
    assert checkpoint_step(str(tmp_path)) == 1200
