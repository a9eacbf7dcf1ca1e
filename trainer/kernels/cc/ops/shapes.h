// Shape functions that the ops share: they check what the kernels check, as far as shapes tell.
#ifndef DEEPINSIGHT_OPS_SHAPES_H_
#define DEEPINSIGHT_OPS_SHAPES_H_

#include <initializer_list>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace deepinsight {

using tensorflow::DataType;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;
using Status = absl::Status;

// The shape of the variable behind a resource input, as far as it is known.
inline ShapeHandle VariableShape(InferenceContext* c, int input) {
  const auto* data = c->input_handle_shapes_and_types(input);
  return data == nullptr || data->empty() ? c->UnknownShape() : (*data)[0].shape;
}

// Checks that C is the arithmetic of T: double for double, else float.
inline Status CheckTypes(InferenceContext* c) {
  DataType storage, compute;
  TF_RETURN_IF_ERROR(c->GetAttr("T", &storage));
  TF_RETURN_IF_ERROR(c->GetAttr("C", &compute));
  const DataType expected =
      storage == tensorflow::DT_DOUBLE ? tensorflow::DT_DOUBLE : tensorflow::DT_FLOAT;
  if (compute == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("Hyperparameters of a ", DataTypeString(storage), " variable must be ",
                   DataTypeString(expected), ". Received: ", DataTypeString(compute), "."));
}

inline Status MergeNamed(InferenceContext* c, const char* name, ShapeHandle a, const char* as,
                         ShapeHandle b, ShapeHandle* merged) {
  if (c->Merge(a, b, merged).ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("`", name, "` must have the shape of ", as, ", ",
                                                 c->DebugString(b),
                                                 ". Received: ", c->DebugString(a), "."));
}

inline Status CheckScalars(InferenceContext* c, int first, int last) {
  for (int i = first; i <= last; ++i) {
    ShapeHandle scalar;
    TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 0, &scalar));
  }
  return absl::OkStatus();
}

// A slot of the variable, by its input and name.
struct SlotInput {
  int input;
  const char* name;
};

// The inputs of an apply op, by number: the variable; its slots; the backup, a resource or a
// snapshot (-1: none); the scalars [first, last]; the gradient; its indices (-1: dense).
// The output is a vector of `statistics` numbers.
struct ApplyInputs {
  std::vector<SlotInput> slots;
  int backup;
  int first_scalar, last_scalar;
  int grad;
  int indices;
  int statistics;
};

inline Status ApplyShape(InferenceContext* c, const ApplyInputs& inputs) {
  TF_RETURN_IF_ERROR(CheckTypes(c));
  TF_RETURN_IF_ERROR(CheckScalars(c, inputs.first_scalar, inputs.last_scalar));
  TF_RETURN_IF_ERROR(CheckScalars(c, 0, 0));
  ShapeHandle var = VariableShape(c, 0), grad = c->input(inputs.grad), rows, merged;
  if (inputs.indices >= 0) {
    TF_RETURN_IF_ERROR(c->WithRank(c->input(inputs.indices), 1, &rows));
  }
  for (const SlotInput& slot : inputs.slots) {
    TF_RETURN_IF_ERROR(CheckScalars(c, slot.input, slot.input));
    TF_RETURN_IF_ERROR(
        MergeNamed(c, slot.name, VariableShape(c, slot.input), "`var`", var, &merged));
  }
  if (inputs.indices < 0) {
    TF_RETURN_IF_ERROR(MergeNamed(c, "grad", grad, "`var`", var, &merged));
  } else if (c->RankKnown(var)) {
    TF_RETURN_IF_ERROR(c->WithRankAtLeast(var, 1, &var));
    TF_RETURN_IF_ERROR(c->ReplaceDim(var, 0, c->Dim(c->input(inputs.indices), 0), &rows));
    TF_RETURN_IF_ERROR(
        MergeNamed(c, "grad", grad, "the rows of `var` at `indices`", rows, &merged));
  }
  if (inputs.backup >= 0) {
    DataType backup;
    TF_RETURN_IF_ERROR(c->GetAttr("B", &backup));
    if (backup == tensorflow::DT_RESOURCE) {
      TF_RETURN_IF_ERROR(
          MergeNamed(c, "backup", VariableShape(c, inputs.backup), "`var`", var, &merged));
    } else {
      DataType storage;
      TF_RETURN_IF_ERROR(c->GetAttr("T", &storage));
      if (backup != storage) {
        return absl::InvalidArgumentError(absl::StrCat("`backup` must have the dtype of `grad`, ",
                                                       DataTypeString(storage), ". Received: ",
                                                       DataTypeString(backup), "."));
      }
      TF_RETURN_IF_ERROR(
          MergeNamed(c, "backup", c->input(inputs.backup), "`grad`", grad, &merged));
    }
  }
  c->set_output(0, c->Vector(inputs.statistics));
  return absl::OkStatus();
}

}  // namespace deepinsight

#endif  // DEEPINSIGHT_OPS_SHAPES_H_
