#include "shapes.h"

namespace deepinsight {
namespace {

Status DelayCompensatedShape(InferenceContext* c, bool sparse) {
  return ApplyShape(c, {{}, 1, 2, 3, 4, sparse ? 5 : -1, 3});
}

Status AdaptiveDelayCompensatedShape(InferenceContext* c, bool sparse) {
  return ApplyShape(c, {{{2, "mean_square"}}, 1, 3, 6, 7, sparse ? 8 : -1, 3});
}

}  // namespace

REGISTER_OP("ResourceApplyDelayCompensatedGradientDescent")
    .Input("var: resource")
    .Input("backup: B")
    .Input("learning_rate: C")
    .Input("variance_parameter: C")
    .Input("grad: T")
    .Output("statistics: double")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("C: {float, double}")
    .Attr("B: {resource, half, bfloat16, float, double}")
    .Attr("use_locking: bool = false")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) { return DelayCompensatedShape(c, false); })
    .Doc(R"doc(
Applies one step of delay-compensated gradient descent with a constant variance parameter.

var -= learning_rate * (grad + variance_parameter * grad * grad * (var - backup)); backup = var.

Where the compensation is not finite, grad is applied as it is.

backup: What the pushing worker pulled: a variable, which takes the new value, or a snapshot with
  the shape of grad.
statistics: Sum of |compensation| / sum of |grad|, share of the elements whose sign was flipped,
  number of non-finite elements of grad.
use_locking: If true, a sparse update holds the variables' locks alone.
)doc");

REGISTER_OP("ResourceSparseApplyDelayCompensatedGradientDescent")
    .Input("var: resource")
    .Input("backup: B")
    .Input("learning_rate: C")
    .Input("variance_parameter: C")
    .Input("grad: T")
    .Input("indices: Tindices")
    .Output("statistics: double")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("C: {float, double}")
    .Attr("B: {resource, half, bfloat16, float, double}")
    .Attr("Tindices: {int32, int64}")
    .Attr("use_locking: bool = false")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) { return DelayCompensatedShape(c, true); })
    .Doc("The dense op on the rows at `indices` only; rows that come twice are summed first.");

REGISTER_OP("ResourceApplyAdaptiveDelayCompensatedGradientDescent")
    .Input("var: resource")
    .Input("backup: B")
    .Input("mean_square: resource")
    .Input("learning_rate: C")
    .Input("variance_parameter: C")
    .Input("decay: C")
    .Input("epsilon: C")
    .Input("grad: T")
    .Output("statistics: double")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("C: {float, double}")
    .Attr("B: {resource, half, bfloat16, float, double}")
    .Attr("use_locking: bool = false")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) { return AdaptiveDelayCompensatedShape(c, false); })
    .Doc(R"doc(
Applies one step of delay-compensated gradient descent with an adaptive variance parameter.

mean_square = decay * mean_square + (1 - decay) * grad * grad;
lambda = variance_parameter / sqrt(mean_square + epsilon);
var -= learning_rate * (grad + lambda * grad * grad * (var - backup)); backup = var.

mean_square: A variable of the arithmetic's dtype with the shape of var.
backup: As in ResourceApplyDelayCompensatedGradientDescent.
statistics: As in ResourceApplyDelayCompensatedGradientDescent.
)doc");

REGISTER_OP("ResourceSparseApplyAdaptiveDelayCompensatedGradientDescent")
    .Input("var: resource")
    .Input("backup: B")
    .Input("mean_square: resource")
    .Input("learning_rate: C")
    .Input("variance_parameter: C")
    .Input("decay: C")
    .Input("epsilon: C")
    .Input("grad: T")
    .Input("indices: Tindices")
    .Output("statistics: double")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("C: {float, double}")
    .Attr("B: {resource, half, bfloat16, float, double}")
    .Attr("Tindices: {int32, int64}")
    .Attr("use_locking: bool = false")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) { return AdaptiveDelayCompensatedShape(c, true); })
    .Doc("The dense op on the rows at `indices` only; rows that come twice are summed first.");

}  // namespace deepinsight
