#include "shapes.h"

namespace deepinsight {
namespace {

// Slots and scalars of the base rule, each a number; the sparse form has `indices` after grad.
Status BoostedShape(InferenceContext* c, std::vector<SlotInput> slots, int scalars, bool sparse) {
  const int backup = 1 + static_cast<int>(slots.size()), first = backup + 4;
  const int grad = first + 1 + scalars + 5;
  slots.insert(slots.end(), {{backup + 1, "correlation"},
                             {backup + 2, "gradient_square"},
                             {backup + 3, "movement_square"}});
  return ApplyShape(c, {slots, backup, first, grad - 1, grad, sparse ? grad + 1 : -1, 3});
}

Status BoostedGradientDescentShape(InferenceContext* c, bool sparse) {
  return BoostedShape(c, {}, 0, sparse);
}

Status BoostedMomentumShape(InferenceContext* c, bool sparse) {
  return BoostedShape(c, {{1, "accum"}}, 1, sparse);
}

Status BoostedAdagradShape(InferenceContext* c, bool sparse) {
  return BoostedShape(c, {{1, "accum"}}, 1, sparse);
}

Status BoostedAdamShape(InferenceContext* c, bool sparse) {
  return BoostedShape(c, {{1, "m"}, {2, "v"}}, 5, sparse);
}

}  // namespace

// What the ops have in common.
#define DEEPINSIGHT_BOOSTED_SLOTS       \
  Input("backup: B")                    \
      .Input("correlation: resource")   \
      .Input("gradient_square: resource") \
      .Input("movement_square: resource") \
      .Input("learning_rate: C")
#define DEEPINSIGHT_BOOSTED_SCALARS  \
  Input("boost: C")                  \
      .Input("staleness: int64")     \
      .Input("staleness_scale: C")   \
      .Input("decay: C")             \
      .Input("epsilon: C")           \
      .Input("grad: T")
#define DEEPINSIGHT_BOOSTED_ATTRS                                \
  Output("statistics: double")                                   \
      .Attr("T: {half, bfloat16, float, double}")                \
      .Attr("C: {float, double}")                                \
      .Attr("B: {resource, half, bfloat16, float, double}")      \
      .Attr("use_locking: bool = false")                         \
      .SetIsStateful()
#define DEEPINSIGHT_BOOSTED_INDICES Input("indices: Tindices").Attr("Tindices: {int32, int64}")

REGISTER_OP("ResourceApplyBoostedGradientDescent")
    .Input("var: resource")
    .DEEPINSIGHT_BOOSTED_SLOTS
    .DEEPINSIGHT_BOOSTED_SCALARS
    .DEEPINSIGHT_BOOSTED_ATTRS
    .SetShapeFn([](InferenceContext* c) { return BoostedGradientDescentShape(c, false); })
    .Doc(R"doc(
Applies one step of gradient descent to a gradient boosted by its correlation with the movement
movement = var - backup of the variable since the worker pulled.

correlation = decay * correlation + (1 - decay) * grad * movement;
gradient_square = decay * gradient_square + (1 - decay) * grad * grad;
movement_square = decay * movement_square + (1 - decay) * movement * movement;
rho = correlation / (sqrt(gradient_square) * sqrt(movement_square) + epsilon), in [-1, 1];
boosted = grad * (1 + boost / (1 + staleness / staleness_scale) * rho);
var -= learning_rate * boosted; backup = var.

backup: What the pushing worker pulled: a variable, which takes the new value, or a snapshot with
  the shape of grad.
correlation: A variable of the arithmetic's dtype with the shape of var; gradient_square and
  movement_square likewise.
boost: In [0, 1); 0 leaves every bit of grad.
staleness: Updates that others applied since the worker pulled.
statistics: Mean of rho, sum of |boosted - grad| / sum of |grad|, number of non-finite elements of
  grad.
use_locking: If true, a sparse update holds the variables' locks alone.
)doc");

REGISTER_OP("ResourceSparseApplyBoostedGradientDescent")
    .Input("var: resource")
    .DEEPINSIGHT_BOOSTED_SLOTS
    .DEEPINSIGHT_BOOSTED_SCALARS
    .DEEPINSIGHT_BOOSTED_INDICES
    .DEEPINSIGHT_BOOSTED_ATTRS
    .SetShapeFn([](InferenceContext* c) { return BoostedGradientDescentShape(c, true); })
    .Doc("The dense op on the rows at `indices` only; rows that come twice are summed first.");

REGISTER_OP("ResourceApplyBoostedMomentum")
    .Input("var: resource")
    .Input("accum: resource")
    .DEEPINSIGHT_BOOSTED_SLOTS
    .Input("momentum: C")
    .DEEPINSIGHT_BOOSTED_SCALARS
    .DEEPINSIGHT_BOOSTED_ATTRS
    .Attr("use_nesterov: bool = false")
    .SetShapeFn([](InferenceContext* c) { return BoostedMomentumShape(c, false); })
    .Doc(R"doc(
Applies one step of momentum to a boosted gradient, as in ResourceApplyBoostedGradientDescent.

accum = momentum * accum + boosted; var -= learning_rate * accum, or with use_nesterov
var -= learning_rate * boosted + learning_rate * momentum * accum; backup = var.

accum: A variable of the arithmetic's dtype with the shape of var.
statistics: As in ResourceApplyBoostedGradientDescent.
)doc");

REGISTER_OP("ResourceSparseApplyBoostedMomentum")
    .Input("var: resource")
    .Input("accum: resource")
    .DEEPINSIGHT_BOOSTED_SLOTS
    .Input("momentum: C")
    .DEEPINSIGHT_BOOSTED_SCALARS
    .DEEPINSIGHT_BOOSTED_INDICES
    .DEEPINSIGHT_BOOSTED_ATTRS
    .Attr("use_nesterov: bool = false")
    .SetShapeFn([](InferenceContext* c) { return BoostedMomentumShape(c, true); })
    .Doc("The dense op on the rows at `indices` only; rows that come twice are summed first.");

REGISTER_OP("ResourceApplyBoostedAdagrad")
    .Input("var: resource")
    .Input("accum: resource")
    .DEEPINSIGHT_BOOSTED_SLOTS
    .Input("accum_epsilon: C")
    .DEEPINSIGHT_BOOSTED_SCALARS
    .DEEPINSIGHT_BOOSTED_ATTRS
    .SetShapeFn([](InferenceContext* c) { return BoostedAdagradShape(c, false); })
    .Doc(R"doc(
Applies one step of Adagrad to a boosted gradient, as in ResourceApplyBoostedGradientDescent.

accum += boosted * boosted;
var -= learning_rate * boosted / (sqrt(accum) + accum_epsilon); backup = var.

accum: A variable of the arithmetic's dtype with the shape of var.
statistics: As in ResourceApplyBoostedGradientDescent.
)doc");

REGISTER_OP("ResourceSparseApplyBoostedAdagrad")
    .Input("var: resource")
    .Input("accum: resource")
    .DEEPINSIGHT_BOOSTED_SLOTS
    .Input("accum_epsilon: C")
    .DEEPINSIGHT_BOOSTED_SCALARS
    .DEEPINSIGHT_BOOSTED_INDICES
    .DEEPINSIGHT_BOOSTED_ATTRS
    .SetShapeFn([](InferenceContext* c) { return BoostedAdagradShape(c, true); })
    .Doc("The dense op on the rows at `indices` only; rows that come twice are summed first.");

REGISTER_OP("ResourceApplyBoostedAdam")
    .Input("var: resource")
    .Input("m: resource")
    .Input("v: resource")
    .DEEPINSIGHT_BOOSTED_SLOTS
    .Input("beta1_power: C")
    .Input("beta2_power: C")
    .Input("beta1: C")
    .Input("beta2: C")
    .Input("adam_epsilon: C")
    .DEEPINSIGHT_BOOSTED_SCALARS
    .DEEPINSIGHT_BOOSTED_ATTRS
    .SetShapeFn([](InferenceContext* c) { return BoostedAdamShape(c, false); })
    .Doc(R"doc(
Applies one step of Adam to a boosted gradient, as in ResourceApplyBoostedGradientDescent.

alpha = learning_rate * sqrt(1 - beta2_power) / (1 - beta1_power);
m += (boosted - m) * (1 - beta1); v += (boosted * boosted - v) * (1 - beta2);
var -= alpha * m / (sqrt(v) + adam_epsilon); backup = var.

m: A variable of the arithmetic's dtype with the shape of var; v likewise.
beta1_power: beta1 to the power of the step, counted from 1; beta2_power likewise.
statistics: As in ResourceApplyBoostedGradientDescent.
)doc");

REGISTER_OP("ResourceSparseApplyBoostedAdam")
    .Input("var: resource")
    .Input("m: resource")
    .Input("v: resource")
    .DEEPINSIGHT_BOOSTED_SLOTS
    .Input("beta1_power: C")
    .Input("beta2_power: C")
    .Input("beta1: C")
    .Input("beta2: C")
    .Input("adam_epsilon: C")
    .DEEPINSIGHT_BOOSTED_SCALARS
    .DEEPINSIGHT_BOOSTED_INDICES
    .DEEPINSIGHT_BOOSTED_ATTRS
    .SetShapeFn([](InferenceContext* c) { return BoostedAdamShape(c, true); })
    .Doc("The dense op on the rows at `indices` only; rows that come twice are summed first.");

#undef DEEPINSIGHT_BOOSTED_SLOTS
#undef DEEPINSIGHT_BOOSTED_SCALARS
#undef DEEPINSIGHT_BOOSTED_ATTRS
#undef DEEPINSIGHT_BOOSTED_INDICES

}  // namespace deepinsight
