// SPDX-License-Identifier: BSD-2-Clause
// libfuse's callbacks for the bytes of open files.
#include <linux/fuse.h>

#include <memory>
#include <string>

#include "fs/fuse/answer.hpp"
#include "fs/gpu/open_id.hpp"

namespace sluice {
namespace {

constexpr std::size_t kMaxRead = 1 << 20;

// The buffer for a read. A new one is allocated if another thread still uses the last one for a
// request that had to wait.
std::shared_ptr<char[]> read_buffer() noexcept {
  static thread_local std::shared_ptr<char[]> buffer;
  try {
    if (buffer.use_count() != 1) buffer = std::make_shared_for_overwrite<char[]>(kMaxRead);
    return buffer;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void ll_read(fuse_req_t request, fuse_ino_t inode, std::size_t size, off_t offset,
             fuse_file_info* info) {
  const std::shared_ptr<char[]> buffer = read_buffer();
  if (!buffer || size > kMaxRead) {
    fuse_reply_err(request, buffer ? EINVAL : ENOMEM);
    return;
  }
  Filesystem& fs = filesystem(request, FUSE_READ);
  answer_or_defer(
      request,
      [&fs, inode, buffer, size, offset, flags = info->flags](const KernelRequest& asked) {
        return fs.files().read(InodeId{inode}, buffer.get(), size, offset, flags, asked);
      },
      [request, buffer](const Result<std::size_t>& got) {
        fuse_reply_buf(request, buffer.get(), *got);
      });
}

// Writes the rest of the data of a request in another thread: either the file must spill first,
// which takes as long as copying it, or its disk is busy, or a budget must get room first.
void write_slowly(fuse_req_t request, InodeId inode, std::string_view data, std::size_t put,
                  off_t offset, const std::optional<Caller>& strip_suid, WriteTo where,
                  bool needs_room) noexcept {
  try {
    Filesystem& fs = session(request).filesystem();
    // The kernel's data is valid only until this callback returns.
    const auto rest = std::make_shared<const std::string>(data.substr(put));
    const auto go_on = [&fs, inode, put, rest, offset, strip_suid,
                        where](const KernelRequest& asked) -> Result<std::size_t> {
      const auto more =
          fs.files().write(inode, rest->data(), rest->size(), offset + static_cast<off_t>(put),
                           strip_suid, where, put, asked);
      if (!more && put == 0) return more.error();
      return put + (more ? *more : 0);
    };
    const auto reply = [request](const Result<std::size_t>& written) {
      fuse_reply_write(request, *written);
    };
    needs_room ? answer_when_room(request, inode, go_on, reply)
               : answer_slowly(request, go_on, reply);
  } catch (const std::bad_alloc&) {
    fuse_reply_err(request, ENOMEM);
  }
}

void ll_write(fuse_req_t request, fuse_ino_t inode, const char* data, std::size_t size,
              off_t offset, fuse_file_info* info) {
  Filesystem& fs = filesystem(request, FUSE_WRITE);
  bool appends = (info->flags & O_APPEND) != 0;
  // fcntl(F_SETFL) has cleared O_APPEND, because the kernel does not know that the file is
  // append-only.
  if (!appends && !info->writepage && OpenId::from_wire(info->fh).appends())
    appends = fs.files().is_append_only(InodeId{inode});
  const WriteTo where = appends ? WriteTo::End : WriteTo::Offset;
  const CurrentCaller writer(info->writepage ? fs.files().mapper(InodeId{inode})
                                             : current_caller());
  const auto strip_suid = stripped(request, info->kill_suidgid != 0);
  // What was stored through a mapping. The kernel's writeback must not wait for one user's budget.
  if (info->writepage) fs.files().stop_waiting_for_room(InodeId{inode});
  const auto write = [&](const KernelRequest& asked) {
    return fs.files().write(InodeId{inode}, data, size, offset, strip_suid, where, 0, asked);
  };
  auto outcome = outcome_of(write, NotedRequest::of_thread().without_waiting());
  const int code = outcome ? 0 : outcome.error().code;
  const bool goes_on =
      outcome ? *outcome < size
              : code == ENOSPC || code == EDQUOT || code == kWouldWait || code == kNoRoomYet;
  if (goes_on) {
    return write_slowly(request, InodeId{inode}, {data, size}, outcome ? *outcome : 0, offset,
                        strip_suid, where, code == kNoRoomYet);
  }
  const auto reply = [&](const Result<std::size_t>& put) { fuse_reply_write(request, *put); };
  reply_outcome(request, outcome, reply);
}

// Like answer_slowly(), for operations that add bytes to the file.
template <typename Operation, typename Reply>
void answer_if_room(fuse_req_t request, InodeId file, Operation operation, Reply reply) noexcept {
  session(request).filesystem().files().waits_for_room(file)
      ? answer_when_room(request, file, operation, reply)
      : answer_slowly(request, operation, reply);
}

void ll_fsync(fuse_req_t request, fuse_ino_t inode, int data_only, fuse_file_info*) {
  Filesystem& fs = filesystem(request, FUSE_FSYNC);
  answer_done_slowly(
      request, [&fs, inode, data_only] { return fs.files().sync(InodeId{inode}, data_only != 0); });
}

void ll_fallocate(fuse_req_t request, fuse_ino_t inode, int mode, off_t offset, off_t length,
                  fuse_file_info*) {
  Filesystem& fs = filesystem(request, FUSE_FALLOCATE);
  answer_if_room(
      request, InodeId{inode},
      [&fs, inode, mode, offset, length](const KernelRequest& asked) {
        return fs.files().allocate(InodeId{inode}, mode, offset, length, asked);
      },
      [request](const auto&) { fuse_reply_err(request, 0); });
}

void ll_lseek(fuse_req_t request, fuse_ino_t inode, off_t offset, int whence, fuse_file_info*) {
  answer(
      request,
      [&] { return filesystem(request, FUSE_LSEEK).files().seek(InodeId{inode}, offset, whence); },
      [&](const Result<off_t>& at) { fuse_reply_lseek(request, *at); });
}

void ll_copy_file_range(fuse_req_t request, fuse_ino_t from, off_t from_offset, fuse_file_info*,
                        fuse_ino_t to, off_t to_offset, fuse_file_info*, std::size_t length, int) {
  Filesystem& fs = filesystem(request, FUSE_COPY_FILE_RANGE);
  answer_if_room(
      request, InodeId{to},
      [&fs, from, from_offset, to, to_offset, length](const KernelRequest& asked) {
        return fs.files().copy_range(InodeId{from}, from_offset, InodeId{to}, to_offset, length,
                                     asked);
      },
      [request](const Result<std::size_t>& copied) { fuse_reply_write(request, *copied); });
}

}  // namespace

void add_bytes_operations(fuse_lowlevel_ops& operations) {
  operations.read = ll_read;
  operations.write = ll_write;
  operations.fsync = ll_fsync;
  operations.fallocate = ll_fallocate;
  operations.lseek = ll_lseek;
  operations.copy_file_range = ll_copy_file_range;
}

}  // namespace sluice
