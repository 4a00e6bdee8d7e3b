// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/packer.hpp"

#include "base/check.hpp"

namespace sluice {
namespace {

std::uint64_t address_of(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

}  // namespace

Packer::Packer(std::span<std::byte> slot)
    : next_(slot.data()),
      end_(reinterpret_cast<Kernels::Piece*>(slot.data() + slot.size())),
      table_(end_) {
  SLUICE_CHECK(address_of(next_) % 16 == 0 && address_of(end_) % 16 == 0,
               "a slot is aligned to 16 bytes at both ends");
}

std::byte* Packer::place(CUdeviceptr to, std::size_t length) {
  const std::size_t skip = (to - address_of(next_)) % 16;
  const std::size_t room = address_of(table_) - address_of(next_);
  if (room < skip + length + (promised_ + 1) * sizeof(Kernels::Piece)) return nullptr;
  ++promised_;
  std::byte* const at = next_ + skip;
  next_ = at + length;
  return at;
}

bool Packer::add(CUdeviceptr to, const std::byte* from, std::size_t length) {
  if (promised_ > 0) --promised_;
  if (length == 0) return true;
  if (table_ != end_ && table_->to + table_->length == to &&
      table_->from + table_->length == address_of(from)) {
    table_->length += length;
  } else {
    if (address_of(table_) - address_of(next_) < sizeof(Kernels::Piece)) return false;
    *--table_ = {to, address_of(from), length};
  }
  longest_ = std::max(longest_, table_->length);
  return true;
}

Result<void> Packer::send(Lane& lane, From where) const {
  const std::span<const Kernels::Piece> pieces(table_, end_);
  if (pieces.size() > 1 && lane.has_kernels()) return lane.copy(pieces, longest_);
  for (const auto& [to, from, length] : pieces) {
    if (where == From::Device) {
      SLUICE_TRY(lane.on_device(to, from, length));
      continue;
    }
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the kernel's table contains addresses.
    SLUICE_TRY(lane.to_device(to, reinterpret_cast<const std::byte*>(from), length));
  }
  return {};
}

}  // namespace sluice
