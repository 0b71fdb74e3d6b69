// SPDX-License-Identifier: Apache-2.0
// Runs a HIP block on the host: every thread is a fiber, every wave's fibers advance in lockstep from one shuffle or
// barrier to the next. Test-only. What a GPU would leave undefined (a shuffle from a lane that is not there, a barrier
// that not all lanes of a wave reach, a block too large to launch) is a fault that stops the run with one sentence.
//
//   WAVE_WIDTH  lanes of a wave of the modelled hardware
//   WARP_SIZE   what the source believes (the same number, except in tests of exactly that mistake)
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#if defined(__has_feature)
  #if __has_feature(memory_sanitizer)
    #define WAVE_MSAN 1
  #endif
  #if __has_feature(address_sanitizer)
    #define WAVE_ASAN 1
  #endif
#endif
#if defined(__SANITIZE_ADDRESS__)
  #define WAVE_ASAN 1
#endif
#if defined(WAVE_ASAN)
  #include <sanitizer/asan_interface.h>
  #include <sanitizer/common_interface_defs.h>
#endif
#if defined(WAVE_MSAN)
  #include <sanitizer/msan_interface.h>
// Unwritten LDS is uninitialised: the section's bounds let a block start with all of it poisoned.
extern "C" char __start_wave_lds[], __stop_wave_lds[];
  #define __shared__ static __attribute__((section("wave_lds")))
#else
  #define __shared__ static thread_local
#endif
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))

struct Dim {
  unsigned x = 0, y = 0, z = 0;
};

