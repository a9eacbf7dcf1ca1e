#include "shapes.h"

namespace deepinsight {
namespace {

// local, center, moving_rate[, indices]
Status ElasticShape(InferenceContext* c, bool sparse) {
  TF_RETURN_IF_ERROR(CheckTypes(c));
  TF_RETURN_IF_ERROR(CheckScalars(c, 2, 2));
  ShapeHandle local = VariableShape(c, 0), merged;
  TF_RETURN_IF_ERROR(MergeNamed(c, "center", VariableShape(c, 1), "`local`", local, &merged));
  if (sparse) {
    TF_RETURN_IF_ERROR(c->WithRankAtLeast(local, 1, &merged));
    TF_RETURN_IF_ERROR(c->WithRank(c->input(3), 1, &merged));
  }
  c->set_output(0, c->Vector(2));
  return absl::OkStatus();
}

// center, moving_rate, local
Status ElasticPullShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(CheckTypes(c));
  TF_RETURN_IF_ERROR(CheckScalars(c, 1, 1));
  ShapeHandle local = c->input(2), merged;
  TF_RETURN_IF_ERROR(MergeNamed(c, "local", local, "`center`", VariableShape(c, 0), &merged));
  c->set_output(0, merged);
  c->set_output(1, c->Vector(2));
  return absl::OkStatus();
}

// var, delta, block_momentum, block_learning_rate, mean
Status BlockMomentumShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(CheckTypes(c));
  TF_RETURN_IF_ERROR(CheckScalars(c, 2, 3));
  ShapeHandle var = VariableShape(c, 0), merged;
  TF_RETURN_IF_ERROR(MergeNamed(c, "delta", VariableShape(c, 1), "`var`", var, &merged));
  TF_RETURN_IF_ERROR(MergeNamed(c, "mean", c->input(4), "`var`", var, &merged));
  c->set_output(0, c->Vector(2));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("ResourceElasticExchange")
    .Input("local: resource")
    .Input("center: resource")
    .Input("moving_rate: C")
    .Output("statistics: double")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("C: {float, double}")
    .Attr("use_locking: bool = false")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) { return ElasticShape(c, false); })
    .Doc(R"doc(
Moves a local variable and the center towards each other.

d = local - center; local -= moving_rate * d; center += moving_rate * d.

moving_rate: In [0, 1].
statistics: Norm of d, number of its non-finite elements.
)doc");

REGISTER_OP("ResourceSparseElasticExchange")
    .Input("local: resource")
    .Input("center: resource")
    .Input("moving_rate: C")
    .Input("indices: Tindices")
    .Output("statistics: double")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("C: {float, double}")
    .Attr("Tindices: {int32, int64}")
    .Attr("use_locking: bool = false")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) { return ElasticShape(c, true); })
    .Doc(R"doc(
The dense op on the rows at `indices` only; a row that is named twice is exchanged once.

use_locking: If true, the variables' locks are held alone.
)doc");

REGISTER_OP("ResourceApplyElasticPull")
    .Input("center: resource")
    .Input("moving_rate: C")
    .Input("local: T")
    .Output("pulled: T")
    .Output("statistics: double")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("C: {float, double}")
    .SetIsStateful()
    .SetShapeFn(ElasticPullShape)
    .Doc(R"doc(
Moves the center towards values that come from elsewhere, and returns them moved as far towards it.

d = local - center; center += moving_rate * d; pulled = local - moving_rate * d.

The center's lock is held meanwhile: both sides use the same d, whoever else exchanges.

center: A variable in the shape of local.
moving_rate: In [0, 1].
local: A worker's weights, from another device or process.
pulled: What they are to be.
statistics: Norm of d, number of its non-finite elements.
)doc");

REGISTER_OP("ResourceApplyBlockMomentum")
    .Input("var: resource")
    .Input("delta: resource")
    .Input("block_momentum: C")
    .Input("block_learning_rate: C")
    .Input("mean: T")
    .Output("statistics: double")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("C: {float, double}")
    .Attr("use_nesterov: bool = false")
    .SetIsStateful()
    .SetShapeFn(BlockMomentumShape)
    .Doc(R"doc(
Moves a variable towards the mean of the workers' models, with block momentum.

step = block_momentum * delta + block_learning_rate * (mean - var);
var += step, with use_nesterov + block_momentum * (step - delta); delta = step.

var: What was broadcast to the workers before the block; becomes what is broadcast next. With
  use_nesterov it runs ahead of the model of the block by block_momentum * delta.
delta: The last step; a variable of the arithmetic's dtype in the shape of var.
block_momentum: In [0, 1); typically 1 - 1 / number of workers.
block_learning_rate: > 0; typically 1.
mean: The mean of the workers' models after the block, in the shape of var.
statistics: Norm of step, number of its non-finite elements.
)doc");

}  // namespace deepinsight
