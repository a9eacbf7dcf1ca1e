#include "weighted_accumulator.h"

#include <limits>
#include <memory>
#include <mutex>

#include "tensorflow/core/framework/resource_op_kernel.h"
#include "update.h"

namespace deepinsight {
namespace {

using tensorflow::PartialTensorShape;

// Gradients of one variable, either all dense or all sparse between two takes.
class WeightedAccumulator : public tensorflow::ResourceBase {
 public:
  WeightedAccumulator(DataType dtype, const PartialTensorShape& shape)
      : dtype_(dtype), shape_(shape) {}

  std::string DebugString() const override {
    return absl::StrCat("StalenessWeightedAccumulator of ", DataTypeString(dtype_), " ",
                        shape_.DebugString());
  }

  int64_t MemoryUsed() const override {
    const std::lock_guard<std::mutex> lock(mu_);
    int64_t bytes = static_cast<int64_t>(sum_.TotalBytes());
    if (narrow_) bytes += narrow_->bytes();
    if (wide_) bytes += wide_->bytes();
    return bytes;
  }

  DataType dtype() const { return dtype_; }
  const PartialTensorShape& shape() const { return shape_; }

  int64_t count() {
    const std::lock_guard<std::mutex> lock(mu_);
    return count_;
  }

  template <typename T>
  Status AddDense(OpKernelContext* ctx, const Tensor& gradient, Compute<T> weight,
                  int64_t staleness, int64_t* count) {
    using C = Compute<T>;
    TF_RETURN_IF_ERROR(CheckDense(gradient.shape()));
    const std::lock_guard<std::mutex> lock(mu_);
    TF_RETURN_IF_ERROR(CheckKind(false));
    if (sum_.dtype() == tensorflow::DT_INVALID) {
      TF_RETURN_IF_ERROR(ctx->allocate_temp(kDataType<C>, gradient.shape(), &sum_));
    }
    C* sum = Data<C>(&sum_);
    const InOut<C> into{sum, sum};
    const In<T> from{Data<T>(gradient)};
    const int64_t n = gradient.NumElements();
    if (count_ == 0) {
      UpdateElements(ctx, n, SetWeighted<C>{weight}, into, from);
    } else {
      UpdateElements(ctx, n, AddWeighted<C>{weight}, into, from);
    }
    *count = Counted(false, staleness);
    return absl::OkStatus();
  }

  template <typename T>
  Status AddSparse(OpKernelContext* ctx, const Tensor& gradient, const Tensor& indices,
                   Compute<T> weight, int64_t staleness, int64_t* count) {
    using C = Compute<T>;
    int64_t limit, width;
    TF_RETURN_IF_ERROR(CheckSparse(gradient.shape(), indices, &limit, &width));
    UniqueRows unique;
    TF_RETURN_IF_ERROR(FindRows(indices, limit, &unique, "the rows of the accumulator"));
    const std::lock_guard<std::mutex> lock(mu_);
    TF_RETURN_IF_ERROR(CheckKind(true));
    RowSums<C>* rows = Rows<C>(width);
    std::vector<int64_t> positions(unique.size());
    for (int64_t u = 0; u < unique.size(); ++u) positions[u] = rows->Insert(unique.row(u));
    const AddWeighted<C> rule{weight};
    InUnits<NoSums>(ctx, unique.size(), kUnitRows, kCyclesPerRow + kCyclesPerElement * width,
                    [&](int64_t begin, int64_t end, NoSums* sums) {
                      std::vector<C> total(unique.duplicates() ? width : 0);
                      for (int64_t u = begin; u < end; ++u) {
                        C* sum = rows->sum(positions[u]);
                        const InOut<C> into{sum, sum};
                        if (unique.count(u) == 1) {
                          const T* from = Data<T>(gradient) + unique.first(u) * width;
                          ForBlocks(0, width, rule, sums, into, In<T>{from});
                        } else {
                          SumRows(Data<T>(gradient), width, 0, width, unique.positions(u),
                                  unique.count(u), total.data());
                          ForBlocks(0, width, rule, sums, into, In<C>{total.data()});
                        }
                      }
                    });
    *count = Counted(true, staleness);
    return absl::OkStatus();
  }

