// SPDX-License-Identifier: Apache-2.0
// The C entry of the host build of LLMM1, and (with WAVE_MAIN) a program around it that sanitizers can watch whole.
#include "wave.h"

#include "hip_on_host.h"
#include "torch_on_host.h"

#include "region.inc"  // upstream's kernel and host function, selected by region.py at build time

// a[M, K], x[N, K], out[N, M]; dtype 0 = fp16, 1 = bf16, 2 = fp32 (refused by upstream). 0: ran; 1: upstream refused;
// 2: the model of the hardware found a fault. `message` holds the sentence then.
extern "C" int wave_llmm1(void* a, void* x, void* out, int64_t M, int64_t K, int64_t x_rows, int dtype,
                          int64_t rows_per_block, int threads, char* message, int64_t message_size) {
  const auto type = static_cast<c10::ScalarType>(dtype);
  at::Tensor weight{a, {M, K}, type}, activation{x, {x_rows, K}, type};
  torch::next_empty() = at::Tensor{out, {x_rows, M}, type};
  wave::last_fault().clear();
  wave::worker_threads() = threads;
  try {
    LLMM1(weight, activation, rows_per_block);
  } catch (const std::exception& refusal) {
    std::snprintf(message, message_size, "%s", refusal.what());
    return 1;
  }
  std::snprintf(message, message_size, "%s", wave::last_fault().c_str());
  return wave::last_fault().empty() ? 0 : 2;
}

extern "C" int wave_width() { return WAVE_WIDTH; }
extern "C" int wave_believed() { return WARP_SIZE; }

#if defined(WAVE_MAIN)
// usage: prog A_FILE X_FILE OUT_FILE M K N DTYPE ROWS. Buffers are exactly as large as the tensors, from malloc.
static void* read_exactly(const char* path, size_t size) {
  std::FILE* file = std::fopen(path, "rb");
  void* data = std::malloc(size);
  if (!file || std::fread(data, 1, size, file) != size) {
    std::fprintf(stderr, "%s does not hold %zu bytes\n", path, size);
    std::exit(9);
  }
  std::fclose(file);
  return data;
}

int main(int argc, char** argv) {
  if (argc != 9) {
    std::fprintf(stderr, "usage: %s A_FILE X_FILE OUT_FILE M K N DTYPE ROWS\n", argv[0]);
    return 9;
  }
  const int64_t M = std::atoll(argv[4]), K = std::atoll(argv[5]), N = std::atoll(argv[6]);
  void* a = read_exactly(argv[1], M * K * 2);
  void* x = read_exactly(argv[2], N * K * 2);
  void* out = std::malloc(N * M * 2);  // unwritten, as torch::empty's
  char message[256] = "";
  const int status =
      wave_llmm1(a, x, out, M, K, N, std::atoi(argv[7]), std::atoll(argv[8]), 1, message, sizeof message);
  if (status) std::fprintf(stderr, "%s\n", message);
  if (status == 0) {
  #if defined(WAVE_MSAN)
    __msan_check_mem_is_initialized(out, N * M * 2);  // an output that no lane wrote, or wrote from unwritten data
  #endif
    std::FILE* file = std::fopen(argv[3], "wb");
    if (!file || std::fwrite(out, 1, N * M * 2, file) != size_t(N * M * 2) || std::fclose(file)) return 9;
  }
  std::free(a), std::free(x), std::free(out);
  return status;
}
#endif
