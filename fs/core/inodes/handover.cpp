// SPDX-License-Identifier: BSD-2-Clause
#include "fs/core/inodes/handover.hpp"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <sstream>
#include <utility>

#include "base/crash.hpp"
#include "base/thread.hpp"

namespace sluice {
namespace {

constexpr std::array<char, 8> kMagic{'S', 'l', 'u', 'i', 'c', 'e', 'H', 'O'};
constexpr std::uint32_t kVersion = 2;

// The memory is sparse: only pages that were used exist. These are the most records of each kind.
#ifdef __SANITIZE_THREAD__
constexpr unsigned kFewer = 6;  // on arm64, ThreadSanitizer leaves a program few addresses
#else
constexpr unsigned kFewer = 0;
#endif
constexpr std::uint64_t kMostInodes = std::uint64_t{1} << (28 - kFewer);
constexpr std::uint64_t kMostPlaces = std::uint64_t{1} << (28 - kFewer);
constexpr std::uint64_t kMostOpens = std::uint64_t{1} << (24 - kFewer);
constexpr std::uint64_t kMostNotes = 1 << 12;

constexpr std::size_t kHeaderSize = 64 << 10;
constexpr std::size_t kNotesAt = kHeaderSize;
constexpr std::size_t kOpensAt = kNotesAt + kMostNotes * 64;
constexpr std::size_t kInodesAt = kOpensAt + kMostOpens * sizeof(OpenRecord);
constexpr std::size_t kPlacesAt = kInodesAt + kMostInodes * sizeof(InodeRecord);
constexpr std::size_t kSize = kPlacesAt + kMostPlaces * sizeof(PlaceRecord);
static_assert(sizeof(RequestNote) <= 64);

constexpr std::size_t kLongestInit = 256;

// RequestNote::opcode counts in its upper bits how many successors have inherited the note, and
// below them how many daemons have crashed in the request.
constexpr std::uint32_t kOneCrash = 1 << 16;
constexpr std::uint32_t kOneSuccessor = 1 << 24;
constexpr std::uint32_t kMostSuccessors = 32 * kOneSuccessor;
constexpr std::uint32_t kCrashes = kOneSuccessor - kOneCrash;

// Instead of a request's number: the thread that crashed answered none. It may have worked for any.
constexpr std::uint64_t kSomeRequest = ~std::uint64_t{0};

std::atomic<std::uint64_t*> crashed_in{nullptr};  // for the signal handler; in shared memory
// Read by a signal handler of the same thread.
thread_local std::uint64_t answered_request = 0;

}  // namespace

std::uint64_t hash_of_name(std::string_view name) { return XXH3_64bits(name.data(), name.size()); }

// At the start of the memory. The first 16 bytes never change their meaning, so that every version
// can tell that it cannot read another one.
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
  std::int64_t stopped;  // when a daemon stopped taking requests to hand over; 0: it did not
  std::array<char, 4096> mountpoint;
  std::uint32_t names_size;
  std::array<char, 4096> names;  // of the tiers, each on a line
  std::uint64_t crashed_in;      // the request in which the daemon crashed; see kSomeRequest
};

namespace {

// Appends a line to a text in the memory. Lines that do not fit are left out.
template <std::size_t Size>
void append_line(std::array<char, Size>& text, std::uint32_t& used, const std::string& line) {
  if (used + line.size() + 1 > Size) return;
  line.copy(text.data() + used, line.size());
  text[used + line.size()] = '\n';
  __atomic_store_n(&used, used + line.size() + 1, __ATOMIC_RELEASE);
}

template <std::size_t Size>
std::vector<std::string> lines_of(const std::array<char, Size>& text, std::uint32_t used) {
  std::vector<std::string> out;
  std::istringstream lines(std::string(text.data(), std::min<std::size_t>(used, Size)));
  for (std::string line; std::getline(lines, line);) out.push_back(line);
  return out;
}

}  // namespace

Handover::Handover(UniqueFd fd, void* memory)
    : fd_(std::move(fd)), memory_(memory), header_(static_cast<Header*>(memory)) {}