  // Outputs: mean, count, statistics.
  template <typename T>
  Status TakeDense(OpKernelContext* ctx) {
    using C = Compute<T>;
    const std::lock_guard<std::mutex> lock(mu_);
    TF_RETURN_IF_ERROR(CheckTake(false));
    Tensor* mean = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, sum_.shape(), &mean));
    T* to = Data<T>(mean);
    const C* sum = Data<C>(std::as_const(sum_));
    const C count = static_cast<C>(count_);
    InUnits<NoSums>(ctx, mean->NumElements(), kUnitElements, kCyclesPerElement,
                    [&](int64_t begin, int64_t end, NoSums*) {
                      DivideInto<T>(to + begin, sum + begin, count, end - begin);
                    });
    return Empty(ctx, 1);
  }

  // Outputs: indices, values, count, statistics.
  template <typename T>
  Status TakeSparse(OpKernelContext* ctx) {
    using C = Compute<T>;
    const std::lock_guard<std::mutex> lock(mu_);
    TF_RETURN_IF_ERROR(CheckTake(true));
    const int64_t width = RowWidth();
    RowSums<C>* rows = Rows<C>(width);
    TensorShape shape({rows->size()});
    for (int d = 1; d < shape_.dims(); ++d) {
      TF_RETURN_IF_ERROR(shape.AddDimWithStatus(shape_.dim_size(d)));
    }
    Tensor *indices = nullptr, *values = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, TensorShape({rows->size()}), &indices));
    TF_RETURN_IF_ERROR(ctx->allocate_output(1, shape, &values));
    const std::vector<int64_t> order = rows->Ascending();
    int64_t* index = indices->flat<int64_t>().data();
    T* to = Data<T>(values);
    const C count = static_cast<C>(count_);
    InUnits<NoSums>(ctx, rows->size(), kUnitRows, kCyclesPerRow + kCyclesPerElement * width,
                    [&](int64_t begin, int64_t end, NoSums*) {
                      for (int64_t u = begin; u < end; ++u) {
                        index[u] = rows->row(order[u]);
                        DivideInto<T>(to + u * width, rows->sum(order[u]), count, width);
                      }
                    });
    TF_RETURN_IF_ERROR(Empty(ctx, 2));
    rows->Clear();
    return absl::OkStatus();
  }

 private:
  Status CheckDense(const TensorShape& gradient) const {
    if (!shape_.IsFullyDefined()) {
      return absl::InvalidArgumentError(
          absl::StrCat("An accumulator of dense gradients must have a known shape. Received: ",
                       shape_.DebugString(), ". Give it the variable's whole shape."));
    }
    if (shape_.IsCompatibleWith(gradient)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "`gradient` must have the shape of the accumulator, ", shape_.DebugString(),
        ". Received: ", gradient.DebugString(), "."));
  }

  Status CheckSparse(const TensorShape& gradient, const Tensor& indices, int64_t* limit,
                     int64_t* width) const {
    if (shape_.dims() < 1) {
      return absl::InvalidArgumentError(
          "An accumulator of sparse gradients must have rows. Received: a scalar.");
    }
    bool fits = gradient.dims() == shape_.dims() &&
                gradient.dim_size(0) == indices.NumElements();
    for (int d = 1; fits && d < shape_.dims(); ++d) {
      fits = gradient.dim_size(d) == shape_.dim_size(d);
    }
    if (!fits) {
      return absl::InvalidArgumentError(absl::StrCat(
          "`gradient` must have one row of the accumulator, ", shape_.DebugString(),
          ", for each of the ", indices.NumElements(), " indices. Received: ",
          gradient.DebugString(), "."));
    }
    *limit = shape_.dim_size(0) < 0 ? std::numeric_limits<int64_t>::max() : shape_.dim_size(0);
    *width = RowWidth();
    return absl::OkStatus();
  }

  int64_t RowWidth() const {
    int64_t width = 1;
    for (int d = 1; d < shape_.dims(); ++d) width *= shape_.dim_size(d);
    return width;
  }

  Status CheckKind(bool sparse) const {
    if (count_ == 0 || sparse == sparse_) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        "The accumulator holds ", count_, sparse_ ? " sparse" : " dense",
        " gradients; they must be taken with StalenessWeightedAccumulatorTake",
        sparse_ ? "Sparse" : "", " first. Received: ", sparse ? "sparse" : "dense", "."));
  }

  Status CheckTake(bool sparse) const {
    if (count_ > 0) return CheckKind(sparse);
    return absl::FailedPreconditionError(
        "The accumulator is empty: it must hold at least one gradient to take their mean. Add one "
        "first.");
  }

  int64_t Counted(bool sparse, int64_t staleness) {
    sparse_ = sparse;
    staleness_.Add(staleness);
    return ++count_;
  }

  // Sets the outputs `output` (count) and the next (statistics), and starts anew.
  Status Empty(OpKernelContext* ctx, int output) {
    Tensor* count = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(output, TensorShape({}), &count));
    TF_RETURN_IF_ERROR(
        SetStatistics<2>(ctx, output + 1, {staleness_.sum / static_cast<double>(count_),
                                           static_cast<double>(staleness_.largest)}));
    count->scalar<int64_t>()() = count_;
    count_ = 0;
    staleness_ = Staleness();
    return absl::OkStatus();
  }

  template <typename C>
  RowSums<C>* Rows(int64_t width) {
    auto& rows = [this]() -> auto& {
      if constexpr (std::is_same_v<C, double>) {
        return wide_;
      } else {
        return narrow_;
      }
    }();
    if (!rows) rows = std::make_unique<RowSums<C>>(width);
    return rows.get();
  }

  const DataType dtype_;
  const PartialTensorShape shape_;
  mutable std::mutex mu_;  // guards all that follows
  Tensor sum_{tensorflow::DT_INVALID};  // of the compute dtype, once there was a dense gradient
  std::unique_ptr<RowSums<float>> narrow_;
  std::unique_ptr<RowSums<double>> wide_;
  bool sparse_ = false;
  int64_t count_ = 0;
  Staleness staleness_;
};

