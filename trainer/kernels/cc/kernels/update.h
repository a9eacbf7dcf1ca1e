// Runs an update rule over a variable, its slots, the worker's backup and a gradient.
#ifndef DEEPINSIGHT_KERNELS_UPDATE_H_
#define DEEPINSIGHT_KERNELS_UPDATE_H_

#include <array>
#include <utility>
#include <vector>

#include "compute.h"
#include "rows.h"
#include "tensorflow.h"
#include "unique_rows.h"
#include "variables.h"

namespace deepinsight {

// Runs unit(begin, end, &sums) over [0, n) in units of `size` on TensorFlow's intra-op threads.
// The sums are added in the order of the units: they do not depend on the number of threads.
template <typename Sums, typename Unit>
Sums InUnits(OpKernelContext* ctx, int64_t n, int64_t size, int64_t cycles, const Unit& unit) {
  const int64_t units = (n + size - 1) / size;
  Sums total{};
  if (units <= 1) {
    unit(int64_t{0}, n, &total);
    return total;
  }
  std::vector<Sums> sums(units, Sums{});
  const auto some = [&](int64_t first, int64_t last) {
    for (int64_t u = first; u < last; ++u) {
      unit(u * size, std::min(n, (u + 1) * size), &sums[u]);
    }
  };
  ParallelFor(ctx, units, size * cycles, some);
  for (const Sums& part : sums) Add(part, &total);
  return total;
}

constexpr int64_t kUnitElements = 16 * kBlock;
constexpr int64_t kUnitRows = 256;
constexpr int64_t kCyclesPerElement = 1;
constexpr int64_t kCyclesPerRow = 100;

// Runs a rule over all elements.
template <typename Rule, typename... Operands>
typename Rule::Sums UpdateElements(OpKernelContext* ctx, int64_t n, const Rule& rule,
                                   Operands... operands) {
  using Sums = typename Rule::Sums;
  return InUnits<Sums>(ctx, n, kUnitElements, kCyclesPerElement,
                       [&](int64_t begin, int64_t end, Sums* sums) {
                         ForBlocks(begin, end, rule, sums, operands...);
                       });
}

// Runs a rule over the touched rows, `width` elements each.
template <typename Rule, typename... Rows>
typename Rule::Sums UpdateRows(OpKernelContext* ctx, const UniqueRows& unique, int64_t width,
                               const Rule& rule, Rows... rows) {
  using Sums = typename Rule::Sums;
  return InUnits<Sums>(ctx, unique.size(), kUnitRows, kCyclesPerRow + kCyclesPerElement * width,
                       [&](int64_t begin, int64_t end, Sums* sums) {
                         ForRows(unique, begin, end, width, rule, sums, rows...);
                       });
}

// Finds the distinct rows of the indices, all of which must be rows of the variable.
inline Status FindRows(const Tensor& indices, int64_t limit, UniqueRows* unique,
                       const char* of = "the rows of `var`") {
  if (indices.dims() != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "`indices` must be a vector. Received: shape ", indices.shape().DebugString(), "."));
  }
  const int64_t n = indices.NumElements();
  const bool narrow = indices.dtype() == tensorflow::DT_INT32;
  const int64_t bad = narrow ? unique->Find(indices.flat<int32_t>().data(), n, limit)
                             : unique->Find(indices.flat<int64_t>().data(), n, limit);
  if (bad < 0) return absl::OkStatus();
  const int64_t index = narrow ? indices.flat<int32_t>()(bad) : indices.flat<int64_t>()(bad);
  return absl::InvalidArgumentError(absl::StrCat("`indices` must be in [0, ", limit,
                                                 "), ", of, ". Received: indices[", bad, "] = ",
                                                 index, "."));
}

// Checks that the gradient has one row of the variable's shape per index.
inline Status CheckRows(const TensorShape& var, const Tensor& grad, const Tensor& indices,
                        const char* of = "`var`") {
  if (var.dims() < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(of, " must have rows to take a sparse gradient. Received: a scalar."));
  }
  TensorShape expected = var;
  TF_RETURN_IF_ERROR(expected.SetDimWithStatus(0, indices.NumElements()));
  return SameShape("grad", grad.shape(), absl::StrCat("the rows of ", of, " at `indices`").c_str(),
                   expected);
}

