#include "delay_compensated_gradient_descent.h"

#include "update.h"

namespace deepinsight {
namespace {

// [Σ|compensation| / Σ|gradient|, share of flipped signs, non-finite elements].
Status SetCompensationStatistics(OpKernelContext* ctx, const CompensationSums& sums) {
  return SetStatistics<3>(ctx, 0,
                          {sums[2] == 0 ? 0.0 : sums[1] / sums[2],
                           sums[0] == 0 ? 0.0 : sums[3] / sums[0], sums[4]});
}

// var, backup, learning_rate, variance_parameter, grad[, indices]
template <typename T, bool kSparse>
class ApplyOp : public OpKernel {
 public:
  explicit ApplyOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("use_locking", &use_locking_));
  }

  void Compute(OpKernelContext* ctx) override {
    using C = deepinsight::Compute<T>;
    DelayCompensated<C> rule;
    OP_REQUIRES_OK(ctx, Scalar(ctx, 2, "learning_rate", kPositive<C>, &rule.learning_rate));
    OP_REQUIRES_OK(
        ctx, Scalar(ctx, 3, "variance_parameter", kNonNegative<C>, &rule.variance_parameter));
    const Inputs<0> inputs{0, {}, 1, 4, 5};
    CompensationSums sums;
    OP_REQUIRES_OK(ctx, Update<T, kSparse>(ctx, use_locking_, inputs, rule, &sums));
    OP_REQUIRES_OK(ctx, SetCompensationStatistics(ctx, sums));
  }

 private:
  bool use_locking_;
};

// var, backup, mean_square, learning_rate, variance_parameter, decay, epsilon, grad[, indices]
template <typename T, bool kSparse>
class ApplyAdaptiveOp : public OpKernel {
 public:
  explicit ApplyAdaptiveOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("use_locking", &use_locking_));
  }

  void Compute(OpKernelContext* ctx) override {
    using C = deepinsight::Compute<T>;
    AdaptiveDelayCompensated<C> rule;
    OP_REQUIRES_OK(ctx, Scalar(ctx, 3, "learning_rate", kPositive<C>, &rule.learning_rate));
    OP_REQUIRES_OK(
        ctx, Scalar(ctx, 4, "variance_parameter", kNonNegative<C>, &rule.variance_parameter));
    OP_REQUIRES_OK(ctx, Scalar(ctx, 5, "decay", kShare<C>, &rule.decay));
    OP_REQUIRES_OK(ctx, Scalar(ctx, 6, "epsilon", kNonNegative<C>, &rule.epsilon));
    const Inputs<1> inputs{0, {{{2, "mean_square", kDataType<C>}}}, 1, 7, 8};
    CompensationSums sums;
    OP_REQUIRES_OK(ctx, Update<T, kSparse>(ctx, use_locking_, inputs, rule, &sums));
    OP_REQUIRES_OK(ctx, SetCompensationStatistics(ctx, sums));
  }

 private:
  bool use_locking_;
};

template <typename T>
using DenseOp = ApplyOp<T, false>;
template <typename T>
using SparseOp = ApplyOp<T, true>;
template <typename T>
using DenseAdaptiveOp = ApplyAdaptiveOp<T, false>;
template <typename T>
using SparseAdaptiveOp = ApplyAdaptiveOp<T, true>;

DEEPINSIGHT_REGISTER("ResourceApplyDelayCompensatedGradientDescent", DenseOp);
DEEPINSIGHT_REGISTER("ResourceSparseApplyDelayCompensatedGradientDescent", SparseOp);
DEEPINSIGHT_REGISTER("ResourceApplyAdaptiveDelayCompensatedGradientDescent", DenseAdaptiveOp);
DEEPINSIGHT_REGISTER("ResourceSparseApplyAdaptiveDelayCompensatedGradientDescent",
                     SparseAdaptiveOp);

}  // namespace
}  // namespace deepinsight
