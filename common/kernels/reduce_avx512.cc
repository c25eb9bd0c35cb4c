#include <immintrin.h>

#include "common/kernels/reduce_vectors.h"

namespace psring::cpu {
namespace {

struct Avx512 {
  using Vector = __m512;
  static constexpr size_t width = 16;

  static Vector Load(const BFloat16* from) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(Bits(from)), 16));
  }
  static Vector Load(const Float16* from) { return _mm512_cvtph_ps(Bits(from)); }

  static void Store(BFloat16* to, Vector value) {
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i high = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const __m512i carried = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    const __m512i rounded =
        _mm512_mask_or_epi32(_mm512_srli_epi32(carried, 16), nan, high, _mm512_set1_epi32(0x40));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(rounded));
  }
  static void Store(Float16* to, Vector value) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                        _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }

  static Vector Broadcast(float value) { return _mm512_set1_ps(value); }
  static Vector Multiply(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
  static Vector Add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
  // The instructions return their second operand if one is NaN, so NaNs of b are restored.
  static Vector Min(Vector a, Vector b) { return NanOf(b, _mm512_min_ps(b, a)); }
  static Vector Max(Vector a, Vector b) { return NanOf(b, _mm512_max_ps(b, a)); }

 private:
  static __m256i Bits(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
  static Vector NanOf(Vector b, Vector otherwise) {
    return _mm512_mask_mov_ps(otherwise, _mm512_cmp_ps_mask(b, b, _CMP_UNORD_Q), b);
  }
};

}  // namespace

const VectorKernels kAvx512Kernels = {VectorLoops<Avx512>::OneType<BFloat16>(),
                                      VectorLoops<Avx512>::OneType<Float16>()};

}  // namespace psring::cpu
