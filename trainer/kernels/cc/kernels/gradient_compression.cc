#include "gradient_compression.h"

#include <atomic>

#include "update.h"

namespace deepinsight {
namespace {

// velocity, residual, momentum, clip_norm, grad[, indices]
template <typename T, bool kSparse>
class AccumulateOp : public OpKernel {
 public:
  explicit AccumulateOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("use_locking", &use_locking_));
  }

  void Compute(OpKernelContext* ctx) override { OP_REQUIRES_OK(ctx, Run(ctx)); }

 private:
  using C = deepinsight::Compute<T>;

  Status Run(OpKernelContext* ctx) {
    DgcAccumulate<C> rule{0, 1};
    C clip_norm = 0;
    TF_RETURN_IF_ERROR(Scalar(ctx, 2, "momentum", kShare<C>, &rule.momentum));
    TF_RETURN_IF_ERROR(Scalar(ctx, 3, "clip_norm", kNonNegative<C>, &clip_norm));
    const Tensor& grad = ctx->input(4);
    Variables<2> variables;
    TF_RETURN_IF_ERROR(variables.Open(
        ctx, {{{0, "velocity", kDataType<C>}, {1, "residual", kDataType<C>}}}, 2,
        kSparse ? Access::kSparse : Access::kDense, use_locking_));
    const TensorShape& shape = variables.shape();
    UniqueRows unique;
    if constexpr (kSparse) {
      TF_RETURN_IF_ERROR(CheckRows(shape, grad, ctx->input(5), "`velocity`"));
      TF_RETURN_IF_ERROR(
          FindRows(ctx->input(5), shape.dim_size(0), &unique, "the rows of `velocity`"));
    } else {
      TF_RETURN_IF_ERROR(SameShape("grad", grad.shape(), "`velocity`", shape));
    }
    const auto pass = [&](const auto& some, auto... state) {
      if constexpr (kSparse) {
        const int64_t width = shape.num_elements() / std::max<int64_t>(1, shape.dim_size(0));
        return UpdateRows(ctx, unique, width, some, VariableRows<C>{state}...,
                          SummedRows<T>{Data<T>(grad)});
      } else {
        return UpdateElements(ctx, grad.NumElements(), some, state..., In<T>{Data<T>(grad)});
      }
    };
    if (clip_norm > 0) rule.scale = ClipScale(clip_norm, std::sqrt(pass(SumOfSquares<C>())[0]));
    const auto sums =
        pass(rule, variables.template elements<C>(0), variables.template elements<C>(1));
    variables.Commit();
    return SetStatistics<3>(ctx, 0, {std::sqrt(sums[0]), double(rule.scale), sums[1]});
  }

  bool use_locking_;
};

// velocity, residual, sparsity
template <typename T>
class SelectOp : public OpKernel {
 public:
  explicit SelectOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("exact", &exact_));
    int64_t seed;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("seed", &seed));
    seed_ = static_cast<uint64_t>(seed);
  }

  void Compute(OpKernelContext* ctx) override { OP_REQUIRES_OK(ctx, Run(ctx)); }

 private:
  using C = deepinsight::Compute<T>;

  Status Run(OpKernelContext* ctx) {
    C sparsity = 0;
    TF_RETURN_IF_ERROR(Scalar(ctx, 2, "sparsity", kShare<C>, &sparsity));
    Variables<2> variables;
    // As a sparse update: it writes few elements, in place; but nobody else may write meanwhile.
    TF_RETURN_IF_ERROR(variables.Open(
        ctx, {{{0, "velocity", kDataType<C>}, {1, "residual", kDataType<C>}}}, 2, Access::kSparse,
        /*use_locking=*/true));
    const int64_t n = variables.shape().num_elements();
    const int64_t k = ElementsToSend(static_cast<double>(sparsity), n);
    Tensor *indices = nullptr, *values = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, TensorShape({k}), &indices));
    TF_RETURN_IF_ERROR(ctx->allocate_output(1, TensorShape({k}), &values));
    if (k == 0) return SetStatistics<4>(ctx, 2, {0, 0, 0, 0});

    const InOut<C> velocity = variables.template elements<C>(0);
    const InOut<C> residual = variables.template elements<C>(1);
    const Parallel parallel = [&](int64_t units, int64_t cycles, const auto& some) {
      ParallelFor(ctx, units, cycles, some);
    };
    TopMagnitudes<C> top(residual.in, n, k, parallel);
    // Every call draws another sample.
    top.Select(exact_, seed_ + calls_.fetch_add(1) * 0x632be59bd9b4e019u);
    std::copy(top.indices().begin(), top.indices().end(), indices->flat<int64_t>().data());
    const std::array<double, 2> sent =
        Take(ctx, top.indices(), velocity.out, residual.out, Data<T>(values));
    const double total = top.total();
    return SetStatistics<4>(
        ctx, 2, {sent[1], double(k), double(n), total == 0 ? 0.0 : sent[0] / total});
  }

  // Takes the elements out of the state. Returns the sum and the least of their magnitudes.
  static std::array<double, 2> Take(OpKernelContext* ctx, const std::vector<int64_t>& indices,
                                    C* velocity, C* residual, T* values) {
    using Key = MagnitudeKey<C>;
    const int64_t k = static_cast<int64_t>(indices.size());
    const int64_t units = (k + kBlock - 1) / kBlock;
    std::vector<double> sums(units, 0.0);
    std::vector<Key> least(units, std::numeric_limits<Key>::max());
    ParallelFor(ctx, units, 20 * kBlock, [&](int64_t first, int64_t last) {
      for (int64_t u = first; u < last; ++u) {
        for (int64_t i = u * kBlock; i < std::min(k, (u + 1) * kBlock); ++i) {
          const int64_t at = indices[i];
          sums[u] += static_cast<double>(std::abs(residual[at]));
          least[u] = std::min(least[u], KeyOf(residual[at]));
          values[i] = Send<T>(&residual[at]);
          velocity[at] = 0;
        }
      }
    });
    double sum = 0;
    for (double part : sums) sum += part;
    const Key key = *std::min_element(least.begin(), least.end());
    C threshold;
    std::memcpy(&threshold, &key, sizeof threshold);
    return {sum, static_cast<double>(threshold)};
  }

  bool exact_;
  uint64_t seed_;
  std::atomic<uint64_t> calls_{0};
};