// The inputs of an apply op. `slots` have the compute dtype; `backup` is a resource or a snapshot
// with the shape of the gradient, or -1; `indices` is for sparse gradients.
template <int kSlots>
struct Inputs {
  int var;
  std::array<VariableInput, kSlots> slots;
  int backup;
  int grad;
  int indices;
};

namespace internal {

template <typename T, bool kSparse, typename Rule, int kSlots, int N, size_t... I>
typename Rule::Sums Run(OpKernelContext* ctx, const Inputs<kSlots>& inputs, const Rule& rule,
                        Variables<N>* variables, bool slot_backup, const UniqueRows& unique,
                        std::index_sequence<I...>) {
  using C = Compute<T>;
  const Tensor& grad = ctx->input(inputs.grad);
  const auto run = [&](auto... backup) {
    if constexpr (!kSparse) {
      return UpdateElements(ctx, grad.NumElements(), rule, variables->template elements<T>(0),
                            variables->template elements<C>(1 + I)..., backup...,
                            In<T>{Data<T>(grad)});
    } else {
      const int64_t width = variables->shape().num_elements() /
                            std::max<int64_t>(1, variables->shape().dim_size(0));
      const auto rows = [](auto operand) {
        if constexpr (std::is_same_v<decltype(operand), In<T>>) {
          return GradientRows<T>{operand.in};
        } else {
          using S = std::remove_pointer_t<decltype(operand.out)>;
          return VariableRows<S>{operand};
        }
      };
      return UpdateRows(ctx, unique, width, rule, rows(variables->template elements<T>(0)),
                        rows(variables->template elements<C>(1 + I))..., rows(backup)...,
                        SummedRows<T>{Data<T>(grad)});
    }
  };
  if constexpr (Rule::kHasBackup) {
    if (slot_backup) return run(variables->template elements<T>(1 + kSlots));
    return run(In<T>{Data<T>(ctx->input(inputs.backup))});
  } else {
    return run();
  }
}

}  // namespace internal

// Applies the rule; the variables are untouched unless it returns OK.
template <typename T, bool kSparse, typename Rule, int kSlots>
Status Update(OpKernelContext* ctx, bool use_locking, const Inputs<kSlots>& inputs,
              const Rule& rule, typename Rule::Sums* sums) {
  const Tensor& grad = ctx->input(inputs.grad);
  const bool slot_backup =
      Rule::kHasBackup && ctx->input_dtype(inputs.backup) == tensorflow::DT_RESOURCE;
  std::array<VariableInput, kSlots + 2> opened{{{inputs.var, "var", kDataType<T>}}};
  std::copy(inputs.slots.begin(), inputs.slots.end(), opened.begin() + 1);
  opened[kSlots + 1] = {inputs.backup, "backup", kDataType<T>};

  Variables<kSlots + 2> variables;
  TF_RETURN_IF_ERROR(variables.Open(ctx, opened, kSlots + 1 + slot_backup,
                                    kSparse ? Access::kSparse : Access::kDense, use_locking));
  UniqueRows unique;
  if constexpr (kSparse) {
    const Tensor& indices = ctx->input(inputs.indices);
    TF_RETURN_IF_ERROR(CheckRows(variables.shape(), grad, indices));
    TF_RETURN_IF_ERROR(FindRows(indices, variables.shape().dim_size(0), &unique));
  } else {
    TF_RETURN_IF_ERROR(SameShape("grad", grad.shape(), "`var`", variables.shape()));
  }
  if (Rule::kHasBackup && !slot_backup) {
    const DataType dtype = ctx->input_dtype(inputs.backup);
    if (dtype != kDataType<T>) {
      return absl::InvalidArgumentError(absl::StrCat("`backup` must have the dtype of `grad`, ",
                                                     DataTypeString(kDataType<T>),
                                                     ". Received: ", DataTypeString(dtype), "."));
    }
    TF_RETURN_IF_ERROR(
        SameShape("backup", ctx->input(inputs.backup).shape(), "`grad`", grad.shape()));
  }
  *sums = internal::Run<T, kSparse>(ctx, inputs, rule, &variables, slot_backup, unique,
                           std::make_index_sequence<kSlots>());
  variables.Commit();
  return absl::OkStatus();
}

}  // namespace deepinsight

#endif  // DEEPINSIGHT_KERNELS_UPDATE_H_
