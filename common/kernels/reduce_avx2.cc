#include <immintrin.h>

#include "common/kernels/reduce_vectors.h"

namespace psring::cpu {
namespace {

struct Avx2 {
  using Vector = __m256;
  static constexpr size_t width = 8;

  static Vector Load(const BFloat16* from) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(Bits(from)), 16));
  }
  static Vector Load(const Float16* from) { return _mm256_cvtph_ps(Bits(from)); }

  static void Store(BFloat16* to, Vector value) {
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i high = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i carried = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    const __m256i rounded = _mm256_blendv_epi8(_mm256_srli_epi32(carried, 16),
                                               _mm256_or_si256(high, _mm256_set1_epi32(0x40)), nan);
    // Packs within each half: the results are in the first and third quarter.
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded, rounded), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(packed));
  }
  static void Store(Float16* to, Vector value) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }

  static Vector Broadcast(float value) { return _mm256_set1_ps(value); }
  static Vector Multiply(Vector a, Vector b) { return _mm256_mul_ps(a, b); }
  static Vector Add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
  // The instructions return their second operand if one is NaN, so NaNs of b are restored.
  static Vector Min(Vector a, Vector b) { return NanOf(b, _mm256_min_ps(b, a)); }
  static Vector Max(Vector a, Vector b) { return NanOf(b, _mm256_max_ps(b, a)); }

 private:
  static __m128i Bits(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }
  static Vector NanOf(Vector b, Vector otherwise) {
    return _mm256_blendv_ps(otherwise, b, _mm256_cmp_ps(b, b, _CMP_UNORD_Q));
  }
};

}  // namespace

const VectorKernels kAvx2Kernels = {VectorLoops<Avx2>::OneType<BFloat16>(),
                                    VectorLoops<Avx2>::OneType<Float16>()};

}  // namespace psring::cpu
