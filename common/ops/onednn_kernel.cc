#include "common/ops/onednn_kernel.h"

namespace psring::onednn {

void Workplace::Reserve(size_t bytes) {
  if (bytes <= bytes_) return;
  const auto size = static_cast<dnnl::memory::dim>(bytes);
  scratch_ = dnnl::memory({{size}, dnnl::memory::data_type::u8, dnnl::memory::format_tag::a}, engine_);
  bytes_ = bytes;
}

Kernel::Kernel(const dnnl::primitive_desc_base& desc, Workplace& workplace)
    : desc_(desc), primitive_(desc.get()), workplace_(workplace) {
  workplace_.Reserve(desc_.scratchpad_desc().get_size());
}

void Kernel::Run(absl::Span<const Argument> arguments) {
  if (workplace_.calls() != nullptr)
    workplace_.calls()->push_back({this, {arguments.begin(), arguments.end()}});
  for (const Argument& argument : arguments) {
    Memory(argument.id).set_data_handle(const_cast<void*>(argument.data));
  }
  Memory(DNNL_ARG_SCRATCHPAD).set_data_handle(workplace_.scratch());
  primitive_.execute(workplace_.stream(), memories_);
  workplace_.stream().wait();
}

dnnl::memory& Kernel::Memory(int id) {
  const auto found = memories_.find(id);
  if (found != memories_.end()) return found->second;
  const dnnl::memory::desc desc = desc_.query_md(dnnl::query::exec_arg_md, id);
  return memories_.emplace(id, dnnl::memory(desc, workplace_.engine(), DNNL_MEMORY_NONE)).first->second;
}

}  // namespace psring::onednn
