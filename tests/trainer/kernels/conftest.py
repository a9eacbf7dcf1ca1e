"""What the tests of the kernels share: the apply ops; small sources and a compiler that counts."""

import importlib.util
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

# The smallest op: it parses TensorFlow's headers (some seconds) and can be run.
OP = """\
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

REGISTER_OP("DeepInsightTestSeven")
    .Output("out: int32")
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      context->set_output(0, context->Scalar());
      return absl::OkStatus();
    });

class Seven : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(tensorflow::OpKernelContext* context) override {
    tensorflow::Tensor* out;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &out));
    out->scalar<int>()() = 7;
  }
};
REGISTER_KERNEL_BUILDER(Name("DeepInsightTestSeven").Device("CPU"), Seven);
"""
# Sources without TensorFlow: they compile in a moment, and the library has no ops.
PLAIN = {
    "ops/a.cc": '#include "shared.h"\nint ops_a() { return kOne; }\n',
    "ops/b.cc": '#include "ops/shared.h"\nint ops_b() { return ops_a() + kOne; }\n',
    "ops/shared.h": "#pragma once\nconstexpr int kOne = 1;\n",
    "kernels/x.cc": '#include "x.h"\nint x() { return kTwo; }\n',
    "kernels/y.cc": "int y() { return 3; }\n",
    "kernels/x.h": "#pragma once\nconstexpr int kTwo = 2;\n",
}


def write(folder: Path, files: dict[str, str]) -> Path:
    """Write a folder of sources."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="session")
def apply_ops() -> ModuleType:
    """Each apply op beside its rule."""
    path = Path(__file__).parent / "apply_ops.py"
    spec = importlib.util.spec_from_file_location("apply_ops", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and an environment that names no compiler and no library."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("DEEPINSIGHT_KERNELS", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    return tmp_path / "cache" / "deepinsight" / "kernels"


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """Sources that compile in a moment: four files of code, three units."""
    return write(tmp_path / "cc", PLAIN)


@pytest.fixture
def compiler(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Callable[[], list[str]]]:
    """Put a script before g++; the function that it returns tells what was compiled since."""

    def put(first: str = "") -> Callable[[], list[str]]:
        calls = tmp_path / "calls"
        calls.write_text("")
        script = tmp_path / "counting-g++"
        record = f'for word; do case "$word" in *.cc) echo "${{word##*/}}" >> {calls};; esac; done'
        script.write_text(f'#!/bin/sh\n{record}\n{first}\nexec g++ "$@"\n')
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("CXX", str(script))

        def since() -> list[str]:
            names = sorted(calls.read_text().split())
            calls.write_text("")
            return names

        return since

    return put
