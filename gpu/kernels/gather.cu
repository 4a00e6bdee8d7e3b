// SPDX-License-Identifier: BSD-2-Clause
// The kernels of the engine. They copy many small pieces in one launch, between GPU memory and host
// memory that the GPU accesses directly (pinned slots, registered page cache).
//
// The bus limits their speed, so each thread keeps several loads in progress, as wide as alignment
// allows. gpu/kernels.cpp launches them; tests/support/fake_cuda_kernels.cpp does the same on a
// CPU. gather.ptx beside this file is for builds without nvcc; tools/update-kernels.sh regenerates
// it.

namespace {

using Word = unsigned long long;

constexpr unsigned kWarp = 32;
constexpr unsigned kBlock = 256;  // threads; as in gpu/kernels.cpp
constexpr unsigned kLoads = 8;    // in progress in each thread

struct alignas(16) Bytes16 {
  Word low, high;
};

// Copies `units` units; lane by lane, so that a warp's accesses lie side by side.
template <typename Unit>
__device__ void copy_units(char* to, const char* from, unsigned units, unsigned lane) {
  const auto* source = reinterpret_cast<const Unit*>(from);
  auto* target = reinterpret_cast<Unit*>(to);
  unsigned at = lane;
  for (; at + (kLoads - 1) * kWarp < units; at += kLoads * kWarp) {
    Unit held[kLoads];
#pragma unroll
    for (unsigned i = 0; i < kLoads; ++i) held[i] = source[at + i * kWarp];
#pragma unroll
    for (unsigned i = 0; i < kLoads; ++i) target[at + i * kWarp] = held[i];
  }
  Unit held[kLoads];
#pragma unroll
  for (unsigned i = 0; i < kLoads; ++i) {
    if (at + i * kWarp < units) held[i] = source[at + i * kWarp];
  }
#pragma unroll
  for (unsigned i = 0; i < kLoads; ++i) {
    if (at + i * kWarp < units) target[at + i * kWarp] = held[i];
  }
}

// The largest alignment that both addresses have, or reach after the same number of bytes.
__device__ unsigned common_alignment(const char* to, const char* from) {
  const Word apart = reinterpret_cast<Word>(to) ^ reinterpret_cast<Word>(from);
  return apart & 1 ? 1 : apart & 2 ? 2 : apart & 4 ? 4 : apart & 8 ? 8 : 16;
}

// Copies from any address to any address: single bytes up to the first aligned one, and at the end.
__device__ void copy_piece(char* to, const char* from, unsigned length, unsigned lane) {
  const unsigned unit = common_alignment(to, from);
  unsigned head = static_cast<unsigned>(-reinterpret_cast<Word>(to) & (unit - 1));
  if (head > length) head = length;
  const unsigned units = (length - head) / unit;
  const unsigned tail = head + units * unit;
  for (unsigned at = lane; at < head; at += kWarp) to[at] = from[at];
  switch (unit) {
    case 16:
      copy_units<Bytes16>(to + head, from + head, units, lane);
      break;
    case 8:
      copy_units<Word>(to + head, from + head, units, lane);
      break;
    case 4:
      copy_units<unsigned>(to + head, from + head, units, lane);
      break;
    case 2:
      copy_units<unsigned short>(to + head, from + head, units, lane);
      break;
    default:
      copy_units<char>(to + head, from + head, units, lane);
  }
  for (unsigned at = tail + lane; at < length; at += kWarp) to[at] = from[at];
}

// Copies the records of one tile as one sequence of units, so that records smaller than a warp also
// keep every thread busy. Each lane has the number of one record in `mine`.
template <typename Unit>
__device__ void copy_tile(char* to, const char* from, Word mine, Word records, unsigned count,
                          unsigned record_bytes, unsigned lane) {
  const unsigned each = record_bytes / sizeof(Unit);
  const unsigned units = count * each;
  auto* target = reinterpret_cast<Unit*>(to);
  for (unsigned begin = 0; begin < units; begin += kLoads * kWarp) {
    Unit held[kLoads];
    bool valid[kLoads];
#pragma unroll
    for (unsigned i = 0; i < kLoads; ++i) {
      const unsigned at = begin + i * kWarp + lane;
      const unsigned record = at < units ? at / each : 0;
      const Word number = __shfl_sync(0xffffffffu, mine, record);
      valid[i] = at < units && number < records;
      if (valid[i]) {
        held[i] = reinterpret_cast<const Unit*>(from + number * record_bytes)[at - record * each];
      }
    }
#pragma unroll
    for (unsigned i = 0; i < kLoads; ++i) {
      if (valid[i]) target[begin + i * kWarp + lane] = held[i];
    }
  }
}

}  // namespace

// As in gpu/kernels.hpp.
struct Piece {
  Word to, from, length;
};

// Copies pieces of up to 4 GiB each. `parts` warps share one: each takes the next `part_bytes` of
// it, a multiple of 16.
extern "C" __global__ void __launch_bounds__(kBlock, 2)
    sluice_copy(const Piece* pieces, unsigned count, unsigned parts, unsigned part_bytes) {
  const unsigned lane = threadIdx.x % kWarp;
  const Word warps = static_cast<Word>(gridDim.x) * (blockDim.x / kWarp);
  const Word all = static_cast<Word>(count) * parts;
  for (Word at = (static_cast<Word>(blockIdx.x) * blockDim.x + threadIdx.x) / kWarp; at < all;
       at += warps) {
    const Piece piece = pieces[at / parts];
    const Word begin = at % parts * part_bytes;
    if (begin >= piece.length) continue;
    const Word rest = piece.length - begin;
    copy_piece(reinterpret_cast<char*>(piece.to + begin),
               reinterpret_cast<const char*>(piece.from + begin),
               static_cast<unsigned>(rest < part_bytes ? rest : part_bytes), lane);
  }
}

// to[i] = from[index[i]], for records of `record_bytes` bytes, at most 1 MiB. A warp takes `tile`
// of them at a time, at most 32. Numbers from `records` on are skipped, and set `*bad`. Both
// addresses and record_bytes are multiples of `unit`: 1, 2, 4, 8 or 16.
extern "C" __global__ void __launch_bounds__(kBlock, 2)
    sluice_gather(char* to, const char* from, const Word* index, Word count, Word records,
                  unsigned record_bytes, unsigned tile, unsigned unit, volatile unsigned* bad) {
  const unsigned lane = threadIdx.x % kWarp;
  const Word warps = static_cast<Word>(gridDim.x) * (blockDim.x / kWarp);
  const Word tiles = (count + tile - 1) / tile;
  for (Word at = (static_cast<Word>(blockIdx.x) * blockDim.x + threadIdx.x) / kWarp; at < tiles;
       at += warps) {
    const Word first = at * tile;
    const unsigned here = static_cast<unsigned>(count - first < tile ? count - first : tile);
    // The index may be in host memory, so the whole tile is loaded with one access.
    const Word mine = lane < here ? index[first + lane] : 0;
    if (lane < here && mine >= records) *bad = 1;
    char* const target = to + first * record_bytes;
    switch (unit) {
      case 16:
        copy_tile<Bytes16>(target, from, mine, records, here, record_bytes, lane);
        break;
      case 8:
        copy_tile<Word>(target, from, mine, records, here, record_bytes, lane);
        break;
      case 4:
        copy_tile<unsigned>(target, from, mine, records, here, record_bytes, lane);
        break;
      case 2:
        copy_tile<unsigned short>(target, from, mine, records, here, record_bytes, lane);
        break;
      default:
        copy_tile<char>(target, from, mine, records, here, record_bytes, lane);
    }
  }
}
