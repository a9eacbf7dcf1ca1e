// What the kernels need of TensorFlow, and the only place for differences between its versions.
#ifndef DEEPINSIGHT_KERNELS_TENSORFLOW_H_
#define DEEPINSIGHT_KERNELS_TENSORFLOW_H_

#include <array>
#include <cmath>
#include <functional>

#include "compute.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

namespace deepinsight {

using tensorflow::DataType;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using Status = absl::Status;

// TensorFlow's element type for one of ours.
template <typename T>
struct ElementOf {
  using type = T;
};
template <>
struct ElementOf<Half> {
  using type = Eigen::half;
};
template <>
struct ElementOf<BFloat16> {
  using type = Eigen::bfloat16;
};
template <typename T>
constexpr DataType kDataType = tensorflow::DataTypeToEnum<typename ElementOf<T>::type>::value;

template <typename T>
const T* Data(const Tensor& tensor) {
  return reinterpret_cast<const T*>(tensor.flat<typename ElementOf<T>::type>().data());
}

template <typename T>
T* Data(Tensor* tensor) {
  return reinterpret_cast<T*>(tensor->flat<typename ElementOf<T>::type>().data());
}

// A hyperparameter's range, in words and as a test.
template <typename V>
struct Range {
  const char* must;
  bool (*holds)(V);
};
template <typename C>
constexpr Range<C> kPositive{"finite and > 0", [](C x) { return x > 0 && std::isfinite(x); }};
template <typename C>
constexpr Range<C> kNonNegative{"finite and >= 0", [](C x) { return x >= 0 && std::isfinite(x); }};
template <typename C>
constexpr Range<C> kShare{">= 0 and < 1", [](C x) { return x >= 0 && x < 1; }};
template <typename C>
constexpr Range<C> kUnit{">= 0 and <= 1", [](C x) { return x >= 0 && x <= 1; }};

// Reads the scalar input `name`.
template <typename V>
Status Scalar(OpKernelContext* ctx, int input, const char* name, const Range<V>& range, V* value) {
  const Tensor& tensor = ctx->input(input);
  if (tensor.dims() != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "`", name, "` must be a scalar. Received: shape ", tensor.shape().DebugString(), "."));
  }
  *value = tensor.flat<V>()(0);
  if (!range.holds(*value)) {
    return absl::InvalidArgumentError(
        absl::StrCat("`", name, "` must be ", range.must, ". Received: ", *value, "."));
  }
  return absl::OkStatus();
}

// The handle of the resource input `name`; TensorFlow's own functions read it unchecked.
inline Status Handle(OpKernelContext* ctx, int input, const char* name,
                     const tensorflow::ResourceHandle** handle) {
  const Tensor& tensor = ctx->input(input);
  if (tensor.dims() != 0) {
    return absl::InvalidArgumentError(absl::StrCat("`", name, "` must be one resource. Received: ",
                                                   "shape ", tensor.shape().DebugString(), "."));
  }
  *handle = &tensor.scalar<tensorflow::ResourceHandle>()();
  return absl::OkStatus();
}

inline Status SameShape(const char* name, const TensorShape& shape, const char* as,
                        const TensorShape& expected) {
  if (shape == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("`", name, "` must have the shape of ", as, ", ",
                                                 expected.DebugString(),
                                                 ". Received: ", shape.DebugString(), "."));
}

// Returns the output `statistics`, a vector of doubles.
template <size_t K>
Status SetStatistics(OpKernelContext* ctx, int output, const std::array<double, K>& values) {
  Tensor* tensor = nullptr;
  TF_RETURN_IF_ERROR(ctx->allocate_output(output, TensorShape({int64_t{K}}), &tensor));
  std::copy(values.begin(), values.end(), tensor->flat<double>().data());
  return absl::OkStatus();
}

// Runs some(begin, end) over [0, n) on TensorFlow's intra-op threads.
//
// TensorFlow 2.21 deprecates this form in favour of one that 2.18 does not have.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
inline void ParallelFor(OpKernelContext* ctx, int64_t n, int64_t cycles_per_unit,
                        const std::function<void(int64_t, int64_t)>& some) {
  ctx->device()->tensorflow_cpu_worker_threads()->workers->ParallelFor(n, cycles_per_unit, some);
}
#pragma GCC diagnostic pop

}  // namespace deepinsight

// Registers KERNEL<T> for an op with the attributes T (storage) and C (arithmetic).
#define DEEPINSIGHT_REGISTER_FOR(OP, KERNEL, T)                                                 \
  REGISTER_KERNEL_BUILDER(Name(OP)                                                              \
                              .Device(tensorflow::DEVICE_CPU)                                   \
                              .TypeConstraint<::deepinsight::ElementOf<T>::type>("T")           \
                              .TypeConstraint<::deepinsight::Compute<T>>("C"),                  \
                          KERNEL<T>)
#define DEEPINSIGHT_REGISTER(OP, KERNEL)                   \
  DEEPINSIGHT_REGISTER_FOR(OP, KERNEL, deepinsight::Half); \
  DEEPINSIGHT_REGISTER_FOR(OP, KERNEL, deepinsight::BFloat16); \
  DEEPINSIGHT_REGISTER_FOR(OP, KERNEL, float);             \
  DEEPINSIGHT_REGISTER_FOR(OP, KERNEL, double)

#endif  // DEEPINSIGHT_KERNELS_TENSORFLOW_H_
