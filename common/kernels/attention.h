// Causal attention of one head on a CPU, for each instruction set. Used only by
// common/ops/cpu_transformer.cc, which checks the arguments.
//
// Included by files that are compiled for one instruction set, so it must not include headers whose inline
// functions the linker could then share with other files.
#pragma once

#include <cstddef>

namespace psring::cpu {

// Where matrices are: the row i of sample s and head h begins `s * sample + i * row + h * head_size` elements
// after `data`.
struct AttentionRows {
  void* data = nullptr;
  ptrdiff_t row = 0, sample = 0;
};

// Memory as in AttentionOps; activations are float or, if `is_bfloat16`, bfloat16.
struct Attention {
  int heads, head_size;
  bool is_bfloat16;
  // Query i attends to the keys 0 ... i + offset, as far as there are any. Of a square with offset 0: to
  // those of its own position and of earlier ones.
  int queries, keys, offset = 0;
  // Forward merges the result with that of other keys, which is in y and log_sum_exp; Backward adds to dq.
  bool merges = false;
  AttentionRows q, k, v, y;
  float* log_sum_exp;      // y and log_sum_exp: inputs of Backward
  ptrdiff_t log_sum_rows;  // between heads
  AttentionRows dy = {}, dq = {}, dk = {}, dv = {};
};

struct AttentionKernels {
  // Head `pair` % heads of sample `pair` / heads. `scratch`: AttentionScratch floats, aligned to 64 bytes.
  void (*forward)(const Attention& attention, int pair, float* scratch);
  void (*backward)(const Attention& attention, int pair, float* scratch);
};

// Floats of scratch memory that either kernel needs for a head.
size_t AttentionScratch(int queries, int keys, int head_size);

// Fills `kernels` with those that this processor can run, the best one last, and returns their number.
int SupportedAttentionKernels(const AttentionKernels* (&kernels)[3]);

// By instruction set: attention_portable.cc, attention_avx2.cc (with FMA), attention_avx512.cc.
extern const AttentionKernels kPortableAttention;
extern const AttentionKernels kAvx2Attention;
extern const AttentionKernels kAvx512Attention;

}  // namespace psring::cpu
