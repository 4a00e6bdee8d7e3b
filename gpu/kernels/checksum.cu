// SPDX-License-Identifier: BSD-2-Clause
// The checksums of a range of memory: XXH3-64 (seed 0) of each block of 4 KiB. gpu/checksum.hpp
// defines them. The result of every block is what libxxhash computes.
//
// The memory of the GPU limits the speed, so a warp loads a whole block at once, 16 bytes per
// access. XXH3 has 8 accumulators. Each 1 KiB of input adds a sum to them, and in between they are
// scrambled; the sums do not depend on each other. Lane l of the warp therefore adds up stripes
// (of 64 bytes) l / 4 and 8 + l / 4 of each KiB, for the accumulators 2 * (l % 4) and the next.
// Only the scrambling is done in sequence, at the end.
//
// gpu/kernels.cpp launches it. checksum.ptx beside this file is for builds without nvcc;
// tools/update-kernels.sh regenerates it.

namespace {

using Word = unsigned long long;

constexpr unsigned kWarp = 32;
constexpr unsigned kThreads = 256;  // per block of the grid; as in gpu/kernels.cpp
constexpr unsigned kBytes = 4096;   // per checksum; as in gpu/checksum.hpp
constexpr unsigned kKilo = 1024;    // bytes between two scramblings
constexpr unsigned kStripe = 64;    // one word for each accumulator
constexpr unsigned kShort = 240;    // up to this many bytes, XXH3 has no accumulators
constexpr unsigned kAllLanes = 0xffffffffu;

constexpr Word kPrime32_1 = 0x9E3779B1, kPrime32_2 = 0x85EBCA77, kPrime32_3 = 0xC2B2AE3D;
constexpr Word kPrime64_1 = 0x9E3779B185EBCA87, kPrime64_2 = 0xC2B2AE3D27D4EB4F,
               kPrime64_3 = 0x165667B19E3779F9, kPrime64_4 = 0x85EBCA77C2B2AE63,
               kPrime64_5 = 0x27D4EB2F165667C5;

}  // namespace

// As in gpu/kernels.hpp. The kernels compute the checksums of blocks `begin` to `end` - 1 of
// `from`. If `differing` is null, they store them in `sums`. Otherwise they compare them with
// `sums`, add the number of blocks that differ to differing[0], and set differing[1] to the number
// of the first of these blocks if that is less.
struct ChecksumRange {
  const char* from;
  Word bytes;
  Word begin, end;
  Word* sums;
  Word* differing;
  unsigned tile;  // a warp takes this many blocks at a time, at most 32
};

