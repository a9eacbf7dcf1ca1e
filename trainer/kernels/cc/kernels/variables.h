// The resource variables that an op updates: looked up, locked and checked.
#ifndef DEEPINSIGHT_KERNELS_VARIABLES_H_
#define DEEPINSIGHT_KERNELS_VARIABLES_H_

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow.h"

namespace deepinsight {

// One resource input.
struct VariableInput {
  int input;
  const char* name;
  DataType dtype;
};

enum class Access { kDense, kSparse };

// At most N variables, locked from `Open` until the end of the scope.
//
// The locks are those of TensorFlow's own training ops: dense updates hold each variable's mutex,
// sparse ones a shared lock unless `use_locking`; always in the order of the addresses. A dense
// update of a variable whose buffer somebody still reads writes to a new buffer, which `Commit`
// puts in place: a reader keeps what it read, and no pass over memory is spent on a copy.
template <int N>
class Variables {
 public:
  Variables() = default;
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;
  ~Variables() {
    for (int i = 0; i < locked_; ++i) {
      if (shared_) {
        order_[i]->mu()->unlock_shared();
      } else {
        order_[i]->mu()->unlock();
      }
    }
  }

  // Looks up and locks the variables; all must be initialised and have the shape of the first.
  Status Open(OpKernelContext* ctx, const std::array<VariableInput, N>& inputs, int count,
              Access access, bool use_locking) {
    count_ = count;
    for (int i = 0; i < count; ++i) {
      const tensorflow::ResourceHandle* handle = nullptr;
      TF_RETURN_IF_ERROR(Handle(ctx, inputs[i].input, inputs[i].name, &handle));
      const Status found = LookupResource(ctx, *handle, &variables_[i]);
      // Before its initializer has run, a graph's variable is not there at all.
      if (absl::IsNotFound(found)) return Uninitialized(inputs[i], handle->name());
      TF_RETURN_IF_ERROR(found);
      order_[i] = variables_[i].get();
    }
    std::sort(order_.begin(), order_.begin() + count);
    if (std::adjacent_find(order_.begin(), order_.begin() + count) != order_.begin() + count) {
      return absl::InvalidArgumentError(
          "The variable and its slots must be different variables. Received: one of them twice.");
    }
    if (access == Access::kSparse) TF_RETURN_IF_ERROR(AllowSparse(ctx, inputs));
    shared_ = access == Access::kSparse && !use_locking;
    for (; locked_ < count; ++locked_) {
      if (shared_) {
        order_[locked_]->mu()->lock_shared();
      } else {
        order_[locked_]->mu()->lock();
      }
    }
    for (int i = 0; i < count; ++i) {
      TF_RETURN_IF_ERROR(CheckValue(ctx, inputs[i], i));
      const TensorShape& its = variables_[i]->tensor()->shape();
      if (its == shape()) continue;
      const std::string first = absl::StrCat("`", inputs[0].name, "`");
      return SameShape(inputs[i].name, its, first.c_str(), shape());
    }
    return access == Access::kDense ? Fresh(ctx) : absl::OkStatus();
  }

  const TensorShape& shape() { return variables_[0]->tensor()->shape(); }

  // The elements of variable i.
  template <typename T>
  InOut<T> elements(int i) {
    Tensor* in = variables_[i]->tensor();
    Tensor* out = moved_[i] ? &fresh_[i] : in;
    return {Data<T>(std::as_const(*in)), Data<T>(out)};
  }

  // Puts the new buffers in place, after everything was computed.
  void Commit() {
    for (int i = 0; i < count_; ++i) {
      if (moved_[i]) *variables_[i]->tensor() = std::move(fresh_[i]);
    }
  }

 private:
  static Status Uninitialized(const VariableInput& input, const std::string& name) {
    return absl::FailedPreconditionError(
        absl::StrCat("`", input.name, "` must be an initialized variable. Received: ", name,
                     ", which is not. Run its initializer."));
  }

  // Checks that variable i, which is locked, has a value of its dtype.
  Status CheckValue(OpKernelContext* ctx, const VariableInput& input, int i) {
    if (!variables_[i]->is_initialized || !variables_[i]->tensor()->IsInitialized()) {
      return Uninitialized(input, tensorflow::HandleFromInput(ctx, input.input).name());
    }
    const DataType dtype = variables_[i]->tensor()->dtype();
    if (dtype == input.dtype) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("`", input.name, "` must have dtype ",
                                                   DataTypeString(input.dtype), ". Received: ",
                                                   DataTypeString(dtype), "."));
  }

  // No reader may share a buffer that is updated under a shared lock.
  Status AllowSparse(OpKernelContext* ctx, const std::array<VariableInput, N>& inputs) {
    for (int i = 0; i < count_; ++i) {
      tensorflow::Var* variable = variables_[i].get();
      if (variable->copy_on_read_mode.load()) continue;
      tensorflow::mutex_lock lock(*variable->mu());
      TF_RETURN_IF_ERROR(CheckValue(ctx, inputs[i], i));
      if (!variable->tensor()->RefCountIsOne()) {
        Tensor copy;
        TF_RETURN_IF_ERROR(
            ctx->allocate_temp(variable->tensor()->dtype(), variable->tensor()->shape(), &copy));
        const auto bytes = variable->tensor()->tensor_data();
        std::memcpy(copy.data(), bytes.data(), bytes.size());
        *variable->tensor() = copy;
      }
      variable->copy_on_read_mode.store(true);
    }
    return absl::OkStatus();
  }

  Status Fresh(OpKernelContext* ctx) {
    for (int i = 0; i < count_; ++i) {
      const Tensor& tensor = *variables_[i]->tensor();
      if (tensor.RefCountIsOne()) continue;
      TF_RETURN_IF_ERROR(ctx->allocate_temp(tensor.dtype(), tensor.shape(), &fresh_[i]));
      moved_[i] = true;
    }
    return absl::OkStatus();
  }

  int count_ = 0, locked_ = 0;
  bool shared_ = false;
  std::array<tensorflow::core::RefCountPtr<tensorflow::Var>, N> variables_;
  std::array<tensorflow::Var*, N> order_;
  std::array<Tensor, N> fresh_;
  std::array<bool, N> moved_{};
};

}  // namespace deepinsight

#endif  // DEEPINSIGHT_KERNELS_VARIABLES_H_
