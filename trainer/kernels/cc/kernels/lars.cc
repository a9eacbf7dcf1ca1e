#include "lars.h"

#include "update.h"

namespace deepinsight {
namespace {

// var, accum, learning_rate, eeta, weight_decay, momentum, epsilon, grad[, indices]
//
// The norms need all elements before the first is updated: two passes over var and grad.
template <typename T, bool kSparse>
class LarsOp : public OpKernel {
  using C = deepinsight::Compute<T>;
  using Norms = typename SquaredNorms<C>::Sums;

 public:
  explicit LarsOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("use_locking", &use_locking_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("use_nesterov", &use_nesterov_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("adapt", &adapt_));
  }

  void Compute(OpKernelContext* ctx) override {
    C learning_rate = 0, eeta = 0, epsilon = 0;
    Lars<C> rule{};
    rule.use_nesterov = use_nesterov_;
    OP_REQUIRES_OK(ctx, Scalar(ctx, 2, "learning_rate", kPositive<C>, &learning_rate));
    OP_REQUIRES_OK(ctx, Scalar(ctx, 3, "eeta", kPositive<C>, &eeta));
    OP_REQUIRES_OK(ctx, Scalar(ctx, 4, "weight_decay", kNonNegative<C>, &rule.weight_decay));
    OP_REQUIRES_OK(ctx, Scalar(ctx, 5, "momentum", kShare<C>, &rule.momentum));
    OP_REQUIRES_OK(ctx, Scalar(ctx, 6, "epsilon", kNonNegative<C>, &epsilon));

    Variables<2> variables;
    UniqueRows unique;
    OP_REQUIRES_OK(ctx, Open(ctx, &variables, &unique));
    const Norms norms = Measure(ctx, &variables, unique);
    const double var_norm = std::sqrt(norms[0]), grad_norm = std::sqrt(norms[1]);
    if (!adapt_) rule.weight_decay = 0;
    const double trust =
        adapt_ ? TrustRatio(eeta, rule.weight_decay, epsilon, var_norm, grad_norm) : 1.0;
    rule.rate = learning_rate * static_cast<C>(trust);
    Apply(ctx, &variables, unique, rule);
    variables.Commit();
    OP_REQUIRES_OK(ctx, SetStatistics<4>(ctx, 0, {trust, var_norm, grad_norm, norms[2]}));
  }

 private:
  static constexpr int kGrad = 7, kIndices = 8;

  Status Open(OpKernelContext* ctx, Variables<2>* variables, UniqueRows* unique) const {
    TF_RETURN_IF_ERROR(
        variables->Open(ctx, {{{0, "var", kDataType<T>}, {1, "accum", kDataType<C>}}}, 2,
                        kSparse ? Access::kSparse : Access::kDense, use_locking_));
    const Tensor& grad = ctx->input(kGrad);
    if (!kSparse) return SameShape("grad", grad.shape(), "`var`", variables->shape());
    TF_RETURN_IF_ERROR(CheckRows(variables->shape(), grad, ctx->input(kIndices)));
    return FindRows(ctx->input(kIndices), variables->shape().dim_size(0), unique);
  }

  // The sums of squares of what will be updated.
  static Norms Measure(OpKernelContext* ctx, Variables<2>* variables, const UniqueRows& unique) {
    const Tensor& grad = ctx->input(kGrad);
    const T* var = variables->template elements<T>(0).in;
    if constexpr (kSparse) {
      return UpdateRows(ctx, unique, Width(variables), SquaredNorms<C>{}, ReadRows<T>{var},
                        SummedRows<T>{Data<T>(grad)});
    } else {
      return UpdateElements(ctx, grad.NumElements(), SquaredNorms<C>{}, In<T>{var},
                            In<T>{Data<T>(grad)});
    }
  }

  static void Apply(OpKernelContext* ctx, Variables<2>* variables, const UniqueRows& unique,
                    const Lars<C>& rule) {
    const Tensor& grad = ctx->input(kGrad);
    const InOut<T> var = variables->template elements<T>(0);
    const InOut<C> accum = variables->template elements<C>(1);
    if constexpr (kSparse) {
      UpdateRows(ctx, unique, Width(variables), rule, VariableRows<T>{var},
                 VariableRows<C>{accum}, SummedRows<T>{Data<T>(grad)});
    } else {
      UpdateElements(ctx, grad.NumElements(), rule, var, accum, In<T>{Data<T>(grad)});
    }
  }

  static int64_t Width(Variables<2>* variables) {
    const TensorShape& shape = variables->shape();
    return shape.num_elements() / std::max<int64_t>(1, shape.dim_size(0));
  }

  bool use_locking_, use_nesterov_, adapt_;
};

template <typename T>
using DenseOp = LarsOp<T, false>;
template <typename T>
using SparseOp = LarsOp<T, true>;

DEEPINSIGHT_REGISTER("ResourceApplyLars", DenseOp);
DEEPINSIGHT_REGISTER("ResourceSparseApplyLars", SparseOp);

}  // namespace
}  // namespace deepinsight
