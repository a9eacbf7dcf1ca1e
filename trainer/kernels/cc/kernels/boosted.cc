#include "boosted.h"

#include "update.h"

namespace deepinsight {
namespace {

constexpr Range<int64_t> kCount{">= 0", [](int64_t x) { return x >= 0; }};

// What is particular to a base rule: the names of its slots, its attributes, and its scalars
// after learning_rate, of which there are kScalars.
template <typename C>
struct OfGradientDescent {
  using Rule = GradientDescent<C>;
  static constexpr std::array<const char*, 0> kSlots{};
  static constexpr int kScalars = 0;
  static Status Configure(OpKernelConstruction*, bool, Rule*) { return absl::OkStatus(); }
  static Status Read(OpKernelContext*, int, Rule*) { return absl::OkStatus(); }
};

template <typename C>
struct OfMomentum {
  using Rule = Momentum<C>;
  static constexpr std::array<const char*, 1> kSlots{"accum"};
  static constexpr int kScalars = 1;
  static Status Configure(OpKernelConstruction* ctx, bool sparse, Rule* rule) {
    rule->sparse = sparse;
    return ctx->GetAttr("use_nesterov", &rule->use_nesterov);
  }
  static Status Read(OpKernelContext* ctx, int first, Rule* rule) {
    return Scalar(ctx, first, "momentum", kShare<C>, &rule->momentum);
  }
};

template <typename C>
struct OfAdagrad {
  using Rule = Adagrad<C>;
  static constexpr std::array<const char*, 1> kSlots{"accum"};
  static constexpr int kScalars = 1;
  static Status Configure(OpKernelConstruction*, bool, Rule*) { return absl::OkStatus(); }
  static Status Read(OpKernelContext* ctx, int first, Rule* rule) {
    return Scalar(ctx, first, "accum_epsilon", kNonNegative<C>, &rule->epsilon);
  }
};

template <typename C>
struct OfAdam {
  using Rule = Adam<C>;
  static constexpr std::array<const char*, 2> kSlots{"m", "v"};
  static constexpr int kScalars = 5;
  static Status Configure(OpKernelConstruction*, bool, Rule*) { return absl::OkStatus(); }
  static Status Read(OpKernelContext* ctx, int first, Rule* rule) {
    TF_RETURN_IF_ERROR(Scalar(ctx, first, "beta1_power", kShare<C>, &rule->beta1_power));
    TF_RETURN_IF_ERROR(Scalar(ctx, first + 1, "beta2_power", kShare<C>, &rule->beta2_power));
    TF_RETURN_IF_ERROR(Scalar(ctx, first + 2, "beta1", kShare<C>, &rule->beta1));
    TF_RETURN_IF_ERROR(Scalar(ctx, first + 3, "beta2", kShare<C>, &rule->beta2));
    return Scalar(ctx, first + 4, "adam_epsilon", kNonNegative<C>, &rule->epsilon);
  }
};

// boost, staleness, staleness_scale, decay, epsilon
template <typename C>
Status ReadBoost(OpKernelContext* ctx, int first, Boost<C>* boost) {
  C strength, staleness_scale;
  int64_t staleness;
  TF_RETURN_IF_ERROR(Scalar(ctx, first, "boost", kShare<C>, &strength));
  TF_RETURN_IF_ERROR(Scalar(ctx, first + 1, "staleness", kCount, &staleness));
  TF_RETURN_IF_ERROR(
      Scalar(ctx, first + 2, "staleness_scale", kPositive<C>, &staleness_scale));
  TF_RETURN_IF_ERROR(Scalar(ctx, first + 3, "decay", kShare<C>, &boost->decay));
  TF_RETURN_IF_ERROR(Scalar(ctx, first + 4, "epsilon", kNonNegative<C>, &boost->epsilon));
  boost->strength = strength / (C(1) + static_cast<C>(staleness) / staleness_scale);
  return absl::OkStatus();
}

// var, slots of the base, backup, correlation, gradient_square, movement_square, learning_rate,
// scalars of the base, scalars of the boost, grad[, indices]
template <typename T, bool kSparse, template <typename> class Of>
class BoostedOp : public OpKernel {
  using C = deepinsight::Compute<T>;
  using Traits = Of<C>;

 public:
  explicit BoostedOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("use_locking", &use_locking_));
    OP_REQUIRES_OK(ctx, Traits::Configure(ctx, kSparse, &base_));
  }

  void Compute(OpKernelContext* ctx) override {
    constexpr int kBase = Traits::kSlots.size();
    constexpr int kBackup = 1 + kBase, kRate = kBackup + 4, kFirst = kRate + 1 + Traits::kScalars;
    Boosted<C, typename Traits::Rule> rule{{}, base_};
    OP_REQUIRES_OK(ctx,
                   Scalar(ctx, kRate, "learning_rate", kPositive<C>, &rule.base.learning_rate));
    OP_REQUIRES_OK(ctx, Traits::Read(ctx, kRate + 1, &rule.base));
    OP_REQUIRES_OK(ctx, ReadBoost(ctx, kFirst, &rule.boost));
    Inputs<3 + kBase> inputs{0,
                             {{{kBackup + 1, "correlation", kDataType<C>},
                               {kBackup + 2, "gradient_square", kDataType<C>},
                               {kBackup + 3, "movement_square", kDataType<C>}}},
                             kBackup,
                             kFirst + 5,
                             kFirst + 6};
    for (int k = 0; k < kBase; ++k) inputs.slots[3 + k] = {1 + k, Traits::kSlots[k], kDataType<C>};
    BoostSums sums;
    OP_REQUIRES_OK(ctx, Update<T, kSparse>(ctx, use_locking_, inputs, rule, &sums));
    OP_REQUIRES_OK(ctx, SetBoostStatistics(ctx, sums));
  }

 private:
  // [mean correlation, Σ|boosted gradient - gradient| / Σ|gradient|, non-finite elements].
  static Status SetBoostStatistics(OpKernelContext* ctx, const BoostSums& sums) {
    return SetStatistics<3>(ctx, 0,
                            {sums[0] == 0 ? 0.0 : sums[1] / sums[0],
                             sums[3] == 0 ? 0.0 : sums[2] / sums[3], sums[4]});
  }

  bool use_locking_;
  typename Traits::Rule base_{};
};

#define DEEPINSIGHT_REGISTER_BOOSTED(RULE)                                           \
  template <typename T>                                                              \
  using Dense##RULE = BoostedOp<T, false, Of##RULE>;                                 \
  template <typename T>                                                              \
  using Sparse##RULE = BoostedOp<T, true, Of##RULE>;                                 \
  DEEPINSIGHT_REGISTER("ResourceApplyBoosted" #RULE, Dense##RULE);                   \
  DEEPINSIGHT_REGISTER("ResourceSparseApplyBoosted" #RULE, Sparse##RULE)

DEEPINSIGHT_REGISTER_BOOSTED(GradientDescent);
DEEPINSIGHT_REGISTER_BOOSTED(Momentum);
DEEPINSIGHT_REGISTER_BOOSTED(Adagrad);
DEEPINSIGHT_REGISTER_BOOSTED(Adam);

}  // namespace
}  // namespace deepinsight
