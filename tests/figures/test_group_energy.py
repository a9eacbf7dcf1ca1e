import numpy as np
import pytest

from deepinsight.figures import (
    compute_group_energy_info,
    is_empty_figure,
    plot_group_energy,
)
from deepinsight.traces import Axis

AXES = (Axis("feature group", ("user", "ad")),)


def test_one_line_per_group_in_slice_order(record):
    def write(writer):
        for step, values in ((0, [1.0, 2.0]), (10, [3.0, np.nan])):
            writer.record("weights/w/group_rms", np.array(values), step=step, axes=AXES)

    info = compute_group_energy_info(record(write), "w")
    assert [line.name for line in info.series] == ["user", "ad"]
    np.testing.assert_array_equal(info.series[0].y, [1.0, 3.0])
    np.testing.assert_array_equal(info.series[1].y, [2.0, np.nan])
    assert info.series[1].non_finite == 1
    figure = plot_group_energy(info)
    assert figure.layout.xaxis.title.text == "Step (updates)"
    assert [trace.name for trace in figure.data] == ["user", "ad"]


def test_several_processes_are_told_apart(record):
    def write(writer):
        writer.record("weights/w/group_max", np.ones(2), step=0, axes=AXES)

    info = compute_group_energy_info(record(write, write), "w", statistic="max")
    assert [line.name for line in info.series][:2] == ["user · worker-0", "ad · worker-0"]
    assert info.groups == ("user", "ad", "user", "ad")


def test_groups_with_variables_of_their_own_are_shown_together(record):
    def write(writer):
        for number, group in enumerate(("user", "ad")):
            axes = (Axis("feature group", (group,)),)
            name = f"weights/embedding/{group}/group_rms"
            writer.record(name, np.array([float(number)]), step=0, axes=axes)
        axes = (Axis("feature group", ("user",)),)
        writer.record("weights/wide/user/group_rms", np.ones(1), step=0, axes=axes)

    run = record(write)
    info = compute_group_energy_info(run, "embedding/user")
    assert [line.name for line in info.series] == ["ad", "user"]
    assert [line.last for line in info.series] == [1.0, 0.0]
    assert info.shown == "embedding/*"
    assert "embedding/*" in plot_group_energy(info).layout.title.text
    assert compute_group_energy_info(run, "wide/user").shown == "wide/user"


def test_the_band_of_the_example_grows_thirtyfold_in_its_group_alone(open_example):
    info = compute_group_energy_info(open_example("async"), "fc1/kernel", statistic="max")
    growth = {line.name: line.y[-1] / line.y[0] for line in info.series}
    assert growth.pop("context") > 15
    assert max(growth.values()) < 1.5


@pytest.mark.parametrize(
    ("run", "variable", "reason"),
    [
        ("keras", "dense/kernel", "names no feature groups"),
        ("async", "fc2/kernel", "Nothing is recorded per feature group for fc2/kernel"),
        ("async", "", "Choose a variable"),
    ],
)
def test_an_empty_figure_says_why(open_example, run, variable, reason):
    info = compute_group_energy_info(open_example(run), variable)
    assert reason in info.reason
    assert is_empty_figure(plot_group_energy(info))
