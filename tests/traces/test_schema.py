import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deepinsight.traces import Axis, StreamInfo, group_slices, stream_name
from deepinsight.traces.schema import check_stream_name, normalize_feature_groups


@pytest.mark.parametrize(
    "name", ["loss", "weights/fc1/kernel/tiles", "auc@0.5"[:3], "a b:0=[1]%()+-"]
)
def test_valid_names_pass(name):
    check_stream_name(name)


@pytest.mark.parametrize(
    "name", ["", "/loss", "loss/", "a//b", "a/../b", ".", "größe", "a\n", None, 3]
)
def test_malformed_names_are_refused_with_the_remedy(name):
    with pytest.raises(ValueError, match=r"joined by '/'.*stream_name\(\) makes a valid name"):
        check_stream_name(name)


@pytest.mark.parametrize("part", ["step", "wall_time_s", "values"])
def test_components_that_the_format_uses_are_reserved(part):
    with pytest.raises(ValueError, match=f"must not be '{part}'"):
        check_stream_name(f"a/{part}/b")


def test_a_name_too_long_for_hdf5_is_refused():
    with pytest.raises(ValueError, match=r"at most 1024 characters. Received: 1025"):
        check_stream_name("x" * 1025)


@given(st.text(max_size=60) | st.text(alphabet="a:/0. step\n\0é", max_size=20))
@example("a:0:0")
@example("a:0//:1/")
@example("wall_time_s/step:0")
@example("../.")
@example("a:0\n")
def test_stream_name_is_valid_and_idempotent(raw):
    name = stream_name(raw)
    check_stream_name(name)
    assert stream_name(name) == name


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ("fc1/kernel:0", "fc1/kernel"),
        ("/a//b/", "a/b"),
        ("step", "step_"),
        ("", "_"),
        ("a#b", "a_b"),
    ],
)
def test_stream_name_keeps_what_it_can(raw, name):
    assert stream_name(raw) == name


def test_stream_name_shortens_without_merging():
    long, other = (stream_name("x" * 5000 + end) for end in "ab")
    assert long != other
    check_stream_name(long)
    check_stream_name(stream_name("ab/" * 2000))


texts = st.text(
    alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=9
)


@given(
    unit=texts, description=texts, reduction=texts, axis=texts,
    labels=st.none() | st.tuples(texts, texts),
    details=st.dictionaries(texts, st.none() | st.integers() | texts | st.lists(st.booleans()))
)  # fmt: skip
def test_attributes_round_trip(unit, description, reduction, axis, labels, details):
    info = StreamInfo(
        "a/b", (2,), "float16", unit, description, (Axis(axis, labels, unit),), reduction, details
    )
    assert StreamInfo.from_attributes("a/b", (2,), "float16", info.attributes()) == info


def test_a_group_without_attributes_is_a_stream_without_description():
    assert StreamInfo.from_attributes("a", (), "int8", {}) == StreamInfo("a", (), "int8")


def test_details_may_hold_numpy():
    info = StreamInfo("a", details={"block_shape": np.array([3, 1]), "n": np.int64(4)})
    assert json.loads(info.attributes()["details"]) == {"block_shape": [3, 1], "n": 4}


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"dtype": "U5"}, ValueError, "must hold booleans, integers or floats"),
        ({"dtype": "complex64"}, ValueError, "must hold booleans, integers or floats"),
        ({"dtype": "no such"}, TypeError, "`dtype` must be a NumPy dtype"),
        ({"shape": (-1,)}, ValueError, "each >= 0"),
        ({"shape": (1,) * 32}, ValueError, "at most 31 dimensions"),
        ({"shape": (1 << 29,)}, ValueError, "less than 4 GiB"),
        ({"shape": (3,), "axes": (Axis("a"), Axis("b"))}, ValueError, "Received: 2 axes"),
        (
            {"shape": (3,), "axes": (Axis("a", ("x",)),)},
            ValueError,
            "3 entries. Received: 1 labels",
        ),
        ({"unit": None}, TypeError, "must be text without NUL. Received: None"),
        ({"description": "a\0b"}, TypeError, "must be text without NUL"),
        ({"reduction": "\ud800"}, TypeError, "must be text without NUL"),
        ({"shape": (2,), "axes": (Axis("a", (1, 2)),)}, TypeError, "must be text"),
        ({"details": {"a": object()}}, TypeError, "`details` must be JSON"),
    ],
)
def test_what_cannot_be_stored_is_refused_when_it_is_declared(settings, error, message):
    with pytest.raises(error, match=message):
        StreamInfo("a", **settings)


GROUPS = [
    {"user": slice(0, 8), "ad": slice(8, 12)},
    {"ad": (8, 12), "user": (0, 8)},
    {"user": [0, 8], "ad": slice(np.int64(8), np.int32(12), 1)},
    {"user": slice(None, 8), "ad": slice(8, 12)},
]


@pytest.mark.parametrize("groups", GROUPS)
def test_plain_rows_hold_for_every_variable_of_that_height(groups):
    for form in (groups, json.loads(json.dumps(normalize_feature_groups(groups)))):
        expected = {"user": slice(0, 8), "ad": slice(8, 12)}
        assert group_slices(form, "fc1/kernel", 12) == expected
        assert list(group_slices(form, "fc1/kernel", 12)) == ["user", "ad"]
        assert group_slices(form, "fc2/kernel", 256) == {}


def test_named_variables_take_their_own_rows_and_open_ends():
    groups = {
        "user": {"fc1": slice(2, None), "fc2": (0, 3)},
        "ad": {"fc1": slice(0, 2)},
        "rest": (0, 3),
    }
    assert group_slices(groups, "fc1", 5) == {"ad": slice(0, 2), "user": slice(2, 5)}
    assert group_slices(groups, "fc2", 2) == {"user": slice(0, 2)}
    assert group_slices(groups, "fc3", 3) == {"rest": slice(0, 3)}
    assert group_slices(groups, "fc1", 1) == {"ad": slice(0, 1)}
    assert group_slices({}, "fc1", 1) == {}


@pytest.mark.parametrize(
    "rows",
    [slice(0, 8, 2), slice(8, 0), slice(-1, 3), slice(2, 2), (1,), (0.0, 2), (None, 5), "ab", 3,
     None,
     slice(0, None), {"v": slice(3, 1)}],
)  # fmt: skip
def test_rows_that_are_no_forward_range_are_refused(rows):
    with pytest.raises(
        ValueError, match=r"Feature group 'user' must be a slice or a \(start, stop\)"
    ):
        normalize_feature_groups({"user": rows})