namespace {

// The default secret of XXH3, as little-endian words.
__constant__ Word kSecret[24] = {
    0xBE4BA423396CFEB8, 0x1CAD21F72C81017C, 0xDB979083E96DD4DE, 0x1F67B3B7A4A44072,
    0x78E5C0CC4EE679CB, 0x2172FFCC7DD05A82, 0x8E2443F7744608B8, 0x4C263A81E69035E0,
    0xCB00C391BB52283C, 0xA32E531B8B65D088, 0x4EF90DA297486471, 0xD8ACDEA946EF1938,
    0x3F349CE33F76FAA8, 0x1D4F0BC7C7BBDCF9, 0x3159B4CD4BE0518A, 0x647378D9C97E9FC8,
    0xC3EBD33483ACC5EA, 0xEB6313FAFFA081C5, 0x49DAF0B751DD0D17, 0x9E68D429265516D3,
    0xFCA1477D58BE162B, 0xCE31D07AD1B8F88F, 0x280416958F3ACB45, 0x7E404BBBCAFBD7AF,
};
__constant__ Word kStart[8] = {kPrime32_3, kPrime64_1, kPrime64_2, kPrime64_3,
                               kPrime64_4, kPrime32_2, kPrime64_5, kPrime32_1};

// The word of the secret that begins at this byte.
__device__ Word secret(unsigned at) {
  const unsigned shift = at % 8 * 8;
  const Word low = kSecret[at / 8];
  return shift == 0 ? low : low >> shift | kSecret[at / 8 + 1] << (64 - shift);
}

__device__ Word bytes_at(const char* at, unsigned count) {
  Word value = 0;
  for (unsigned i = 0; i < count; ++i) {
    value |= static_cast<Word>(static_cast<unsigned char>(at[i])) << 8 * i;
  }
  return value;
}
__device__ Word word_at(const char* at) { return bytes_at(at, 8); }

struct alignas(16) Words {
  Word low, high;
};

// Reads 16 bytes: from an address that is a multiple of 16, or from any.
struct Aligned {
  static __device__ Words read(const char* at) { return *reinterpret_cast<const Words*>(at); }
};
struct Unaligned {
  static __device__ Words read(const char* at) { return {word_at(at), word_at(at + 8)}; }
};

__device__ Word rotated(Word value, unsigned by) { return value << by | value >> (64 - by); }

__device__ Word product_folded(Word a, Word b) { return (a * b) ^ __umul64hi(a, b); }

__device__ Word avalanche(Word hash) {
  hash = (hash ^ hash >> 37) * 0x165667919E3779F9;
  return hash ^ hash >> 32;
}

// XXH3's sum of 16 bytes with the secret from byte `key` on.
__device__ __noinline__ Word mixed(const char* at, unsigned key) {
  return product_folded(word_at(at) ^ secret(key), word_at(at + 8) ^ secret(key + 8));
}

// XXH3 of 1 to 16 bytes.
__device__ Word sum_of_tiny(const char* from, unsigned length) {
  if (length > 8) {
    const Word low = word_at(from) ^ secret(24) ^ secret(32);
    const Word high = word_at(from + length - 8) ^ secret(40) ^ secret(48);
    Word swapped = 0;
    for (unsigned i = 0; i < 8; ++i) swapped |= (low >> 8 * i & 0xff) << (56 - 8 * i);
    return avalanche(length + swapped + high + product_folded(low, high));
  }
  if (length >= 4) {
    const Word both = bytes_at(from + length - 4, 4) + (bytes_at(from, 4) << 32);
    Word hash = both ^ secret(8) ^ secret(16);
    hash ^= rotated(hash, 49) ^ rotated(hash, 24);
    hash *= 0x9FB21C651E98DF25;
    hash ^= (hash >> 35) + length;
    hash *= 0x9FB21C651E98DF25;
    return hash ^ hash >> 28;
  }
  const Word first = bytes_at(from, 1), middle = bytes_at(from + length / 2, 1),
             last = bytes_at(from + length - 1, 1);
  const Word key = (secret(0) ^ secret(0) >> 32) & 0xffffffff;
  Word hash = (first << 16 | middle << 24 | last | length << 8) ^ key;
  hash = (hash ^ hash >> 33) * kPrime64_2;
  hash = (hash ^ hash >> 29) * kPrime64_3;
  return hash ^ hash >> 32;
}

// XXH3 of 1 to kShort bytes; every lane computes the same.
__device__ Word sum_of_short(const char* from, unsigned length) {
  if (length <= 16) return sum_of_tiny(from, length);
  Word hash = length * kPrime64_1;
  if (length <= 128) {
    for (unsigned i = 0; i < (length + 31) / 32; ++i) {
      hash += mixed(from + 16 * i, 32 * i) + mixed(from + length - 16 * (i + 1), 32 * i + 16);
    }
    return avalanche(hash);
  }
  for (unsigned i = 0; i < 8; ++i) hash += mixed(from + 16 * i, 16 * i);
  hash = avalanche(hash);
  for (unsigned i = 8; i < length / 16; ++i) hash += mixed(from + 16 * i, 16 * (i - 8) + 3);
  return avalanche(hash + mixed(from + length - 16, 119));
}

// What a lane needs of the secret, loaded once.
struct Keys {
  Words first, second;  // for its two stripes of a KiB
  Words last;           // for the last stripe of a block
  Word scramble, merge, start;

