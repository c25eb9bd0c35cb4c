#include "common/io/safetensors.h"

#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text = psring::TextOf(data, size);
  const auto tensors = psring::DecodeSafetensors(text);
  if (tensors.ok()) (void)psring::EncodeSafetensors(*tensors, {});
  const auto found = psring::FindTensors(text);
  if (found.ok() != tensors.ok() || (found.ok() && found->size() != tensors->size())) __builtin_trap();
  return 0;
}
