#include "shapes.h"

namespace deepinsight {
namespace {

using tensorflow::DT_INVALID;

struct Accumulated {
  DataType dtype = DT_INVALID;  // unknown
  ShapeHandle shape;
};

Accumulated Behind(InferenceContext* c) {
  const auto* data = c->input_handle_shapes_and_types(0);
  if (data == nullptr || data->empty()) return {DT_INVALID, c->UnknownShape()};
  return {(*data)[0].dtype, (*data)[0].shape};
}

// The shape of `rows` rows of the accumulator.
Status RowsShape(InferenceContext* c, ShapeHandle shape,
                 tensorflow::shape_inference::DimensionHandle rows, ShapeHandle* out) {
  *out = c->UnknownShape();
  if (!c->RankKnown(shape)) return absl::OkStatus();
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(shape, 1, &shape));
  return c->ReplaceDim(shape, 0, rows, out);
}

Status CheckDtype(InferenceContext* c, const char* name, const Accumulated& accumulated) {
  DataType dtype;
  TF_RETURN_IF_ERROR(c->GetAttr("T", &dtype));
  if (accumulated.dtype == DT_INVALID || accumulated.dtype == dtype) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "`", name, "` must have the dtype of the accumulator, ", DataTypeString(accumulated.dtype),
      ". Received: ", DataTypeString(dtype), "."));
}

Status HandleShape(InferenceContext* c) {
  DataType dtype;
  tensorflow::PartialTensorShape partial;
  ShapeHandle shape;
  TF_RETURN_IF_ERROR(c->GetAttr("dtype", &dtype));
  TF_RETURN_IF_ERROR(c->GetAttr("shape", &partial));
  TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(partial, &shape));
  c->set_output(0, c->Scalar());
  c->set_output_handle_shapes_and_types(
      0, std::vector<tensorflow::shape_inference::ShapeAndType>{{shape, dtype}});
  return absl::OkStatus();
}

// handle, gradient[, indices], weight, staleness
Status AddShape(InferenceContext* c, bool sparse) {
  TF_RETURN_IF_ERROR(CheckTypes(c));
  TF_RETURN_IF_ERROR(CheckScalars(c, 0, 0));
  TF_RETURN_IF_ERROR(CheckScalars(c, sparse ? 3 : 2, sparse ? 4 : 3));
  const Accumulated accumulated = Behind(c);
  TF_RETURN_IF_ERROR(CheckDtype(c, "gradient", accumulated));
  ShapeHandle merged;
  if (sparse) {
    ShapeHandle indices, rows;
    TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 1, &indices));
    TF_RETURN_IF_ERROR(RowsShape(c, accumulated.shape, c->Dim(indices, 0), &rows));
    TF_RETURN_IF_ERROR(MergeNamed(c, "gradient", c->input(1), "the accumulator's rows at `indices`",
                                  rows, &merged));
  } else {
    TF_RETURN_IF_ERROR(MergeNamed(c, "gradient", c->input(1), "the accumulator",
                                  accumulated.shape, &merged));
  }
  c->set_output(0, c->Scalar());
  return absl::OkStatus();
}

Status CountShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(CheckScalars(c, 0, 0));
  c->set_output(0, c->Scalar());
  return absl::OkStatus();
}

// handle
Status TakeShape(InferenceContext* c, bool sparse) {
  TF_RETURN_IF_ERROR(CheckScalars(c, 0, 0));
  const Accumulated accumulated = Behind(c);
  TF_RETURN_IF_ERROR(CheckDtype(c, "T", accumulated));
  if (sparse) {
    const auto touched = c->UnknownDim();
    ShapeHandle rows;
    TF_RETURN_IF_ERROR(RowsShape(c, accumulated.shape, touched, &rows));
    c->set_output(0, c->Vector(touched));
    c->set_output(1, rows);
  } else {
    c->set_output(0, accumulated.shape);
  }
  c->set_output(sparse ? 2 : 1, c->Scalar());
  c->set_output(sparse ? 3 : 2, c->Vector(2));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("StalenessWeightedAccumulatorHandle")
    .Output("handle: resource")
    .Attr("dtype: {half, bfloat16, float, double}")
    .Attr("shape: shape")
    .Attr("container: string = ''")
    .Attr("shared_name: string = ''")
    .SetIsStateful()
    .SetShapeFn(HandleShape)
    .Doc(R"doc(
Makes an accumulator of weighted gradients, or finds it by its name.

It adds up weight * gradient (in float for half types), and counts. Between two takes its gradients
are all dense or all sparse. It lives where this op is placed.

dtype: Of the gradients.
shape: Of the variable. The number of rows may be unknown (-1) if all gradients are sparse; the
  largest index then has no bound.
container: If not empty, the container of the accumulator.
shared_name: If not empty, the accumulator's name for all sessions; needed in eager execution,
  where nothing else tells two of them apart.
)doc");

REGISTER_OP("StalenessWeightedAccumulatorAdd")
    .Input("handle: resource")
    .Input("gradient: T")
    .Input("weight: C")
    .Input("staleness: int64")
    .Output("count: int64")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("C: {float, double}")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) { return AddShape(c, false); })
    .Doc(R"doc(
Adds weight * gradient.

gradient: In the shape of the accumulator.
weight: Finite, >= 0.
staleness: Updates applied between the worker's pull and this push, >= 0; for the statistics.
count: How many gradients there are with this one. Of concurrent calls no two get the same count.
)doc");

REGISTER_OP("StalenessWeightedAccumulatorAddSparse")
    .Input("handle: resource")
    .Input("gradient: T")
    .Input("indices: Tindices")
    .Input("weight: C")
    .Input("staleness: int64")
    .Output("count: int64")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("C: {float, double}")
    .Attr("Tindices: {int32, int64}")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) { return AddShape(c, true); })
    .Doc(R"doc(
Adds weight * gradient to the rows at `indices`; rows that come twice are summed first.

gradient: One row per index.
)doc");

REGISTER_OP("StalenessWeightedAccumulatorCount")
    .Input("handle: resource")
    .Output("count: int64")
    .SetIsStateful()
    .SetShapeFn(CountShape)
    .Doc("How many gradients were added since the last take.");

REGISTER_OP("StalenessWeightedAccumulatorTake")
    .Input("handle: resource")
    .Output("mean: T")
    .Output("count: int64")
    .Output("statistics: double")
    .Attr("T: {half, bfloat16, float, double}")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) { return TakeShape(c, false); })
    .Doc(R"doc(
Takes all dense gradients: sum of weight * gradient / count. The accumulator is empty then.

The sum is divided by the number of gradients, not by the sum of their weights. To take from an
empty accumulator is an error (FailedPrecondition).

count: How many gradients were taken.
statistics: Mean staleness, largest staleness.
)doc");

REGISTER_OP("StalenessWeightedAccumulatorTakeSparse")
    .Input("handle: resource")
    .Output("indices: int64")
    .Output("values: T")
    .Output("count: int64")
    .Output("statistics: double")
    .Attr("T: {half, bfloat16, float, double}")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) { return TakeShape(c, true); })
    .Doc(R"doc(
Takes all sparse gradients: sum of weight * gradient / count. The accumulator is empty then.

Every row is divided by the number of gradients, also by those that did not touch it.

indices: Every row that was touched, once, ascending.
values: One row per index.
)doc");

}  // namespace deepinsight