Status Lookup(OpKernelContext* ctx, tensorflow::core::RefCountPtr<WeightedAccumulator>* found) {
  const tensorflow::ResourceHandle* handle = nullptr;
  TF_RETURN_IF_ERROR(Handle(ctx, 0, "handle", &handle));
  return LookupResource(ctx, *handle, found);
}

Status Lookup(OpKernelContext* ctx, const char* name, DataType dtype,
              tensorflow::core::RefCountPtr<WeightedAccumulator>* found) {
  TF_RETURN_IF_ERROR(Lookup(ctx, found));
  if ((*found)->dtype() == dtype) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "`", name, "` must have the dtype of the accumulator, ", DataTypeString((*found)->dtype()),
      ". Received: ", DataTypeString(dtype), "."));
}

class HandleOp : public tensorflow::ResourceOpKernel<WeightedAccumulator> {
 public:
  explicit HandleOp(OpKernelConstruction* ctx) : ResourceOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dtype", &dtype_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("shape", &shape_));
    bool known = shape_.dims() >= 0;
    for (int d = 1; known && d < shape_.dims(); ++d) known = shape_.dim_size(d) >= 0;
    OP_REQUIRES(ctx, known,
                absl::InvalidArgumentError(absl::StrCat(
                    "`shape` must be known, except for the number of rows of sparse gradients. "
                    "Received: ",
                    shape_.DebugString(), ".")));
  }

 private:
  Status CreateResource(WeightedAccumulator** accumulator) override {
    *accumulator = new WeightedAccumulator(dtype_, shape_);
    return absl::OkStatus();
  }

  Status VerifyResource(WeightedAccumulator* found) override {
    if (found->dtype() == dtype_ && found->shape().IsIdenticalTo(shape_)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "An accumulator of one `shared_name` must have one dtype and one shape. There is a ",
        found->DebugString(), ". Received: ", DataTypeString(dtype_), " ", shape_.DebugString(),
        "."));
  }

  DataType dtype_;
  PartialTensorShape shape_;
};