Handover::~Handover() {
  if (crashed_in == &header_->crashed_in) {
    set_crash_hook(nullptr);
    crashed_in = nullptr;
  }
  ::munmap(memory_, kSize);
}

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

Handover::Mount Handover::mount_of(int fd) {
  const auto header = std::make_unique<Header>();
  if (::pread(fd, header.get(), sizeof(Header), 0) != sizeof(Header)) return {};
  header->mountpoint.back() = '\0';
  return {header->mountpoint.data(), lines_of(header->names, header->names_size),
          lines_of(header->tiers, header->tiers_size)};
}

void Handover::set_mountpoint(const std::string& mountpoint) {
  mountpoint.copy(header_->mountpoint.data(), header_->mountpoint.size() - 1);
}

void Handover::add_tier(const std::string& name, const std::string& added) {
  MutexLock lock(mutex_);
  append_line(header_->names, header_->names_size, name);
  if (!added.empty()) append_line(header_->tiers, header_->tiers_size, added);
}

void Handover::set_answered(std::uint64_t unique) { answered_request = unique; }

void Handover::note_crashes() {
  crashed_in = &header_->crashed_in;
  set_crash_hook([] {
    std::uint64_t* const place = crashed_in;
    const std::uint64_t request = answered_request;
    if (place != nullptr && is_serving_thread())
      __atomic_store_n(place, request == 0 ? kSomeRequest : request, __ATOMIC_RELEASE);
  });
}

unsigned Handover::count_crashes(std::uint64_t unique, std::uint32_t opcode) {
  MutexLock lock(mutex_);
  const auto found = inherited_notes_.find(unique);
  RequestNote* note = found == inherited_notes_.end() ? nullptr : found->second;
  if (predecessor_crashed_in_ == unique || predecessor_crashed_in_ == kSomeRequest) {
    if (note == nullptr && (note = new_note(unique, opcode)) != nullptr)
      inherited_notes_[unique] = note;
    if (note != nullptr) note->opcode += kOneCrash;
  }
  return note == nullptr ? 0 : (note->opcode & kCrashes) / kOneCrash;
}

void Handover::set_stopped() {
  header_->stopped = std::chrono::steady_clock::now().time_since_epoch().count();
}

Result<std::unique_ptr<Handover>> Handover::open(UniqueFd fd, const std::string& pool) {
  SLUICE_TRY(check(fd.get()));
  std::array<char, sizeof(Header::pool)> owner{};
  if (::pread(fd.get(), owner.data(), owner.size(), offsetof(Header, pool)) < 0)
    return Error::last("open the handover memory");
  owner.back() = '\0';
  if (owner.data() != pool) {
    return Error{EINVAL, "open the handover memory",
                 "the mount belongs to the pool " + std::string(owner.data()) +
                     ", but the tiers belong to the pool " + pool};
  }
  void* memory =
      ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
  if (memory == MAP_FAILED) return Error::last("map the handover memory");
  auto out = std::unique_ptr<Handover>(new Handover(std::move(fd), memory));
  out->epoch_ = ++out->header_->epoch;
  out->predecessor_stopped_ = std::exchange(out->header_->stopped, 0);
  out->predecessor_crashed_in_ = std::exchange(out->header_->crashed_in, 0);
  out->set_tables();
  std::vector<RequestNote*> old;
  out->notes_.inherit([&](RequestNote& note) {
    // A request whose caller was killed never comes again.
    note.opcode += kOneSuccessor;
    if (note.opcode > kMostSuccessors) {
      old.push_back(&note);
      return;
    }
    MutexLock lock(out->mutex_);
    out->inherited_notes_[note.unique] = &note;
  });
  for (RequestNote* note : old) out->notes_.release(note);
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
  return new_note(unique, opcode);
}

RequestNote* Handover::new_note(std::uint64_t unique, std::uint32_t opcode) {
  RequestNote* note = notes_.allocate();
  if (note == nullptr) return nullptr;
  note->opcode = opcode;
  publish(note->unique, unique);
  return note;
}

void Handover::end_note(RequestNote* note) { notes_.release(note); }

}  // namespace sluice