  explicit __device__ Keys(unsigned lane) {
    const unsigned at = lane / 4 * 8 + lane % 4 * 16;
    first = {secret(at), secret(at + 8)};
    second = {secret(at + 64), secret(at + 72)};
    last = {secret(121 + lane % 4 * 16), secret(129 + lane % 4 * 16)};
    const unsigned accumulator = accumulator_of(lane);
    scramble = secret(128 + 8 * accumulator);
    merge = secret(11 + 8 * accumulator);
    start = kStart[accumulator];
  }
  // The accumulator that the lane has after sum_up().
  static __device__ unsigned accumulator_of(unsigned lane) { return lane % 4 * 2 + lane / 4 % 2; }
};

__device__ Word product_of_halves(Word value) { return (value & 0xffffffff) * (value >> 32); }

// Adds what the lanes have in sums[KiB][accumulator], which is different for all lanes of the same
// `lane % 4`. The result is the sum for KiB lane / 8 and accumulator_of(lane). Each step halves
// the number of values: a lane keeps one half and gives the other to its partner.
__device__ Word sum_up(const Word (&sums)[4][2], unsigned lane) {
  Word kilos[2][2], pair[2];
#pragma unroll
  for (unsigned i = 0; i < 4; ++i) {
    const Word low = sums[i / 2][i % 2], high = sums[i / 2 + 2][i % 2];
    kilos[i / 2][i % 2] =
        (lane & 16 ? high : low) + __shfl_xor_sync(kAllLanes, lane & 16 ? low : high, 16);
  }
#pragma unroll
  for (unsigned i = 0; i < 2; ++i) {
    const Word low = kilos[0][i], high = kilos[1][i];
    pair[i] = (lane & 8 ? high : low) + __shfl_xor_sync(kAllLanes, lane & 8 ? low : high, 8);
  }
  return (lane & 4 ? pair[1] : pair[0]) +
         __shfl_xor_sync(kAllLanes, lane & 4 ? pair[0] : pair[1], 4);
}

// XXH3 of kShort + 1 to kBytes bytes, by a warp.
template <typename Access>
__device__ __forceinline__ Word sum_of_long(const char* from, unsigned length, const Keys& keys,
                                            unsigned lane) {
  const unsigned last = (length - 1) / kStripe;  // this stripe ends where the block ends
  Words held[8];
#pragma unroll
  for (unsigned i = 0; i < 8; ++i) {
    const unsigned stripe = i * 8 + lane / 4;
    held[i] = {};
    if (stripe > last) continue;
    const unsigned at = stripe == last ? length - kStripe : stripe * kStripe;
    held[i] = Access::read(from + at + lane % 4 * 16);
  }
  Word sums[4][2] = {};
#pragma unroll
  for (unsigned i = 0; i < 8; ++i) {
    const unsigned stripe = i * 8 + lane / 4;
    if (stripe > last) continue;
    const Words key = stripe == last ? keys.last : i % 2 ? keys.second : keys.first;
    sums[i / 2][0] += held[i].high + product_of_halves(held[i].low ^ key.low);
    sums[i / 2][1] += held[i].low + product_of_halves(held[i].high ^ key.high);
  }
  const Word sum = sum_up(sums, lane);
  Word accumulator = keys.start;
#pragma unroll
  for (unsigned kilo = 0; kilo < 4; ++kilo) {
    accumulator += __shfl_sync(kAllLanes, sum, kilo * 8 + lane % 8);
    if (kilo < (length - 1) / kKilo) {
      accumulator = ((accumulator ^ accumulator >> 47) ^ keys.scramble) * kPrime32_1;
    }
  }
  const Word half = accumulator ^ keys.merge;
  Word hash = product_folded(half, __shfl_xor_sync(kAllLanes, half, 4));
  hash += __shfl_xor_sync(kAllLanes, hash, 1);
  hash += __shfl_xor_sync(kAllLanes, hash, 2);
  return avalanche(length * kPrime64_1 + hash);
}

// Calls sum(block, length, lane), which a warp computes, for all blocks of a range.
template <typename Sum>
__device__ __forceinline__ void for_blocks(const ChecksumRange& range, const Sum& sum) {
  const unsigned lane = threadIdx.x % kWarp, tile = range.tile;
  const Word warps = static_cast<Word>(gridDim.x) * (blockDim.x / kWarp);
  const Word warp = (static_cast<Word>(blockIdx.x) * blockDim.x + threadIdx.x) / kWarp;
  for (Word first = range.begin + warp * tile; first < range.end; first += warps * tile) {
    const Word rest = range.end - first;
    const auto here = static_cast<unsigned>(rest < tile ? rest : tile);
    Word mine = 0;
    for (unsigned i = 0; i < here; ++i) {
      const Word at = (first + i) * kBytes;
      const Word length = range.bytes - at;
      const Word one =
          sum(range.from + at, static_cast<unsigned>(length < kBytes ? length : kBytes), lane);
      if (lane == i) mine = one;
    }
    // The sums may be in host memory, so those of the whole tile are accessed at once.
    if (lane >= here) continue;
    if (range.differing == nullptr) {
      range.sums[first + lane] = mine;
    } else if (range.sums[first + lane] != mine) {
      atomicAdd(&range.differing[0], 1ull);
      atomicMin(&range.differing[1], first + lane);
    }
  }
}

}  // namespace

// For whole blocks, at an address that is a multiple of 16.
extern "C" __global__ void __launch_bounds__(kThreads, 3)
    sluice_checksum_blocks(ChecksumRange range) {
  const Keys keys(threadIdx.x % kWarp);
  for_blocks(range, [&keys](const char* from, unsigned, unsigned lane) {
    return sum_of_long<Aligned>(from, kBytes, keys, lane);
  });
}

// The same for all others.
extern "C" __global__ void __launch_bounds__(kThreads, 2)
    sluice_checksum_odd_blocks(ChecksumRange range) {
  const Keys keys(threadIdx.x % kWarp);
  for_blocks(range, [&keys](const char* from, unsigned length, unsigned lane) {
    return length <= kShort ? sum_of_short(from, length)
                            : sum_of_long<Unaligned>(from, length, keys, lane);
  });
}
