#include "ring_worker/transports/cuda/cuda_exports.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/cuda/cuda_context.h"
#include "common/cuda/cuda_sharing.h"

namespace psring {
namespace {

constexpr uint32_t kMostLentRegions = 1 << 16;

}  // namespace

absl::Status LentRegions::Add(const Buffer& buffer) {
  cudaPointerAttributes where = {};
  const cudaError_t known = cudaPointerGetAttributes(&where, buffer.data());
  if (known != cudaSuccess) (void)cudaGetLastError();  // memory unknown to CUDA
  if (known != cudaSuccess || where.type != cudaMemoryTypeDevice || where.device != device_.gpu() ||
      buffer.bytes() == 0) {
    return absl::OkStatus();
  }
  Region region{.data = static_cast<const std::byte*>(buffer.data()), .bytes = buffer.bytes()};
  if (exported_) {
    PSRING_ASSIGN_OR_RETURN(const std::string text, ExportMemory(device_, buffer));
    std::string handle;
    PSRING_CHECK(absl::WebSafeBase64Unescape(text, &handle) && handle.size() == sizeof(region.handle));
    std::memcpy(region.handle, handle.data(), sizeof(region.handle));
  }
  auto free =
      std::find_if(regions_.begin(), regions_.end(), [](const Region& r) { return r.data == nullptr; });
  if (free == regions_.end()) free = regions_.insert(regions_.end(), Region());
  region.generation = free->generation + 1;
  *free = region;
  return absl::OkStatus();
}

void LentRegions::Remove(const Buffer& buffer) {
  for (Region& region : regions_) {
    if (region.data == buffer.data()) region.data = nullptr;
  }
}

bool LentRegions::Describe(const void* data, size_t bytes, Loan& loan) const {
  const auto* const first = static_cast<const std::byte*>(data);
  for (size_t number = 0; number < regions_.size(); ++number) {
    const Region& region = regions_[number];
    if (region.data == nullptr || first < region.data || first + bytes > region.data + region.bytes) continue;
    loan.offset = static_cast<uint64_t>(first - region.data);
    loan.address = reinterpret_cast<uint64_t>(region.data);
    loan.bytes = region.bytes;
    loan.region = static_cast<uint32_t>(number);
    loan.generation = region.generation;
    std::memcpy(loan.handle, region.handle, sizeof(loan.handle));
    return true;
  }
  return false;
}

LentEvents::~LentEvents() {
  for (const Moment& event : events_) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of this process
    (void)CudaStatus("cudaEventDestroy", cudaEventDestroy(reinterpret_cast<cudaEvent_t>(event.address)));
  }
}

absl::Status LentEvents::Create(bool exported) {
  const unsigned flags = cudaEventDisableTiming | (exported ? cudaEventInterprocess : 0);
  for (size_t i = 0; i < kEvents; ++i) {
    cudaEvent_t event = nullptr;
    PSRING_RETURN_IF_ERROR(CudaStatus("cudaEventCreate", cudaEventCreateWithFlags(&event, flags)));
    Moment& made = events_.emplace_back();
    made.address = reinterpret_cast<uint64_t>(event);
    made.event = static_cast<uint32_t>(i);
    if (!exported) continue;
    cudaIpcEventHandle_t handle = {};
    PSRING_RETURN_IF_ERROR(CudaStatus("cudaIpcGetEventHandle", cudaIpcGetEventHandle(&handle, event)));
    std::memcpy(made.handle, handle.reserved, sizeof(made.handle));
  }
  return absl::OkStatus();
}

absl::StatusOr<Moment> LentEvents::Record(cudaStream_t stream) {
  const Moment& moment = events_[next_++ % kEvents];
  PSRING_RETURN_IF_ERROR(
      // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of this process
      CudaStatus("cudaEventRecord", cudaEventRecord(reinterpret_cast<cudaEvent_t>(moment.address), stream)));
  return moment;
}

BorrowedGpu::~BorrowedGpu() {
  for (const cudaEvent_t event : events_) {
    if (event != nullptr) (void)CudaStatus("cudaEventDestroy", cudaEventDestroy(event));
  }
}

absl::StatusOr<const std::byte*> BorrowedGpu::At(const Loan& loan, size_t bytes) {
  if (loan.offset > loan.bytes || bytes > loan.bytes - loan.offset || loan.region >= kMostLentRegions) {
    return absl::DataLossError(absl::StrCat("it lent ", bytes, " bytes at ", loan.offset, " of region ",
                                            loan.region, ", which has ", loan.bytes));
  }
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of this process
  if (same_process_) return reinterpret_cast<const std::byte*>(loan.address) + loan.offset;
  if (regions_.size() <= loan.region) regions_.resize(loan.region + 1);
  Region& region = regions_[loan.region];
  if (region.generation != loan.generation) {
    region.memory = Buffer();  // the owner has freed the memory that had this number before
    PSRING_ASSIGN_OR_RETURN(
        region.memory,
        ImportMemory(device_, absl::WebSafeBase64Escape({loan.handle, sizeof(loan.handle)}), loan.bytes));
    region.generation = loan.generation;
  }
  return static_cast<const std::byte*>(region.memory.data()) + loan.offset;
}

absl::StatusOr<cudaEvent_t> BorrowedGpu::EventOf(const Moment& moment) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of this process
  if (same_process_) return reinterpret_cast<cudaEvent_t>(moment.address);
  if (moment.event >= LentEvents::kEvents) {
    return absl::DataLossError(absl::StrCat("it named event ", moment.event, " of ", LentEvents::kEvents));
  }
  if (events_.size() <= moment.event) events_.resize(moment.event + 1, nullptr);
  cudaEvent_t& event = events_[moment.event];
  if (event == nullptr) {
    cudaIpcEventHandle_t handle = {};
    std::memcpy(handle.reserved, moment.handle, sizeof(handle.reserved));
    PSRING_RETURN_IF_ERROR(CudaStatus("cudaIpcOpenEventHandle", cudaIpcOpenEventHandle(&event, handle)));
  }
  return event;
}

}  // namespace psring