namespace wave {

constexpr int kMaxThreads = 1024;  // HIP's limit for a block
constexpr size_t kStack = 16384;
// Not a power of two, so that the tops of the 64 stacks of a wave do not share their cache sets.
constexpr size_t kStride = kStack + 64 * 5;

enum State : uint8_t { kRunning, kAtBarrier, kDone };

struct Block;
// What a lane put up for the others at its last two shuffles; `tag` is (how many shuffles it has done, the mask it used).
struct Posted {
  float value;
  uint32_t tag;
};
struct Wave {
  Posted posted[2][WAVE_WIDTH];
};

struct Lane {
  void* sp;
  Lane *next, *prev;  // ring of the lanes of this wave that still run towards the same event
  Wave* wave;
  int self;  // number in the wave
  uint32_t shuffles;
  Block* block;
  Dim thread;
  State state;
  void* fake_stack;
};

struct Block {
  Lane* lanes;
  Wave* waves;
  char* stacks;
  int threads;
  Dim index, dim;
  void (*body)(const void*);
  const void* arguments;
  void* scheduler_sp;
  void* scheduler_fake_stack;
  const void* scheduler_bottom;
  size_t scheduler_size;
  const char* fault;
  char text[160];
};

inline thread_local Lane* current;

#if defined(__x86_64__)
// Saves the callee-saved registers on the old stack and takes those of the new one. `pop; jmp` instead of `ret`, whose
// prediction would be wrong at every switch.
extern "C" void wave_switch(void** save, void* load);
asm(R"(
.pushsection .text
.weak wave_switch
.hidden wave_switch
.type wave_switch,@function
wave_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rcx
  jmpq *%rcx
.size wave_switch,.-wave_switch
.popsection
)");
inline void* fresh_stack(char* stack, void (*entry)()) {
  void** top = reinterpret_cast<void**>((reinterpret_cast<uintptr_t>(stack) + kStack) & ~uintptr_t{15});
  *--top = nullptr;  // what entry() would return to: it never does
  *--top = reinterpret_cast<void*>(entry);
  return top - 6;
}
#else
  #error "the fiber switch is written for x86-64 only"
#endif

inline char* stack_of(const Lane* lane) {
  return lane->block->stacks + kStride * (lane - lane->block->lanes);
}

// Sanitizers must be told which stack is in use: a wrong picture of it would be a false report or a missed one.
inline void leave_for(void** fake_save, const void* bottom, size_t size) {
#if defined(WAVE_ASAN)
  __sanitizer_start_switch_fiber(fake_save, bottom, size);
#elif defined(WAVE_MSAN)
  __msan_start_switch_fiber(bottom, size);
#endif
  (void)fake_save, (void)bottom, (void)size;
}
inline void arrived(Lane* lane) {
#if defined(WAVE_ASAN) || defined(WAVE_MSAN)
  const void* left = nullptr;  // written by the sanitizer's runtime, which MemorySanitizer does not watch
  size_t size = 0;
  #if defined(WAVE_ASAN)
  __sanitizer_finish_switch_fiber(lane->fake_stack, &left, &size);
  #else
  __msan_finish_switch_fiber(&left, &size);
  #endif
  // The very first arrival comes from the scheduler: that is where its stack becomes known.
  if (!lane->block->scheduler_bottom) lane->block->scheduler_bottom = left, lane->block->scheduler_size = size;
#endif
  (void)lane;
}

inline void to_lane(Lane* from, Lane* to) {
  if (from == to) return;
  current = to;
  leave_for(&from->fake_stack, stack_of(to), kStack);
  wave_switch(&from->sp, to->sp);
  arrived(from);
}

inline void to_scheduler(Lane* from) {
  Block* block = from->block;
  leave_for(from->state == kDone ? nullptr : &from->fake_stack, block->scheduler_bottom, block->scheduler_size);
  wave_switch(&from->sp, block->scheduler_sp);
  arrived(from);
}

[[noreturn]] inline void fault(const char* what) {
  Lane* lane = current;
  std::snprintf(lane->block->text, sizeof lane->block->text, "block %u thread %u: %s", lane->block->index.x,
                lane->thread.x, what);
  lane->block->fault = lane->block->text;
  lane->state = kDone;
  to_scheduler(lane);
  std::abort();
}

// Out of the ring; on to the next lane of the wave, or to the scheduler when this was the last.
inline void leave_ring(Lane* lane, State state) {
  lane->state = state;
  Lane* next = lane->next;
  if (next == lane) {
    to_scheduler(lane);
    return;
  }
  lane->prev->next = next;
  next->prev = lane->prev;
  current = next;
  leave_for(state == kDone ? nullptr : &lane->fake_stack, stack_of(next), kStack);
  wave_switch(&lane->sp, next->sp);
  arrived(lane);
}

inline void lane_main() {
  Lane* lane = current;
  arrived(lane);
  lane->block->body(lane->block->arguments);
  leave_ring(lane, kDone);
  std::abort();
}

inline void barrier() { leave_ring(current, kAtBarrier); }

// HIP's __shfl_xor(value, mask, width = wave): a partner outside the wave is the lane itself.
inline float shuffle_xor(float value, int mask) {
  Lane* lane = current;
  const uint32_t turn = ++lane->shuffles, tag = turn << 8 | static_cast<uint32_t>(mask);
  // Two slots in turn: the first lane of the ring may be one shuffle ahead of the last, never two.
  Posted* posted = lane->wave->posted[turn & 1];
  posted[lane->self] = {value, tag};
  to_lane(lane, lane->next);
  const int partner = (lane->self ^ mask) >= WAVE_WIDTH ? lane->self : lane->self ^ mask;
  if (posted[partner].tag != tag)
    fault(posted[partner].tag >> 8 == turn ? "two lanes of a wave are at different shuffles"
                                           : "a shuffle reads a lane that does not take part in it");
  return posted[partner].value;
}

inline void run_wave(Block& block, int first, int end) {
  Lane* head = nullptr;
  int waiting = 0, done = 0;
  for (int i = first; i < end; i++) {
    Lane* lane = &block.lanes[i];
    if (lane->state == kDone) {
      done++;
      continue;
    }
    lane->state = kRunning;
    if (!head) {
      head = lane->next = lane->prev = lane;
    } else {
      lane->prev = head->prev, lane->next = head;
      head->prev->next = lane, head->prev = lane;
    }
  }
  if (!head) return;
  current = head;
  leave_for(&block.scheduler_fake_stack, stack_of(head), kStack);
  wave_switch(&block.scheduler_sp, head->sp);
#if defined(WAVE_ASAN)
  __sanitizer_finish_switch_fiber(block.scheduler_fake_stack, nullptr, nullptr);
#elif defined(WAVE_MSAN)
  __msan_finish_switch_fiber(nullptr, nullptr);
#endif
  if (block.fault) return;
  done = 0;
  for (int i = first; i < end; i++) (block.lanes[i].state == kDone ? done : waiting)++;
  if (done && waiting) {
    std::snprintf(block.text, sizeof block.text, "block %u wave %d: a barrier that only %d of %d lanes reach",
                  block.index.x, first / WAVE_WIDTH, waiting, end - first);
    block.fault = block.text;
  }
}

inline void run_block(Block& block) {
  std::memset(block.waves, 0, sizeof(Wave) * ((block.threads + WAVE_WIDTH - 1) / WAVE_WIDTH));
#if defined(WAVE_MSAN)
  __msan_poison(__start_wave_lds, __stop_wave_lds - __start_wave_lds);
#endif
  for (int i = 0; i < block.threads; i++) {
    Lane& lane = block.lanes[i];
    lane = Lane{};
    lane.block = &block;
    lane.wave = &block.waves[i / WAVE_WIDTH];
    lane.self = i % WAVE_WIDTH;
    lane.thread.x = i;
#if defined(WAVE_ASAN)
    // The last fiber on this stack ended without returning, and left its frame's red zones behind.
    __asan_unpoison_memory_region(stack_of(&lane), kStack);
#endif
    lane.sp = fresh_stack(stack_of(&lane), lane_main);
  }
  for (bool alive = true; alive && !block.fault;) {
    alive = false;
    for (int first = 0; first < block.threads && !block.fault; first += WAVE_WIDTH) {
      const int end = first + WAVE_WIDTH < block.threads ? first + WAVE_WIDTH : block.threads;
      run_wave(block, first, end);
      for (int i = first; i < end; i++) alive |= block.lanes[i].state == kAtBarrier;
    }
  }
}

// What the last launch had to say; empty when it ran.
inline std::string& last_fault() {
  static std::string text;
  return text;
}
inline int& worker_threads() {
  static int count = 1;
  return count;
}

inline void run_grid(int from, int to, int blocks, int threads, void (*body)(const void*), const void* arguments,
                     std::string* fault_text) {
  std::vector<Lane> lanes(threads);
  std::vector<Wave> waves((threads + WAVE_WIDTH - 1) / WAVE_WIDTH);
  std::vector<char> stacks(kStride * threads);
  Block block{};
  block.lanes = lanes.data(), block.waves = waves.data(), block.stacks = stacks.data();
  block.threads = threads;
  block.dim.x = threads, block.dim.y = block.dim.z = 1;
  block.body = body, block.arguments = arguments;
  (void)blocks;
  for (int index = from; index < to && !block.fault; index++) {
    block.index.x = index;
    run_block(block);
  }
  if (block.fault) *fault_text = block.fault;
}

struct Launch {
  int64_t blocks, threads;
  int lds;
  const void* stream;

