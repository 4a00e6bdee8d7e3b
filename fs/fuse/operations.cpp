// SPDX-License-Identifier: BSD-2-Clause
#include "fs/fuse/operations.hpp"

#include <cstring>
#include <memory>
#include <new>

#include "fs/fuse/answer.hpp"

namespace sluice {
namespace {

constexpr auto kStatx = static_cast<fuse_opcode>(52);  // newer than Debian 12's linux/fuse.h

// Records the open and fills the reply. ENFILE if too many files are open.
Result<void> fill(fuse_req_t request, InodeId inode, fuse_file_info& info, const Opened& opened) {
  info.fh = SLUICE_TRY(session(request).open_handles().add({.inode = inode,
                                                            .flags = info.flags,
                                                            .backing_id = opened.backing_id,
                                                            .direct = opened.direct},
                                                           NotedRequest::of_thread()))
                .to_wire();
  info.backing_id = opened.backing_id;
  info.keep_cache = opened.backing_id == 0 && opened.keep_pages;
  info.direct_io = opened.direct;
  // A close has nothing to wait for: the kernel keeps the locks itself, and the daemon delays no
  // writes.
  info.noflush = 1;
  return {};
}

// Replies as the predecessor would have: it opened the file and died before the reply.
bool fill_from_predecessor(fuse_req_t request, fuse_file_info& info) {
  const auto known = session(request).open_handles().of_request(NotedRequest::of_thread());
  if (!known) return false;
  info.fh = known->first.to_wire();
  info.backing_id = known->second.backing_id;
  info.direct_io = known->second.direct;
  info.noflush = 1;
  return true;
}

void close_again(fuse_req_t request, InodeId inode, const fuse_file_info& info) {
  session(request).open_handles().remove(OpenId::from_wire(info.fh));
  session(request).filesystem().files().release(inode, info.flags);
}

void ll_init(void* userdata, fuse_conn_info* connection) {
  static_cast<Session*>(userdata)->negotiate(*connection);
}

void ll_lookup(fuse_req_t request, fuse_ino_t parent, const char* name) {
  answer_entry(request, [&] {
    return filesystem(request, FUSE_LOOKUP).names().lookup(InodeId{parent}, name);
  });
}

void ll_forget(fuse_req_t request, fuse_ino_t inode, std::uint64_t count) {
  filesystem(request, FUSE_FORGET).names().forget(InodeId{inode}, count);
  fuse_reply_none(request);
}

void ll_forget_multi(fuse_req_t request, std::size_t count, fuse_forget_data* forgets) {
  Filesystem& fs = filesystem(request, FUSE_BATCH_FORGET);
  for (std::size_t i = 0; i < count; ++i)
    fs.names().forget(InodeId{forgets[i].ino}, forgets[i].nlookup);
  fuse_reply_none(request);
}

void ll_getattr(fuse_req_t request, fuse_ino_t inode, fuse_file_info*) {
  answer(
      request, [&] { return filesystem(request, FUSE_GETATTR).attributes().get(InodeId{inode}); },
      [&](const Result<FileAttributes>& a) { fuse_reply_attr(request, &a->st, a->seconds); });
}

void ll_setattr(fuse_req_t request, fuse_ino_t inode, struct stat* to, int set, fuse_file_info*) {
  AttributeChange change;
  if (set & FUSE_SET_ATTR_MODE) change.mode = to->st_mode;
  if (set & FUSE_SET_ATTR_UID) change.uid = to->st_uid;
  if (set & FUSE_SET_ATTR_GID) change.gid = to->st_gid;
  if (set & FUSE_SET_ATTR_SIZE) change.size = to->st_size;
  if (set & FUSE_SET_ATTR_ATIME) change.atime = to->st_atim;
  if (set & FUSE_SET_ATTR_MTIME) change.mtime = to->st_mtim;
  if (set & FUSE_SET_ATTR_ATIME_NOW) change.atime = timespec{0, UTIME_NOW};
  if (set & FUSE_SET_ATTR_MTIME_NOW) change.mtime = timespec{0, UTIME_NOW};
  // Before a passthrough write that must clear setuid bits, the kernel sends a setattr that sets
  // nothing, because the daemon does not see the write itself.
  change.strip_suid = stripped(request, set == 0 || (set & FUSE_SET_ATTR_KILL_SUID) != 0);
  Filesystem& fs = filesystem(request, FUSE_SETATTR);
  const auto set_it = [&fs, inode, change](const KernelRequest& asked) {
    return fs.attributes().set(InodeId{inode}, change, asked);
  };
  const auto reply = [request](const Result<FileAttributes>& a) {
    fuse_reply_attr(request, &a->st, a->seconds);
  };
  // Truncating a large file may take long.
  change.size ? answer_slowly(request, set_it, reply) : answer_or_defer(request, set_it, reply);
}

void ll_statx(fuse_req_t request, fuse_ino_t inode, int flags, int, fuse_file_info*) {
  answer(
      request, [&] { return filesystem(request, kStatx).attributes().statx(InodeId{inode}); },
      // A cache time of 0: the kernel caches the attributes from getattr, not these.
      [&](Result<struct statx>& st) { fuse_reply_statx(request, flags, &*st, 0); });
}

// The most threads that take requests and answer one of ours instead; the others still take them.
constexpr unsigned kMostInPlace = 16;

// Answers one of our ioctls. Long transfers get another thread.
void answer_gpu(fuse_req_t request, InodeId inode, unsigned command, OpenId open,
                std::span<const std::byte> in, std::size_t out_size) {
  Session& s = session(request);
  s.count(FUSE_IOCTL);
  const unsigned before = s.transfers_in_place().fetch_add(1);
  if (before < kMostInPlace && !is_long(command, in)) {
    GpuReply reply(in);
    answer(
        request,
        [&] { return s.gpu().answer(inode, open, command, in, out_size, caller(request), reply); },
        [&](const Result<void>&) {
          fuse_reply_ioctl(request, 0, reply.data(), std::min(out_size, reply.size()));
        });
    s.transfers_in_place().fetch_sub(1);
    return;
  }
  s.transfers_in_place().fetch_sub(1);
  // The kernel's bytes are valid only until this callback returns.
  struct Kept {
    explicit Kept(std::span<const std::byte> bytes) : in(bytes.begin(), bytes.end()), reply(in) {}
    const std::vector<std::byte> in;
    GpuReply reply;
  };
  const auto kept = std::make_shared<Kept>(in);
  answer_by(
      s.transfers(), request,
      [&s, kept, inode, open, command, out_size, from = caller(request)] {
        return s.gpu().answer(inode, open, command, kept->in, out_size, from, kept->reply);
      },
      [request, kept, out_size](const Result<void>&) {
        fuse_reply_ioctl(request, 0, kept->reply.data(), std::min(out_size, kept->reply.size()));
      });
}

void ll_ioctl(fuse_req_t request, fuse_ino_t inode, unsigned command, void*, fuse_file_info* info,
              unsigned flags, const void* in, std::size_t in_size, std::size_t out_size) try {
  // Sluice's ioctls have the same layout for 32-bit processes. They do not apply to directories.
  if (_IOC_TYPE(command) == SLUICE_IOC_TYPE && !(flags & FUSE_IOCTL_DIR)) {
    return answer_gpu(request, InodeId{inode}, command, OpenId::from_wire(info->fh),
                      {static_cast<const std::byte*>(in), in_size}, out_size);
  }
  Filesystem& fs = filesystem(request, FUSE_IOCTL);
  answer_or_defer(
      request,
      [&fs, inode, command, flags, given = std::string(static_cast<const char*>(in), in_size)](
          const KernelRequest& asked) -> Result<std::string> {
        if (flags & FUSE_IOCTL_COMPAT) return Error(ENOSYS, "ioctl of a 32-bit process");
        std::string data = given;
        SLUICE_TRY(fs.attributes().flags(InodeId{inode}, command, data, asked));
        return data;
      },
      [request, out_size](const Result<std::string>& data) {
        fuse_reply_ioctl(request, 0, data->data(), std::min(out_size, data->size()));
      });
} catch (const std::bad_alloc&) {
  fuse_reply_err(request, ENOMEM);
}

void ll_readlink(fuse_req_t request, fuse_ino_t inode) {
  answer(
      request, [&] { return filesystem(request, FUSE_READLINK).names().readlink(InodeId{inode}); },
      [&](const Result<std::string>& target) { fuse_reply_readlink(request, target->c_str()); });
}

void ll_mknod(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode, dev_t device) {
  answer_entry(request, [&](const KernelRequest& asked) {
    return filesystem(request, FUSE_MKNOD)
        .names()
        .mknod(InodeId{parent}, name, mode, device, caller(request), asked);
  });
}

void ll_mkdir(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode) {
  answer_entry(request, [&](const KernelRequest& asked) {
    return filesystem(request, FUSE_MKDIR)
        .names()
        .mkdir(InodeId{parent}, name, mode, caller(request), asked);
  });
}

void ll_symlink(fuse_req_t request, const char* target, fuse_ino_t parent, const char* name) {
  answer_entry(request, [&](const KernelRequest& asked) {
    return filesystem(request, FUSE_SYMLINK)
        .names()
        .symlink(target, InodeId{parent}, name, caller(request), asked);
  });
}

void ll_link(fuse_req_t request, fuse_ino_t inode, fuse_ino_t new_parent,
             const char* new_name) try {
  Filesystem& fs = filesystem(request, FUSE_LINK);
  answer_or_defer(
      request,
      [&fs, inode, new_parent, name = std::string(new_name)](const KernelRequest& asked) {
        return fs.names().link(InodeId{inode}, InodeId{new_parent}, name.c_str(), asked);
      },
      [request](const Result<Entry>& entry) {
        const fuse_entry_param out = to_wire(*entry);
        fuse_reply_entry(request, &out);
      });
} catch (const std::bad_alloc&) {
  fuse_reply_err(request, ENOMEM);
}

void ll_unlink(fuse_req_t request, fuse_ino_t parent, const char* name) try {
  Filesystem& fs = filesystem(request, FUSE_UNLINK);
  answer_done_or_defer(request,
                       [&fs, parent, name = std::string(name)](const KernelRequest& asked) {
                         return fs.names().unlink(InodeId{parent}, name.c_str(), asked);
                       });
} catch (const std::bad_alloc&) {
  fuse_reply_err(request, ENOMEM);
}

void ll_rmdir(fuse_req_t request, fuse_ino_t parent, const char* name) {
  answer_done(request, [&](const KernelRequest& asked) {
    return filesystem(request, FUSE_RMDIR).names().rmdir(InodeId{parent}, name, asked);
  });
}

void ll_rename(fuse_req_t request, fuse_ino_t parent, const char* name, fuse_ino_t new_parent,
               const char* new_name, unsigned flags) try {
  Filesystem& fs = filesystem(request, FUSE_RENAME2);
  answer_done_or_defer(
      request, [&fs, parent, name = std::string(name), new_parent, new_name = std::string(new_name),
                flags](const KernelRequest& asked) {
        return fs.names().rename(InodeId{parent}, name.c_str(), InodeId{new_parent},
                                 new_name.c_str(), flags, asked);
      });
} catch (const std::bad_alloc&) {
  fuse_reply_err(request, ENOMEM);
}

void reply_created(fuse_req_t request, const std::pair<Entry, Opened>& made, fuse_file_info& info) {
  const InodeId id = made.first.id;
  Filesystem& fs = session(request).filesystem();
  const bool is_known = fill_from_predecessor(request, info);
  const auto filled = is_known ? Result<void>() : fill(request, id, info, made.second);
  if (!filled) {
    fs.files().release(id, info.flags);
    fs.names().forget(id, 1);
    fuse_reply_err(request, filled.error().code);
    return;
  }
  const fuse_entry_param out = to_wire(made.first);
  if (fuse_reply_create(request, &out, &info) == -ENOENT) {
    // The request was interrupted: the kernel has neither counted the lookup nor opened the file.
    close_again(request, id, info);
    fs.names().forget(id, 1);
  }
}

// Creates a file by calling `create(request)`, unless the predecessor has done that and recorded
// it.
template <typename Create>
void answer_created(fuse_req_t request, fuse_file_info* info, Create create) noexcept {
  answer(
      request,
      [&](const KernelRequest& asked) -> Result<std::pair<Entry, Opened>> {
        const auto known = session(request).open_handles().of_request(asked);
        if (!known) return create(asked);
        // Looking "." up counts a lookup, as the reply does.
        return std::pair(
            SLUICE_TRY(session(request).filesystem().names().lookup(known->second.inode, ".")),
            Opened{});
      },
      [&](const auto& made) { reply_created(request, *made, *info); });
}

void ll_create(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode,
               fuse_file_info* info) {
  Filesystem& fs = filesystem(request, FUSE_CREATE);
  answer_created(request, info, [&](const KernelRequest& asked) {
    return fs.files().create(InodeId{parent}, name, mode, info->flags, caller(request), asked);
  });
}

void ll_tmpfile(fuse_req_t request, fuse_ino_t parent, mode_t mode, fuse_file_info* info) {
  Filesystem& fs = filesystem(request, FUSE_TMPFILE);
  answer_created(request, info, [&](const KernelRequest& asked) {
    return fs.files().create_unnamed(InodeId{parent}, mode, info->flags, caller(request), asked);
  });
}

void ll_open(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info) {
  Filesystem& fs = filesystem(request, FUSE_OPEN);
  if (fill_from_predecessor(request, *info)) {
    fuse_reply_open(request, info);
    return;
  }
  answer_or_defer(
      request,
      [&fs, inode, flags = info->flags, opener = fuse_req_ctx(request)->pid,
       strip_suid = stripped(request, info->kill_suidgid != 0)](const KernelRequest& asked) {
        return fs.files().open(InodeId{inode}, flags, opener, strip_suid, asked);
      },
      [request, &fs, inode, answer = *info](const Result<Opened>& opened) mutable {
        if (const auto filled = fill(request, InodeId{inode}, answer, *opened); !filled) {
          fs.files().release(InodeId{inode}, answer.flags);
          fuse_reply_err(request, filled.error().code);
        } else if (fuse_reply_open(request, &answer) == -ENOENT) {
          close_again(request, InodeId{inode}, answer);
        }
      });
}

void ll_release(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info) {
  const OpenId id = OpenId::from_wire(info->fh);
  session(request).gpu().released(id);
  Filesystem& fs = filesystem(request, FUSE_RELEASE);
  // The record goes first: a successor must not believe in a backing id that is gone. If there is
  // no record, a predecessor has closed the file.
  if (session(request).open_handles().find(id)) {
    session(request).open_handles().remove(id);
    fs.files().release(InodeId{inode}, info->flags);
  }
  fuse_reply_err(request, 0);
}

void ll_statfs(fuse_req_t request, fuse_ino_t) {
  answer(
      request, [&] { return filesystem(request, FUSE_STATFS).attributes().statfs(); },
      [&](const Result<struct statvfs>& fs) { fuse_reply_statfs(request, &*fs); });
}

// The option that an xattr of the mount's root stands for.
std::optional<std::string> option_of(fuse_ino_t inode, std::string_view name) {
  constexpr std::string_view kPrefix = "user.sluice.set.";
  if (InodeId{inode} != kRootId || !name.starts_with(kPrefix)) return std::nullopt;
  return std::string(name.substr(kPrefix.size()));
}

Result<void> try_option(Session& session, const Caller& caller, const std::string& option,
                        const std::optional<std::string>& value) {
  if (caller.uid != 0) return Error(EPERM, "only root can change options");
  auto done = session.try_option(option, value);
  // The caller gets no more than a number.
  if (!done)
    log::get().warn("an option was not changed: why={}", log::escaped(done.error().text()));
  return done;
}

// A getxattr with size 0 asks for the length of the value.
void reply_bytes(fuse_req_t request, const std::string& bytes, std::size_t room) {
  if (room == 0) {
    fuse_reply_xattr(request, bytes.size());
  } else if (bytes.size() > room) {
    fuse_reply_err(request, ERANGE);
  } else {
    fuse_reply_buf(request, bytes.data(), bytes.size());
  }
}

void ll_getxattr(fuse_req_t request, fuse_ino_t inode, const char* name, std::size_t size) try {
  if (Xattrs::is_slow(name)) {
    Filesystem& fs = filesystem(request, FUSE_GETXATTR);
    return answer_slowly(
        request,
        [&fs, inode, name = std::string(name)] {
          return fs.xattrs().get(InodeId{inode}, name.c_str());
        },
        [request, size](const Result<std::string>& value) { reply_bytes(request, *value, size); });
  }
  answer(
      request,
      [&]() -> Result<std::string> {
        Filesystem& fs = filesystem(request, FUSE_GETXATTR);
        if (InodeId{inode} == kRootId && std::strcmp(name, "user.sluice.status") == 0) {
          return session(request).status();
        }
        if (const auto option = option_of(inode, name)) return session(request).option(*option);
        return fs.xattrs().get(InodeId{inode}, name);
      },
      [&](const Result<std::string>& value) { reply_bytes(request, *value, size); });
} catch (const std::bad_alloc&) {
  fuse_reply_err(request, ENOMEM);
}

void ll_listxattr(fuse_req_t request, fuse_ino_t inode, std::size_t size) {
  answer(
      request,
      [&] {
        return filesystem(request, FUSE_LISTXATTR).xattrs().list(InodeId{inode}, caller(request));
      },
      [&](const Result<std::string>& names) { reply_bytes(request, *names, size); });
}

void ll_setxattr(fuse_req_t request, fuse_ino_t inode, const char* name, const char* value,
                 std::size_t size, int flags) try {
  Filesystem& fs = filesystem(request, FUSE_SETXATTR);
  answer_done_or_defer(request,
                       [&fs, inode, name = std::string(name), value = std::string(value, size),
                        flags, who = caller(request),
                        &mount = session(request)](const KernelRequest& asked) -> Result<void> {
                         if (const auto option = option_of(inode, name))
                           return try_option(mount, who, *option, value);
                         return fs.xattrs().set(InodeId{inode}, name.c_str(), value.data(),
                                                value.size(), flags, who, asked);
                       });
} catch (const std::bad_alloc&) {
  fuse_reply_err(request, ENOMEM);
}

void ll_removexattr(fuse_req_t request, fuse_ino_t inode, const char* name) try {
  Filesystem& fs = filesystem(request, FUSE_REMOVEXATTR);
  answer_done_or_defer(request,
                       [&fs, inode, name = std::string(name), who = caller(request),
                        &mount = session(request)](const KernelRequest& asked) -> Result<void> {
                         if (const auto option = option_of(inode, name))
                           return try_option(mount, who, *option, std::nullopt);
                         return fs.xattrs().remove(InodeId{inode}, name.c_str(), who, asked);
                       });
} catch (const std::bad_alloc&) {
  fuse_reply_err(request, ENOMEM);
}

}  // namespace

const fuse_lowlevel_ops& fuse_operations() {
  static const fuse_lowlevel_ops operations = [] {
    fuse_lowlevel_ops ops{};
    ops.init = ll_init;
    ops.lookup = ll_lookup;
    ops.forget = ll_forget;
    ops.forget_multi = ll_forget_multi;
    ops.getattr = ll_getattr;
    ops.setattr = ll_setattr;
    ops.statx = ll_statx;
    ops.ioctl = ll_ioctl;
    ops.readlink = ll_readlink;
    ops.mknod = ll_mknod;
    ops.mkdir = ll_mkdir;
    ops.unlink = ll_unlink;
    ops.rmdir = ll_rmdir;
    ops.symlink = ll_symlink;
    ops.rename = ll_rename;
    ops.link = ll_link;
    ops.open = ll_open;
    ops.release = ll_release;
    ops.statfs = ll_statfs;
    ops.setxattr = ll_setxattr;
    ops.getxattr = ll_getxattr;
    ops.listxattr = ll_listxattr;
    ops.removexattr = ll_removexattr;
    ops.create = ll_create;
    ops.tmpfile = ll_tmpfile;
    add_bytes_operations(ops);
    add_listing_operations(ops);
    // No callbacks for locks: the kernel keeps fcntl and flock locks itself. That is correct for a
    // filesystem that only one machine uses, and needs no requests.
    return ops;
  }();
  return operations;
}

std::string request_name(std::size_t index) {
  struct Name {
    std::size_t opcode;
    const char* name;
  };
  static constexpr Name kNames[] = {
      {FUSE_LOOKUP, "LOOKUP"},
      {FUSE_FORGET, "FORGET"},
      {FUSE_BATCH_FORGET, "BATCH_FORGET"},
      {FUSE_GETATTR, "GETATTR"},
      {kStatx, "STATX"},
      {FUSE_IOCTL, "IOCTL"},
      {FUSE_SETATTR, "SETATTR"},
      {FUSE_READLINK, "READLINK"},
      {FUSE_SYMLINK, "SYMLINK"},
      {FUSE_MKNOD, "MKNOD"},
      {FUSE_MKDIR, "MKDIR"},
      {FUSE_UNLINK, "UNLINK"},
      {FUSE_RMDIR, "RMDIR"},
      {FUSE_RENAME, "RENAME"},
      {FUSE_RENAME2, "RENAME"},
      {FUSE_LINK, "LINK"},
      {FUSE_OPEN, "OPEN"},
      {FUSE_READ, "READ"},
      {FUSE_WRITE, "WRITE"},
      {FUSE_STATFS, "STATFS"},
      {FUSE_RELEASE, "RELEASE"},
      {FUSE_FSYNC, "FSYNC"},
      {FUSE_SETXATTR, "SETXATTR"},
      {FUSE_GETXATTR, "GETXATTR"},
      {FUSE_LISTXATTR, "LISTXATTR"},
      {FUSE_REMOVEXATTR, "REMOVEXATTR"},
      {FUSE_OPENDIR, "OPENDIR"},
      {FUSE_READDIR, "READDIR"},
      {FUSE_READDIRPLUS, "READDIRPLUS"},
      {FUSE_RELEASEDIR, "RELEASEDIR"},
      {FUSE_FSYNCDIR, "FSYNCDIR"},
      {FUSE_CREATE, "CREATE"},
      {FUSE_TMPFILE, "TMPFILE"},
      {FUSE_FALLOCATE, "FALLOCATE"},
      {FUSE_LSEEK, "LSEEK"},
      {FUSE_COPY_FILE_RANGE, "COPY_FILE_RANGE"},
  };
  for (const Name& each : kNames) {
    if (each.opcode == index) return each.name;
  }
  return "REQUEST_" + std::to_string(index);
}

}  // namespace sluice
