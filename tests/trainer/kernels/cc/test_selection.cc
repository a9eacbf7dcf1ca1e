// The selection of Deep Gradient Compression, alone, against a stable sort of all magnitudes.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "gradient_compression.h"

using namespace deepinsight;

#define EXPECT(condition, ...)                                           \
  if (!(condition)) {                                                    \
    std::printf("%s:%d: not so: %s: ", __FILE__, __LINE__, #condition); \
    std::printf(__VA_ARGS__);                                            \
    std::printf("\n");                                                   \
    std::exit(1);                                                        \
  }

void InTurn(int64_t units, int64_t, const std::function<void(int64_t, int64_t)>& some) {
  some(0, units);
}

void OnThreads(int64_t units, int64_t, const std::function<void(int64_t, int64_t)>& some) {
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] { some(units * t / 3, units * (t + 1) / 3); });
  }
  for (std::thread& thread : threads) thread.join();
}

template <typename C>
std::vector<int64_t> Sorted(const std::vector<C>& values, int64_t k) {
  std::vector<int64_t> order(values.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  const auto magnitude = [&](int64_t i) {
    return std::isnan(values[i]) ? std::numeric_limits<C>::infinity() : std::abs(values[i]);
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return magnitude(a) > magnitude(b); });
  order.resize(k);
  std::sort(order.begin(), order.end());
  return order;
}

template <typename C>
void Check(const char* what, const std::vector<C>& values, int64_t k, uint64_t seed) {
  const int64_t n = static_cast<int64_t>(values.size());
  const std::vector<int64_t> expected = Sorted(values, k);
  for (const Parallel& parallel : {Parallel(InTurn), Parallel(OnThreads)}) {
    for (bool exact : {false, true}) {
      TopMagnitudes<C> top(values.data(), n, k, parallel);
      top.Select(exact, seed);
      EXPECT(top.indices() == expected, "%s, n=%ld, k=%ld, seed=%lu, exact=%d", what, long(n),
             long(k), static_cast<unsigned long>(seed), exact);
    }
  }
}

template <typename C>
void CheckKinds() {
  std::mt19937_64 random(7);
  std::normal_distribution<C> normal;
  for (int64_t n : {1, 2, 255, 257, 16384, 40000, 300001}) {
    std::vector<C> values(n);
    for (C& value : values) value = normal(random);
    std::vector<C> ties = values, zeros = values, wild = values, equal(n, C(-3));
    for (C& value : ties) value = std::round(value * 2) / 2;
    for (C& value : zeros) value *= random() % 5000 == 0;
    for (int64_t i = 0; i < 40; ++i) {
      constexpr C kInfinity = std::numeric_limits<C>::infinity();
      const C special[] = {std::numeric_limits<C>::quiet_NaN(), -kInfinity, kInfinity,
                           -std::numeric_limits<C>::quiet_NaN()};
      wild[random() % n] = special[i % 4];
    }
    for (double share : {0.0, 0.001, 0.0625, 0.25, 0.9, 1.0}) {
      const int64_t k = ElementsToSend(1 - share, n);
      Check("normal", values, k, random());
      Check("ties", ties, k, random());
      Check("zeros", zeros, k, random());
      Check("NaN and infinity", wild, k, random());
      Check("all equal", equal, k, random());
    }
  }
}

// The sample sees large elements only: both guesses are too high.
template <typename C>
void CheckMisled() {
  const int64_t n = 40000, k = 3000, size = 4096, stride = n / size;
  std::vector<C> values(n);
  for (int64_t i = 0; i < n; ++i) values[i] = C(i % 977) / 977;
  for (int64_t large : {400, 1000, 2999}) {
    std::vector<C> misleading = values;
    for (int64_t i = 0; i < large; ++i) {
      misleading[i * stride + SampledOffset(5, i, stride)] = C(100);
    }
    Check("misled", misleading, k, 5);
  }
}

int main() {
  CheckKinds<float>();
  CheckKinds<double>();
  CheckMisled<float>();
  CheckMisled<double>();
  EXPECT(ElementsToSend(0.999, 0) == 0, "no elements");
  EXPECT(ElementsToSend(0.999, 10) == 1, "at least one");
  EXPECT(ElementsToSend(0.75, 10) == 2, "half to even");
  EXPECT(KeyOf(-0.0f) == KeyOf(0.0f), "both zeros");
  EXPECT(KeyOf(-2.0) > KeyOf(1.5), "by magnitude");
  float value = 1 + 0x1p-12f;
  EXPECT(ToFloat(Send<Half>(&value)) == 1 && value == 0x1p-12f, "the rest stays");
  EXPECT(ClipScale(1.0f, 4.0) == 0.25f && ClipScale(1.0f, 0.5) == 1, "scale");
  EXPECT(ClipScale(1.0f, 0.0) == 1 && std::isnan(ClipScale(1.0f, std::nan(""))), "edges");
  return 0;
}