  template <typename... Parameters, typename... Arguments>
  void operator()(void (*kernel)(Parameters...), Arguments... arguments) {
    auto call = [&] { kernel(static_cast<Parameters>(arguments)...); };
    using Call = decltype(call);
    if (threads > kMaxThreads) {
      last_fault() = "a block of " + std::to_string(threads) + " threads cannot be launched: HIP's limit is 1024";
      return;
    }
    const int workers = worker_threads();
    std::vector<std::string> faults(workers);
    std::vector<std::thread> pool;
    auto body = [](const void* pointer) { (*static_cast<const Call*>(pointer))(); };
    for (int w = 1; w < workers; w++)
      pool.emplace_back(run_grid, blocks * w / workers, blocks * (w + 1) / workers, blocks, threads, body, &call,
                        &faults[w]);
    run_grid(0, blocks / workers, blocks, threads, body, &call, &faults[0]);
    for (auto& thread : pool) thread.join();
    for (auto& text : faults)
      if (!text.empty()) last_fault() = text;
  }
};

}  // namespace wave

#define threadIdx (wave::current->thread)
#define blockIdx (wave::current->block->index)
#define blockDim (wave::current->block->dim)
inline float __shfl_xor(float value, int mask) { return wave::shuffle_xor(value, mask); }
inline void __syncthreads() { wave::barrier(); }
