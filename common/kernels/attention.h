// Causal attention of one head on a CPU, for each instruction set. Used only by
// common/ops/cpu_transformer.cc, which checks the arguments.
//
// Included by files that are compiled for one instruction set, so it must not include headers whose inline
// functions the linker could then share with other files.
#pragma once

#include <cstddef>

namespace psring::cpu {

// Memory as in AttentionOps; activations are float or, if `is_bfloat16`, bfloat16.
struct Attention {
  int context, heads, head_size;
  bool is_bfloat16;
  const void* qkv;
  void* y;             // an input of Backward
  float* log_sum_exp;  // an input of Backward
  const void* dy = nullptr;
  void* dqkv = nullptr;
};

struct AttentionKernels {
  // Head `pair` % heads of sample `pair` / heads. `scratch`: AttentionScratch floats, aligned to 64 bytes.
  void (*forward)(const Attention& attention, int pair, float* scratch);
  void (*backward)(const Attention& attention, int pair, float* scratch);
};

// Floats of scratch memory that either kernel needs for a head.
size_t AttentionScratch(int context, int head_size);

// Fills `kernels` with those that this processor can run, the best one last, and returns their number.
int SupportedAttentionKernels(const AttentionKernels* (&kernels)[3]);

// By instruction set: attention_portable.cc, attention_avx2.cc (with FMA), attention_avx512.cc.
extern const AttentionKernels kPortableAttention;
extern const AttentionKernels kAvx2Attention;
extern const AttentionKernels kAvx512Attention;

}  // namespace psring::cpu
