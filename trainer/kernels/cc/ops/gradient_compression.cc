#include "shapes.h"

namespace deepinsight {
namespace {

// velocity, residual, momentum, clip_norm, grad[, indices]
Status DgcAccumulateShape(InferenceContext* c, bool sparse) {
  return ApplyShape(c, {{{1, "residual"}}, -1, 2, 3, 4, sparse ? 5 : -1, 3});
}

// velocity, residual, sparsity
Status DgcSelectShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(CheckTypes(c));
  TF_RETURN_IF_ERROR(CheckScalars(c, 2, 2));
  ShapeHandle merged;
  TF_RETURN_IF_ERROR(MergeNamed(c, "residual", VariableShape(c, 1), "`velocity`",
                                VariableShape(c, 0), &merged));
  const auto sent = c->UnknownDim();
  c->set_output(0, c->Vector(sent));
  c->set_output(1, c->Vector(sent));
  c->set_output(2, c->Vector(4));
  return absl::OkStatus();
}

// var, learning_rate, indices, values
Status ScatterApplyShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(CheckTypes(c));
  TF_RETURN_IF_ERROR(CheckScalars(c, 1, 1));
  ShapeHandle indices, merged;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 1, &indices));
  return MergeNamed(c, "values", c->input(3), "`indices`", indices, &merged);
}

}  // namespace

REGISTER_OP("ResourceDgcAccumulate")
    .Input("velocity: resource")
    .Input("residual: resource")
    .Input("momentum: C")
    .Input("clip_norm: C")
    .Input("grad: T")
    .Output("statistics: double")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("C: {float, double}")
    .Attr("use_locking: bool = false")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) { return DgcAccumulateShape(c, false); })
    .Doc(R"doc(
Adds a gradient to what Deep Gradient Compression keeps, with momentum correction.

velocity = momentum * velocity + scale * grad; residual += velocity, where scale =
min(1, clip_norm / norm of grad).

velocity: A variable of the arithmetic's dtype.
residual: What has not been sent yet; a variable like velocity.
momentum: In [0, 1).
clip_norm: Largest norm of a gradient that comes in, >= 0. For M workers and a threshold for their
  mean it is threshold / sqrt(M). 0 does not clip, and saves the pass that finds the norm.
grad: The worker's gradient, in the shape of velocity.
statistics: Norm of grad, scale, number of non-finite elements of grad.
)doc");

REGISTER_OP("ResourceSparseDgcAccumulate")
    .Input("velocity: resource")
    .Input("residual: resource")
    .Input("momentum: C")
    .Input("clip_norm: C")
    .Input("grad: T")
    .Input("indices: Tindices")
    .Output("statistics: double")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("C: {float, double}")
    .Attr("Tindices: {int32, int64}")
    .Attr("use_locking: bool = false")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) { return DgcAccumulateShape(c, true); })
    .Doc(R"doc(
The dense op on the rows at `indices` only; rows that come twice are summed first.

The velocity of other rows does not decay and is not added to their residual.

use_locking: If true, the variables' locks are held alone.
)doc");

REGISTER_OP("ResourceDgcSelect")
    .Input("velocity: resource")
    .Input("residual: resource")
    .Input("sparsity: C")
    .Output("indices: int64")
    .Output("values: T")
    .Output("statistics: double")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("C: {float, double}")
    .Attr("exact: bool = false")
    .Attr("seed: int = 0")
    .SetIsStateful()
    .SetShapeFn(DgcSelectShape)
    .Doc(R"doc(
Takes the elements of the largest magnitude out of the residual.

k = max(1, round((1 - sparsity) * n)) of n elements are taken: exactly those of the largest
magnitude; of equal ones those of lower index. NaN counts as infinity: it is sent and seen.
The velocity of what is taken becomes 0. The residual becomes what rounding to T has lost, so that
residual before == values + residual after. What is not finite as sent leaves residual - value,
which is not finite either.

velocity: A variable of the arithmetic's dtype.
residual: A variable like velocity.
sparsity: Share of the elements that stays, in [0, 1).
indices: Flat, ascending, [k]; empty if the variable is.
values: [k].
statistics: Least magnitude that was taken, k, n, sum of the magnitudes that were taken / sum of
  all (0 if that is 0).
exact: The default guesses the threshold from a sample of 1 %, and searches on where the guess was
  too high. If true, the threshold is found from all elements at once. Both give the same result.
seed: Of the sample; a kernel draws another one at each call.
)doc");

REGISTER_OP("ResourceScatterApplyGradientDescent")
    .Input("var: resource")
    .Input("learning_rate: C")
    .Input("indices: Tindices")
    .Input("values: T")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("C: {float, double}")
    .Attr("Tindices: {int32, int64}")
    .Attr("use_locking: bool = false")
    .SetIsStateful()
    .SetShapeFn(ScatterApplyShape)
    .Doc(R"doc(
Subtracts learning_rate * values from the elements of a variable.

indices: Flat, [k], each in [0, n) for n elements. Values of the same index are summed first.
values: [k].
use_locking: If true, the variable's lock is held alone.
)doc");

}  // namespace deepinsight
