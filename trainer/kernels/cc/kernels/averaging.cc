#include "averaging.h"

#include "update.h"

namespace deepinsight {
namespace {

Status SetDistance(OpKernelContext* ctx, const DistanceSums& sums) {
  return SetStatistics<2>(ctx, 0, {std::sqrt(sums[0]), sums[1]});
}

// local, center, moving_rate[, indices]
template <typename T, bool kSparse>
class ElasticOp : public OpKernel {
 public:
  explicit ElasticOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("use_locking", &use_locking_));
  }

  void Compute(OpKernelContext* ctx) override { OP_REQUIRES_OK(ctx, Run(ctx)); }

 private:
  using C = deepinsight::Compute<T>;

  Status Run(OpKernelContext* ctx) {
    ElasticExchange<C> rule;
    TF_RETURN_IF_ERROR(Scalar(ctx, 2, "moving_rate", kUnit<C>, &rule.moving_rate));
    Variables<2> variables;
    TF_RETURN_IF_ERROR(variables.Open(
        ctx, {{{0, "local", kDataType<T>}, {1, "center", kDataType<T>}}}, 2,
        kSparse ? Access::kSparse : Access::kDense, use_locking_));
    const TensorShape& shape = variables.shape();
    const InOut<T> local = variables.template elements<T>(0);
    const InOut<T> center = variables.template elements<T>(1);
    if constexpr (!kSparse) {
      const auto sums = UpdateElements(ctx, shape.num_elements(), rule, local, center);
      variables.Commit();
      return SetDistance(ctx, sums);
    } else {
      if (shape.dims() < 1) {
        return absl::InvalidArgumentError(
            "`local` must have rows to exchange some of them. Received: a scalar.");
      }
      UniqueRows unique;
      TF_RETURN_IF_ERROR(
          FindRows(ctx->input(3), shape.dim_size(0), &unique, "the rows of `local`"));
      const int64_t width = shape.num_elements() / std::max<int64_t>(1, shape.dim_size(0));
      // A row that is named twice exchanges once.
      return SetDistance(ctx, UpdateRows(ctx, unique, width, rule, VariableRows<T>{local},
                                         VariableRows<T>{center}));
    }
  }

  bool use_locking_;
};

// center, moving_rate, local
template <typename T>
class ElasticPullOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override { OP_REQUIRES_OK(ctx, Run(ctx)); }

 private:
  using C = deepinsight::Compute<T>;

  Status Run(OpKernelContext* ctx) {
    ElasticExchange<C> rule;
    TF_RETURN_IF_ERROR(Scalar(ctx, 1, "moving_rate", kUnit<C>, &rule.moving_rate));
    const Tensor& local = ctx->input(2);
    Variables<1> variables;
    TF_RETURN_IF_ERROR(variables.Open(ctx, {{{0, "center", kDataType<T>}}}, 1, Access::kDense,
                                      /*use_locking=*/true));
    TF_RETURN_IF_ERROR(SameShape("local", local.shape(), "`center`", variables.shape()));
    Tensor* pulled = nullptr;
    TF_RETURN_IF_ERROR(ctx->forward_input_or_allocate_output({2}, 0, local.shape(), &pulled));
    const auto sums =
        UpdateElements(ctx, local.NumElements(), rule, InOut<T>{Data<T>(local), Data<T>(pulled)},
                       variables.template elements<T>(0));
    variables.Commit();
    return SetStatistics<2>(ctx, 1, {std::sqrt(sums[0]), sums[1]});
  }
};

// var, delta, block_momentum, block_learning_rate, mean
template <typename T>
class BlockMomentumOp : public OpKernel {
 public:
  explicit BlockMomentumOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("use_nesterov", &use_nesterov_));
  }

  void Compute(OpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, use_nesterov_ ? Run<true>(ctx) : Run<false>(ctx));
  }

 private:
  using C = deepinsight::Compute<T>;

  template <bool kNesterov>
  Status Run(OpKernelContext* ctx) {
    BlockMomentum<C, kNesterov> rule;
    TF_RETURN_IF_ERROR(Scalar(ctx, 2, "block_momentum", kShare<C>, &rule.momentum));
    TF_RETURN_IF_ERROR(Scalar(ctx, 3, "block_learning_rate", kPositive<C>, &rule.learning_rate));
    const Tensor& mean = ctx->input(4);
    Variables<2> variables;
    TF_RETURN_IF_ERROR(variables.Open(ctx,
                                      {{{0, "var", kDataType<T>}, {1, "delta", kDataType<C>}}}, 2,
                                      Access::kDense, /*use_locking=*/true));
    TF_RETURN_IF_ERROR(SameShape("mean", mean.shape(), "`var`", variables.shape()));
    const auto sums =
        UpdateElements(ctx, mean.NumElements(), rule, variables.template elements<T>(0),
                       variables.template elements<C>(1), In<T>{Data<T>(mean)});
    variables.Commit();
    return SetDistance(ctx, sums);
  }

  bool use_nesterov_;
};

template <typename T>
using DenseElasticOp = ElasticOp<T, false>;
template <typename T>
using SparseElasticOp = ElasticOp<T, true>;

DEEPINSIGHT_REGISTER("ResourceElasticExchange", DenseElasticOp);
DEEPINSIGHT_REGISTER("ResourceSparseElasticExchange", SparseElasticOp);
DEEPINSIGHT_REGISTER("ResourceApplyElasticPull", ElasticPullOp);
DEEPINSIGHT_REGISTER("ResourceApplyBlockMomentum", BlockMomentumOp);

}  // namespace
}  // namespace deepinsight