// var, learning_rate, indices, values
template <typename T>
class ScatterOp : public OpKernel {
 public:
  explicit ScatterOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("use_locking", &use_locking_));
  }

  void Compute(OpKernelContext* ctx) override { OP_REQUIRES_OK(ctx, Run(ctx)); }

 private:
  using C = deepinsight::Compute<T>;

  Status Run(OpKernelContext* ctx) {
    C learning_rate = 0;
    TF_RETURN_IF_ERROR(Scalar(ctx, 1, "learning_rate", kPositive<C>, &learning_rate));
    const Tensor &indices = ctx->input(2), &values = ctx->input(3);
    Variables<1> variables;
    TF_RETURN_IF_ERROR(variables.Open(ctx, {{{0, "var", kDataType<T>}}}, 1, Access::kSparse,
                                      use_locking_));
    TF_RETURN_IF_ERROR(SameShape("values", values.shape(), "`indices`", indices.shape()));
    UniqueRows unique;
    TF_RETURN_IF_ERROR(FindRows(indices, variables.shape().num_elements(), &unique,
                                "the elements of `var`"));
    T* var = variables.template elements<T>(0).out;
    const T* from = Data<T>(values);
    ParallelFor(ctx, unique.size(), 100, [&](int64_t begin, int64_t end) {
      constexpr int64_t kAhead = 16;
      for (int64_t u = begin; u < end; ++u) {
        if (u + kAhead < end) __builtin_prefetch(var + unique.row(u + kAhead), 1);
        C sum = Wide(from[unique.first(u)]);
        for (int64_t i = 1; i < unique.count(u); ++i) sum += Wide(from[unique.positions(u)[i]]);
        T* element = var + unique.row(u);
        const C updated = Wide(*element) - learning_rate * sum;
        if constexpr (std::is_same_v<T, C>) {
          *element = updated;
        } else {
          Round(updated, element);
        }
      }
    });
    return absl::OkStatus();
  }

  static C Wide(T value) {
    if constexpr (std::is_same_v<T, C>) {
      return value;
    } else {
      return ToFloat(value);
    }
  }

  bool use_locking_;
};

template <typename T>
using DenseAccumulateOp = AccumulateOp<T, false>;
template <typename T>
using SparseAccumulateOp = AccumulateOp<T, true>;

DEEPINSIGHT_REGISTER("ResourceDgcAccumulate", DenseAccumulateOp);
DEEPINSIGHT_REGISTER("ResourceSparseDgcAccumulate", SparseAccumulateOp);
DEEPINSIGHT_REGISTER("ResourceDgcSelect", SelectOp);
DEEPINSIGHT_REGISTER("ResourceScatterApplyGradientDescent", ScatterOp);

}  // namespace
}  // namespace deepinsight
