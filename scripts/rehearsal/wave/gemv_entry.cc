// SPDX-License-Identifier: Apache-2.0
// The C entry of the host build of our own kernel, csrc/dcu/gemv_kernel.h, and (with WAVE_MAIN) a program for sanitizers.
#include "wave.h"

#include "hip_on_host.h"

#define VLLM_DCU_HOST_WAVES 1
#define __launch_bounds__(threads)
inline unsigned long long atomicAdd(unsigned long long* at, unsigned long long value) {
  return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}

namespace vllm_dcu::gemv {
constexpr int kLanes = WAVE_WIDTH;
using Words = std::uint32_t __attribute__((vector_size(16)));
inline std::uint32_t word(const Words& v, int i) { return v[i]; }
inline Words stream(const Words* at) { return *at; }
inline float shuffle_xor(float value, int mask) { return wave::shuffle_xor(value, mask); }
inline int uniform(int value) { return value; }
inline float as_float(std::uint32_t bits) { return wave::from_bits(bits); }
inline std::uint32_t as_bits(float value) { return wave::bits(value); }
inline float half_to_float(std::uint16_t bits) { return wave::half_to_float(bits); }
inline std::uint16_t float_to_half(float value) { return wave::float_to_half(value); }
}  // namespace vllm_dcu::gemv

#include "dcu/gemv_launch.h"

// weight[M, K], x[N, K], out[N, M]; dtype 0 = fp16, 1 = bf16; counted[1 + 8] or null: the device's count, then what the host sees.
// 0: ran; 1: refused by the contract; 2: the model of the hardware found a fault. `message` holds the sentence then.
extern "C" int wave_gemv(void* weight, void* x, void* out, int64_t M, int64_t K, int64_t N, int dtype, int64_t variant, int threads,
                         unsigned long long* counted, char* message, int64_t message_size) {
  using namespace vllm_dcu;
  const auto operand = [&](const char* name, void* data, int64_t rows) {
    return Operand{name, 2, rows, K, dtype ? "BFloat16" : "Half", true, true, true, "host", true, reinterpret_cast<std::uint64_t>(data)};
  };
  const GemvCall call{operand("weight", weight, M), operand("x", x, N), variant, WAVE_WIDTH, gemv::kLanes};
  const std::string refusal = gemv_refusal(call);
  std::snprintf(message, message_size, "%s", refusal.c_str());
  if (!refusal.empty()) return 1;
  const GemvVariant& chosen = *gemv_variant(variant);
  const gemv::Shape shape = gemv::shape_of(chosen, M, K);
  const gemv::Kernel kernel = dtype ? gemv::kernel_of<gemv::BFloat16>(chosen, N) : gemv::kernel_of<gemv::Half>(chosen, N);
  wave::last_fault().clear();
  wave::worker_threads() = threads;
  wave::Launch{gemv::blocks_of(shape), chosen.waves * gemv::kLanes, 0, nullptr}(
      kernel, static_cast<const gemv::Words*>(weight), static_cast<const gemv::Words*>(x), static_cast<std::uint16_t*>(out), shape, counted,
      counted ? counted + 1 : nullptr);
  std::snprintf(message, message_size, "%s", wave::last_fault().c_str());
  return wave::last_fault().empty() ? 0 : 2;
}

#if defined(WAVE_MAIN)
// usage: prog A_FILE X_FILE OUT_FILE M K N DTYPE VARIANT. Buffers are exactly as large as the tensors, from malloc.
static void* read_exactly(const char* path, size_t size) {
  std::FILE* file = std::fopen(path, "rb");
  void* data = std::malloc(size);
  if (!file || std::fread(data, 1, size, file) != size) std::exit(9);
  std::fclose(file);
  return data;
}

int main(int argc, char** argv) {
  if (argc != 9) return 9;
  const int64_t M = std::atoll(argv[4]), K = std::atoll(argv[5]), N = std::atoll(argv[6]);
  void* a = read_exactly(argv[1], M * K * 2);
  void* x = read_exactly(argv[2], N * K * 2);
  void* out = std::malloc(N * M * 2);  // unwritten, as torch::empty's
  char message[256] = "";
  const int status = wave_gemv(a, x, out, M, K, N, std::atoi(argv[7]), std::atoll(argv[8]), 1, nullptr, message, sizeof message);
  if (status) std::fprintf(stderr, "%s\n", message);
  if (status == 0) {
  #if defined(WAVE_MSAN)
    __msan_check_mem_is_initialized(out, N * M * 2);
  #endif
    std::FILE* file = std::fopen(argv[3], "wb");
    if (!file || std::fwrite(out, 1, N * M * 2, file) != size_t(N * M * 2) || std::fclose(file)) return 9;
  }
  std::free(a), std::free(x), std::free(out);
  return status;
}
#endif
