#include <omp.h>

#include <memory>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/ops/cpu_ops.h"
#include "common/ops/onednn_layers.h"
#include "common/ops/step_products.h"

namespace psring {
namespace {

class OneDnnOps : public CpuOps {
 public:
  OneDnnOps(int threads, DType activations) : CpuOps(activations), workplace_(threads, activations) {
    PSRING_CHECK(threads > 0);
    PSRING_CHECK(activations == DType::kFloat32 ||
                 (activations == DType::kBFloat16 && BFloat16Support() != BFloat16::kNone));
    families_.linear = onednn::MakeLinear(workplace_);
    families_.convolution = onednn::MakeConvolution(workplace_);
    families_.loss = MakeCpuLoss(activations);
    families_.normalization = MakeCpuNormalization(activations);
    families_.attention = MakeCpuAttention(activations, threads);
    families_.embedding = MakeCpuEmbedding(activations);
    families_.dropout = MakeCpuDropout(activations);
    families_.batch_norm = MakeCpuBatchNorm(activations);
    families_.bags = MakeCpuBags(activations);
    families_.dots = MakeCpuDots(activations);
  }
  ~OneDnnOps() override { families_ = {}; }  // before the workplace that they borrow

  std::string name() const override {
    return activations() == DType::kFloat32 ? "onednn" : "onednn, bfloat16";
  }
  DType activations() const override { return workplace_.activations(); }

  onednn::Workplace& workplace() { return workplace_; }

 private:
  onednn::Workplace workplace_;
};

class OneDnnProducts : public StepProducts {
 public:
  explicit OneDnnProducts(int threads) : ops_(threads, DType::kFloat32) { ops_.workplace().Record(&calls_); }

  Ops& ops() override { return ops_; }

  absl::Status Repeat() override {
    ops_.workplace().Record(nullptr);
    std::erase_if(calls_, [](const onednn::Call& call) { return !call.kernel->is_product(); });
    omp_set_num_threads(ops_.workplace().threads());
    try {
      for (const onednn::Call& call : calls_) call.kernel->Run(call.arguments);
    } catch (const dnnl::error& error) {
      return Internal("oneDNN: ", error.what());
    }
    ops_.workplace().Record(&calls_);
    return absl::OkStatus();
  }

 private:
  OneDnnOps ops_;
  std::vector<onednn::Call> calls_;
};

}  // namespace

BFloat16 BFloat16Support() {
  const auto has = [](dnnl::cpu_isa isa) {
    return (static_cast<int>(dnnl::get_effective_cpu_isa()) & static_cast<int>(isa)) == static_cast<int>(isa);
  };
  if (has(dnnl::cpu_isa::avx512_core_bf16)) return BFloat16::kNative;
  return has(dnnl::cpu_isa::avx512_core) ? BFloat16::kEmulated : BFloat16::kNone;
}

std::unique_ptr<StepProducts> MakeStepProducts(int threads) {
  return std::make_unique<OneDnnProducts>(threads);
}

std::unique_ptr<Ops> MakeOneDnnOps(int threads, DType activations) {
  return std::make_unique<OneDnnOps>(threads, activations);
}

}  // namespace psring

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
