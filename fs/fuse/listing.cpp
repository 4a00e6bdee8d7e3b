// SPDX-License-Identifier: BSD-2-Clause
// libfuse's callbacks for open directories.
#include <memory>

#include "fs/core/tree/directory_stream.hpp"
#include "fs/fuse/answer.hpp"

namespace sluice {
namespace {

void close_directory(fuse_req_t request, std::uint64_t handle) {
  session(request).open_handles().remove(OpenId::from_wire(handle));
  session(request).directories().remove(handle);
}

void ll_opendir(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info) {
  if (const auto known = session(request).open_handles().of_request(NotedRequest::of_thread())) {
    info->fh = known->first.to_wire();
    fuse_reply_open(request, info);
    return;
  }
  answer(
      request,
      [&] { return filesystem(request, FUSE_OPENDIR).names().open_directory(InodeId{inode}); },
      [&](Result<std::unique_ptr<DirectoryStream>>& stream) {
        const auto open = session(request).open_handles().add(
            {.inode = InodeId{inode}, .is_directory = true}, NotedRequest::of_thread());
        if (!open) {
          fuse_reply_err(request, open.error().code);
          return;
        }
        info->fh = open->to_wire();
        session(request).directories().add(info->fh, *std::move(stream));
        // The kernel caches the listing and drops it when a name in the directory changes.
        info->cache_readdir = session(request).open_handles().find(*open)->caches_listing;
        info->keep_cache = 1;
        if (fuse_reply_open(request, info) == -ENOENT) close_directory(request, info->fh);
      });
}

// The stream of an open directory. If a predecessor opened it, this daemon has none yet.
std::shared_ptr<DirectoryStream> stream_of(fuse_req_t request, fuse_ino_t inode,
                                           std::uint64_t handle) noexcept try {
  Session& s = session(request);
  if (auto stream = s.directories().find(handle)) return stream;
  const auto open = s.open_handles().find(OpenId::from_wire(handle));
  if (!open || !open->is_directory) return nullptr;
  auto stream = s.filesystem().names().open_directory(InodeId{inode});
  return stream ? s.directories().add(handle, *std::move(stream)) : nullptr;
} catch (const std::bad_alloc&) {
  return nullptr;
}

// The reply to a readdir: a buffer of directory entries.
struct Listing {
  explicit Listing(std::size_t size) : bytes(std::make_unique<char[]>(size)), room(size) {}
  std::unique_ptr<char[]> bytes;
  std::size_t room;
  std::size_t used = 0;

  char* end() { return bytes.get() + used; }
  std::size_t left() const { return room - used; }
};

// Answers one readdir, in another thread if it may take long.
template <typename List>
void answer_listing(fuse_req_t request, const std::shared_ptr<DirectoryStream>& stream,
                    List list) noexcept {
  const auto reply = [request](const Result<Listing>& out) {
    fuse_reply_buf(request, out->bytes.get(), out->used);
  };
  bool slowly = false;
  try {
    slowly = stream && stream->may_take_long();
  } catch (const std::exception&) {
    // Out of memory: the listing itself will report that.
  }
  if (slowly) {
    answer_slowly(request, list, reply);
  } else {
    answer(request, list, reply);
  }
}

void ll_readdir(fuse_req_t request, fuse_ino_t inode, std::size_t size, off_t offset,
                fuse_file_info* info) {
  session(request).count(FUSE_READDIR);
  const auto stream = stream_of(request, inode, info->fh);
  answer_listing(request, stream, [request, stream, size, offset]() -> Result<Listing> {
    Listing out(size);
    const auto take = [&](const DirectoryStream::Item& item) {
      struct stat st {};
      st.st_ino = item.inode_number;
      st.st_mode = static_cast<mode_t>(item.type) << 12;
      const std::size_t need =
          fuse_add_direntry(request, out.end(), out.left(), item.name.c_str(), &st, item.next);
      if (need > out.left()) return false;
      out.used += need;
      return true;
    };
    if (!stream) return Error(EBADF, "readdir");
    const auto read = stream->read(offset, DirectoryStream::Numbers::Wanted, take);
    // Return the entries found so far; the next call returns the error.
    if (!read && out.used == 0) return read.error();
    return out;
  });
}

void ll_readdirplus(fuse_req_t request, fuse_ino_t inode, std::size_t size, off_t offset,
                    fuse_file_info* info) {
  Filesystem& fs = filesystem(request, FUSE_READDIRPLUS);
  const auto stream = stream_of(request, inode, info->fh);
  answer_listing(request, stream, [request, &fs, stream, inode, size, offset]() -> Result<Listing> {
    Listing out(size);
    const auto take = [&](const DirectoryStream::Item& item) {
      const char* name = item.name.c_str();
      // Check the size first: a name that does not fit must not be counted as looked up.
      if (fuse_add_direntry_plus(request, nullptr, 0, name, nullptr, 0) > out.left()) return false;
      fuse_entry_param entry{};
      if (item.name != "." && item.name != "..") {
        const auto found = fs.names().lookup(InodeId{inode}, name);
        if (found && found->id == InodeId{}) return true;  // deleted meanwhile
        if (found) entry = to_wire(*found);
      }
      if (entry.ino == 0) {
        entry.attr.st_ino = item.inode_number;
        entry.attr.st_mode = static_cast<mode_t>(item.type) << 12;
      }
      out.used += fuse_add_direntry_plus(request, out.end(), out.left(), name, &entry, item.next);
      return true;
    };
    if (!stream) return Error(EBADF, "readdir");
    const auto read = stream->read(offset, DirectoryStream::Numbers::NotWanted, take);
    if (!read && out.used == 0) return read.error();
    return out;
  });
}

void ll_releasedir(fuse_req_t request, fuse_ino_t, fuse_file_info* info) {
  session(request).count(FUSE_RELEASEDIR);
  close_directory(request, info->fh);
  fuse_reply_err(request, 0);
}

void ll_fsyncdir(fuse_req_t request, fuse_ino_t inode, int, fuse_file_info*) {
  Filesystem& fs = filesystem(request, FUSE_FSYNCDIR);
  answer_done_slowly(request, [&fs, inode] { return fs.names().sync_directory(InodeId{inode}); });
}

}  // namespace

void add_listing_operations(fuse_lowlevel_ops& operations) {
  operations.opendir = ll_opendir;
  operations.readdir = ll_readdir;
  operations.readdirplus = ll_readdirplus;
  operations.releasedir = ll_releasedir;
  operations.fsyncdir = ll_fsyncdir;
}

}  // namespace sluice
