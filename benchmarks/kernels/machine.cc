// Plain loops that move the bytes of an update rule and do as little as possible with them.
//
// `updated` arrays are read and written, `read` arrays are only read: x = 0.5 x + sum of the read
// ones (or 0.5 x + 1 without one). With `norms`, a pass that only reads the first updated and the
// read arrays goes before, as for rules that need norms. Threads are started once per call and
// wait for each other, spinning, before each pass; the times do not count their start.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

constexpr int kMost = 7;  // updated arrays
constexpr int64_t kAhead = 8;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class Barrier {
 public:
  explicit Barrier(int threads) : threads_(threads) {}
  void Wait() {
    const int round = round_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
      arrived_.store(0, std::memory_order_relaxed);
      round_.fetch_add(1, std::memory_order_release);
      return;
    }
    for (int spins = 0; round_.load(std::memory_order_acquire) == round; ++spins) {
      if (spins > 10000) std::this_thread::yield();
    }
  }

 private:
  const int threads_;
  std::atomic<int> arrived_{0}, round_{0};
};

// Runs pass(thread) `passes` times on so many threads; returns the seconds of all but the first.
template <typename Pass>
double Timed(int threads, int passes, const Pass& pass) {
  Barrier barrier(threads);
  double began = 0;
  const auto work = [&](int thread) {
    for (int i = 0; i <= passes; ++i) {
      barrier.Wait();
      if (thread == 0 && i == 1) began = Now();
      pass(thread, i);
    }
    barrier.Wait();
  };
  std::vector<std::thread> others;
  for (int t = 1; t < threads; ++t) others.emplace_back(work, t);
  work(0);
  const double seconds = Now() - began;
  for (std::thread& other : others) other.join();
  return seconds;
}

float Norms(const float* a, const float* b, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += a[i] * a[i] + b[i] * b[i];
  return sum;
}

template <int kUpdated, bool kRead>
void Update(float* const* arrays, int64_t row, const float* read, int64_t n) {
  float* out[kUpdated];
  for (int k = 0; k < kUpdated; ++k) out[k] = arrays[k] + row;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float sum = kRead ? read[i] : 1.0f;
#pragma GCC unroll 8
    for (int k = 0; k < kUpdated; ++k) out[k][i] = 0.5f * out[k][i] + sum;
  }
}

using UpdateFunction = void (*)(float* const*, int64_t, const float*, int64_t);

template <bool kRead>
UpdateFunction ForArrays(int updated) {
  constexpr UpdateFunction kAll[kMost] = {Update<1, kRead>, Update<2, kRead>, Update<3, kRead>,
                                          Update<4, kRead>, Update<5, kRead>, Update<6, kRead>,
                                          Update<7, kRead>};
  return kAll[updated - 1];
}

volatile float sink;

}  // namespace

extern "C" {

// An array of n floats as malloc gives it; touched by the loops' own threads first.
float* make_array(int64_t n, int threads) {
  void* memory = nullptr;
  if (posix_memalign(&memory, 64, n * sizeof(float)) != 0) return nullptr;
  float* data = static_cast<float*>(memory);
  Timed(threads, 0, [&](int t, int) {
    std::fill(data + n * t / threads, data + n * (t + 1) / threads, 0.25f);
  });
  return data;
}

void free_array(float* data) { free(data); }

// Seconds for so many passes over the arrays; `read` may be null.
double stream(float* const* arrays, int updated, const float* read, int64_t n, int norms,
              int threads, int passes) {
  const UpdateFunction update = read ? ForArrays<true>(updated) : ForArrays<false>(updated);
  Barrier between(threads);
  return Timed(threads, passes, [&](int t, int) {
    const int64_t begin = n * t / threads, end = n * (t + 1) / threads;
    if (norms) {
      sink = Norms(arrays[0] + begin, read + begin, end - begin);
      between.Wait();
    }
    update(arrays, begin, read ? read + begin : nullptr, end - begin);
  });
}

// The same on `count` rows of `width` elements; pass i takes rows[i % sets], which name rows of
// the updated arrays; `read` has `count` rows.
double rows(float* const* arrays, int updated, const float* read, const int64_t* const* rows,
            int sets, int64_t count, int64_t width, int norms, int threads, int passes) {
  const UpdateFunction update = ForArrays<true>(updated);
  Barrier between(threads);
  return Timed(threads, passes, [&](int t, int pass) {
    const int64_t* which = rows[pass % sets];
    const int64_t begin = count * t / threads, end = count * (t + 1) / threads;
    const auto prefetch = [&](int64_t u, int k) {
      const float* row = arrays[k] + which[u] * width;
      for (int64_t i = 0; i < width; i += 16) __builtin_prefetch(row + i, 1);
    };
    if (norms) {
      float sum = 0;
      for (int64_t u = begin; u < end; ++u) {
        if (u + kAhead < end) prefetch(u + kAhead, 0);
        sum += Norms(arrays[0] + which[u] * width, read + u * width, width);
      }
      sink = sum;
      between.Wait();
    }
    for (int64_t u = begin; u < end; ++u) {
      if (u + kAhead < end) {
        for (int k = 0; k < updated; ++k) prefetch(u + kAhead, k);
      }
      update(arrays, which[u] * width, read + u * width, width);
    }
  });
}
}
