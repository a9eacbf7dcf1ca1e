#include "shapes.h"

namespace deepinsight {
namespace {

Status LarsShape(InferenceContext* c, bool sparse) {
  return ApplyShape(c, {{{1, "accum"}}, -1, 2, 6, 7, sparse ? 8 : -1, 4});
}

}  // namespace

REGISTER_OP("ResourceApplyLars")
    .Input("var: resource")
    .Input("accum: resource")
    .Input("learning_rate: C")
    .Input("eeta: C")
    .Input("weight_decay: C")
    .Input("momentum: C")
    .Input("epsilon: C")
    .Input("grad: T")
    .Output("statistics: double")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("C: {float, double}")
    .Attr("use_locking: bool = false")
    .Attr("use_nesterov: bool = false")
    .Attr("adapt: bool = true")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) { return LarsShape(c, false); })
    .Doc(R"doc(
Applies one step of layer-wise adaptive rate scaling with momentum.

trust = eeta |var| / (|grad| + weight_decay |var| + epsilon), 1 where one of the norms is 0;
step = learning_rate * trust * (grad + weight_decay * var);
accum = momentum * accum + step;
var -= accum, or with use_nesterov var -= momentum * accum + step.

A gradient with an element that is not finite has no finite norm, and reaches all elements.

accum: A variable of the arithmetic's dtype with the shape of var.
adapt: If false, trust is 1 and weight_decay 0.
statistics: trust, |var| before the step, |grad|, number of non-finite elements of grad.
use_locking: If true, a sparse update holds the variables' locks alone.
)doc");

REGISTER_OP("ResourceSparseApplyLars")
    .Input("var: resource")
    .Input("accum: resource")
    .Input("learning_rate: C")
    .Input("eeta: C")
    .Input("weight_decay: C")
    .Input("momentum: C")
    .Input("epsilon: C")
    .Input("grad: T")
    .Input("indices: Tindices")
    .Output("statistics: double")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("C: {float, double}")
    .Attr("Tindices: {int32, int64}")
    .Attr("use_locking: bool = false")
    .Attr("use_nesterov: bool = false")
    .Attr("adapt: bool = true")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) { return LarsShape(c, true); })
    .Doc(R"doc(
The dense op on the rows at `indices` only; rows that come twice are summed first.

The norms are those of the touched rows and of their summed gradient, and only these rows decay.
)doc");

}  // namespace deepinsight