// handle, gradient, weight, staleness; or handle, gradient, indices, weight, staleness
template <typename T, bool kSparse>
class AddOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override { OP_REQUIRES_OK(ctx, Run(ctx)); }

 private:
  Status Run(OpKernelContext* ctx) {
    using C = deepinsight::Compute<T>;
    constexpr Range<int64_t> kCount{">= 0", [](int64_t x) { return x >= 0; }};
    C weight = 0;
    int64_t staleness = 0, count = 0;
    TF_RETURN_IF_ERROR(Scalar(ctx, kSparse ? 3 : 2, "weight", kNonNegative<C>, &weight));
    TF_RETURN_IF_ERROR(Scalar(ctx, kSparse ? 4 : 3, "staleness", kCount, &staleness));
    tensorflow::core::RefCountPtr<WeightedAccumulator> accumulator;
    TF_RETURN_IF_ERROR(Lookup(ctx, "gradient", kDataType<T>, &accumulator));
    Tensor* output = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, TensorShape({}), &output));
    if constexpr (kSparse) {
      TF_RETURN_IF_ERROR(accumulator->AddSparse<T>(ctx, ctx->input(1), ctx->input(2), weight,
                                                   staleness, &count));
    } else {
      TF_RETURN_IF_ERROR(
          accumulator->AddDense<T>(ctx, ctx->input(1), weight, staleness, &count));
    }
    output->scalar<int64_t>()() = count;
    return absl::OkStatus();
  }
};

// handle
template <typename T, bool kSparse>
class TakeOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    tensorflow::core::RefCountPtr<WeightedAccumulator> accumulator;
    OP_REQUIRES_OK(ctx, Lookup(ctx, "T", kDataType<T>, &accumulator));
    OP_REQUIRES_OK(ctx, kSparse ? accumulator->TakeSparse<T>(ctx)
                                : accumulator->TakeDense<T>(ctx));
  }
};

// handle
class CountOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    tensorflow::core::RefCountPtr<WeightedAccumulator> accumulator;
    OP_REQUIRES_OK(ctx, Lookup(ctx, &accumulator));
    Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({}), &output));
    output->scalar<int64_t>()() = accumulator->count();
  }
};

template <typename T>
using AddDenseOp = AddOp<T, false>;
template <typename T>
using AddSparseOp = AddOp<T, true>;
template <typename T>
using TakeDenseOp = TakeOp<T, false>;
template <typename T>
using TakeSparseOp = TakeOp<T, true>;

REGISTER_KERNEL_BUILDER(
    Name("StalenessWeightedAccumulatorHandle").Device(tensorflow::DEVICE_CPU), HandleOp);
REGISTER_KERNEL_BUILDER(
    Name("StalenessWeightedAccumulatorCount").Device(tensorflow::DEVICE_CPU), CountOp);
DEEPINSIGHT_REGISTER("StalenessWeightedAccumulatorAdd", AddDenseOp);
DEEPINSIGHT_REGISTER("StalenessWeightedAccumulatorAddSparse", AddSparseOp);
#define DEEPINSIGHT_REGISTER_TAKE(T)                                               \
  REGISTER_KERNEL_BUILDER(Name("StalenessWeightedAccumulatorTake")                 \
                              .Device(tensorflow::DEVICE_CPU)                      \
                              .TypeConstraint<ElementOf<T>::type>("T"),            \
                          TakeDenseOp<T>);                                         \
  REGISTER_KERNEL_BUILDER(Name("StalenessWeightedAccumulatorTakeSparse")           \
                              .Device(tensorflow::DEVICE_CPU)                      \
                              .TypeConstraint<ElementOf<T>::type>("T"),            \
                          TakeSparseOp<T>)
DEEPINSIGHT_REGISTER_TAKE(Half);
DEEPINSIGHT_REGISTER_TAKE(BFloat16);
DEEPINSIGHT_REGISTER_TAKE(float);
DEEPINSIGHT_REGISTER_TAKE(double);

}  // namespace
}  // namespace deepinsight
