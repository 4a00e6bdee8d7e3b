// SPDX-License-Identifier: BSD-2-Clause
#include "fs/core/handover.hpp"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <sstream>

namespace sluice {
namespace {

constexpr std::array<char, 8> kMagic{'S', 'l', 'u', 'i', 'c', 'e', 'H', 'O'};
constexpr std::uint32_t kVersion = 1;

// The memory is sparse: only pages that were used exist. These are the most records of each kind.
constexpr std::uint64_t kMostInodes = std::uint64_t{1} << 28;
constexpr std::uint64_t kMostPlaces = std::uint64_t{1} << 28;
constexpr std::uint64_t kMostOpens = std::uint64_t{1} << 24;
constexpr std::uint64_t kMostNotes = 1 << 12;

constexpr std::size_t kHeaderSize = 64 << 10;
constexpr std::size_t kNotesAt = kHeaderSize;
constexpr std::size_t kOpensAt = kNotesAt + kMostNotes * 64;
constexpr std::size_t kInodesAt = kOpensAt + kMostOpens * sizeof(OpenRecord);
constexpr std::size_t kPlacesAt = kInodesAt + kMostInodes * sizeof(InodeRecord);
constexpr std::size_t kSize = kPlacesAt + kMostPlaces * sizeof(PlaceRecord);
static_assert(sizeof(RequestNote) <= 64);

constexpr std::size_t kLongestInit = 256;

}  // namespace

std::uint64_t hash_of_name(std::string_view name) { return XXH3_64bits(name.data(), name.size()); }

// At the start of the memory. The first four members never change their places, so that every
// version can tell that it cannot read another one.
struct Handover::Header {
  std::array<char, 8> magic;
  std::uint32_t version;
  std::uint32_t epoch;
  std::array<char, 64> pool;  // the pool's id
  std::uint64_t used_notes, used_opens, used_inodes, used_places;
  std::uint32_t init_size;
  std::array<std::byte, kLongestInit> init;
  std::uint32_t tiers_size;
  std::array<char, 32 << 10> tiers;  // lines
};

Handover::Handover(UniqueFd fd, void* memory)
    : fd_(std::move(fd)), memory_(memory), header_(static_cast<Header*>(memory)) {}

Handover::~Handover() { ::munmap(memory_, kSize); }

void Handover::set_tables() {
  auto* bytes = static_cast<std::byte*>(memory_);
  const auto set = [&](auto& table, std::size_t at, std::uint64_t count, std::uint64_t& used) {
    using Record = std::remove_reference_t<decltype(*table.allocate())>;
    table.set({reinterpret_cast<Record*>(bytes + at), count}, &used);
  };
  set(notes_, kNotesAt, kMostNotes, header_->used_notes);
  set(opens_, kOpensAt, kMostOpens, header_->used_opens);
  set(inodes_, kInodesAt, kMostInodes, header_->used_inodes);
  set(places_, kPlacesAt, kMostPlaces, header_->used_places);
}

Result<std::unique_ptr<Handover>> Handover::create(const std::string& pool) {
  UniqueFd fd(::memfd_create("sluice-handover", MFD_CLOEXEC));
  if (!fd || ::ftruncate(fd.get(), kSize) < 0) return Error::last("create the handover memory");
  void* memory =
      ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
  if (memory == MAP_FAILED) return Error::last("map the handover memory");
  auto out = std::unique_ptr<Handover>(new Handover(std::move(fd), memory));
  out->header_->magic = kMagic;
  out->header_->version = kVersion;
  pool.copy(out->header_->pool.data(), out->header_->pool.size() - 1);
  out->set_tables();
  return out;
}

Result<void> Handover::check(int fd) {
  struct stat st {};
  if (::fstat(fd, &st) < 0) return Error::last("open the handover memory");
  // Only the part that never changes.
  std::array<char, 16> start{};
  if (::pread(fd, start.data(), start.size(), 0) != static_cast<ssize_t>(start.size()) ||
      !std::equal(kMagic.begin(), kMagic.end(), start.begin())) {
    return Error{EPROTONOSUPPORT, "open the handover memory",
                 "it is not handover memory of Sluice"};
  }
  std::uint32_t version = 0;
  std::memcpy(&version, start.data() + offsetof(Header, version), sizeof version);
  if (version == kVersion && st.st_size == static_cast<off_t>(kSize)) return {};
  return Error{EPROTONOSUPPORT, "open the handover memory",
               "the running daemon uses version " + std::to_string(version) +
                   " of the handover format, this one reads version " + std::to_string(kVersion) +
                   "; unmount and mount the pool to change versions"};
}

std::vector<std::string> Handover::added_tiers(int fd) {
  Header header{};
  std::vector<std::string> out;
  if (::pread(fd, &header, sizeof header, 0) != sizeof header) return out;
  const std::size_t size = std::min<std::size_t>(header.tiers_size, header.tiers.size());
  std::istringstream lines(std::string(header.tiers.data(), size));
  for (std::string line; std::getline(lines, line);) out.push_back(line);
  return out;
}

void Handover::add_tier(const std::string& tier) {
  MutexLock lock(mutex_);
  const std::string line = tier + "\n";
  const std::uint32_t at = header_->tiers_size;
  if (at + line.size() > header_->tiers.size()) return;
  line.copy(header_->tiers.data() + at, line.size());
  __atomic_store_n(&header_->tiers_size, at + line.size(), __ATOMIC_RELEASE);
}

Result<std::unique_ptr<Handover>> Handover::open(UniqueFd fd, const std::string& pool) {
  SLUICE_TRY(check(fd.get()));
  Header header{};
  if (::pread(fd.get(), &header, sizeof header, 0) != sizeof header)
    return Error::last("open the handover memory");
  header.pool.back() = '\0';
  if (header.pool.data() != pool) {
    return Error{EINVAL, "open the handover memory",
                 "the mount belongs to the pool " + std::string(header.pool.data()) +
                     ", but the tiers belong to the pool " + pool};
  }
  void* memory =
      ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
  if (memory == MAP_FAILED) return Error::last("map the handover memory");
  auto out = std::unique_ptr<Handover>(new Handover(std::move(fd), memory));
  out->epoch_ = ++out->header_->epoch;
  out->set_tables();
  MutexLock lock(out->mutex_);
  out->notes_.inherit([&](RequestNote& note) NO_THREAD_SAFETY_ANALYSIS {
    out->inherited_notes_[note.unique] = &note;
  });
  return out;
}

void Handover::set_init(std::span<const std::byte> request) {
  const std::size_t size = std::min(request.size(), kLongestInit);
  std::memcpy(header_->init.data(), request.data(), size);
  __atomic_store_n(&header_->init_size, size, __ATOMIC_RELEASE);
}

std::vector<std::byte> Handover::init() const {
  const std::size_t size = std::min<std::size_t>(header_->init_size, kLongestInit);
  return {header_->init.begin(), header_->init.begin() + size};
}

RequestNote* Handover::begin_note(std::uint64_t unique, std::uint32_t opcode, bool repeated) {
  if (repeated) {
    MutexLock lock(mutex_);
    const auto found = inherited_notes_.find(unique);
    if (found != inherited_notes_.end()) {
      RequestNote* note = found->second;
      inherited_notes_.erase(found);
      return note;
    }
  }
  RequestNote* note = notes_.allocate();
  if (note == nullptr) return nullptr;
  note->opcode = opcode;
  publish(note->unique, unique);
  return note;
}

void Handover::end_note(RequestNote* note) { notes_.release(note); }

}  // namespace sluice
