// SPDX-License-Identifier: BSD-2-Clause
#include "client/model.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <deque>

#include "client/load.hpp"
#include "client/sentence.hpp"

namespace sluice {
namespace {

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kSingleName = "model.safetensors";
constexpr std::string_view kRangeType = "U8";

struct Closer {
  void operator()(sluice_file* file) const { sluice_close(file); }
};

std::uint64_t aligned(std::uint64_t at) {
  return (at + SLUICE_ARENA_ALIGNMENT - 1) / SLUICE_ARENA_ALIGNMENT * SLUICE_ARENA_ALIGNMENT;
}

Result<std::string> read_text(int fd, const std::string& path, std::uint64_t offset,
                              std::uint64_t length) {
  std::string text(length, '\0');
  for (std::uint64_t done = 0; done < length;) {
    const ssize_t got =
        ::pread(fd, text.data() + done, length - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return explained("read", path, Error::last("read"));
    if (got == 0)
      return Error{EUCLEAN, "open a model", path + ": the file became shorter while it was read"};
    done += static_cast<std::uint64_t>(got);
  }
  return text;
}

bool is_folder(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

std::string folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == path.npos ? "" : path.substr(0, slash + 1);
}

}  // namespace

struct Model::Files {
  struct One {
    std::string path;
    std::unique_ptr<sluice_file, Closer> handle;
    std::deque<TensorInfo> tensors;  // a deque, because pointers to them must stay valid

    File& file() const { return *handle->file; }
  };
  std::deque<One> all;

  Result<One*> open(const std::string& path) {
    sluice_file* handle = nullptr;
    const int code = sluice_open(path.c_str(), O_RDONLY, 0, &handle);
    if (code < 0) return Error{-code, "open a model", last_sentence()};
    all.push_back({path, std::unique_ptr<sluice_file, Closer>(handle), {}});
    return &all.back();
  }

  Result<One*> open_safetensors(const std::string& path) {
    One* const one = SLUICE_TRY(open(path));
    const int fd = one->file().fd();
    const auto size = one->file().size();
    if (!size) return explained("stat", path, size.error());
    const auto first = SLUICE_TRY(read_text(fd, path, 0, std::min<std::uint64_t>(*size, 8)));
    const auto length = SLUICE_TRY(parse_header_length(path, first, *size));
    const auto text = SLUICE_TRY(read_text(fd, path, 8, length));
    auto tensors = SLUICE_TRY(parse_header(path, text, *size));
    std::move(tensors.begin(), tensors.end(), std::back_inserter(one->tensors));
    return one;
  }

  Result<std::vector<Entry>> open_index(const std::string& path) {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat status {};
    if (!fd || ::fstat(fd.get(), &status) < 0) return explained("open", path, Error::last("open"));
    const auto size = static_cast<std::uint64_t>(status.st_size);
    if (size > kHeaderLimit)
      return Error{EUCLEAN, "open a model", path + ": the index is too long"};
    const auto text = SLUICE_TRY(read_text(fd.get(), path, 0, size));
    const auto tensors = SLUICE_TRY(parse_index(path, text));
    std::map<std::string, std::unordered_map<std::string_view, bool>> by_file;  // tensor -> found
    for (const auto& [tensor, file] : tensors) by_file[file][tensor] = false;
    std::vector<Entry> entries;
    for (auto& [name, wanted] : by_file) {
      const One* const one = SLUICE_TRY(open_safetensors(folder_of(path) + name));
      for (const auto& info : one->tensors) {
        const auto found = wanted.find(info.name);
        if (found == wanted.end()) continue;
        found->second = true;
        entries.push_back({all.size() - 1, &info});
      }
      for (const auto& [tensor, there] : wanted) {
        if (there) continue;
        return Error{EUCLEAN, "open a model",
                     path + ": weight_map: " + quoted_name(tensor) + " is not in " + name};
      }
    }
    return entries;
  }
};

Result<std::unique_ptr<Model>> Model::open(const std::string& given) {
  std::string path = given;
  if (is_folder(path)) {
    const std::string index = path + "/" + kIndexName;
    path = ::access(index.c_str(), F_OK) == 0 ? index : path + "/" + kSingleName;
  }
  auto files = std::make_shared<Files>();
  std::vector<Entry> entries;
  if (path.ends_with(".json")) {
    entries = SLUICE_TRY(files->open_index(path));
  } else {
    const auto* one = SLUICE_TRY(files->open_safetensors(path));
    for (const auto& info : one->tensors) entries.push_back({0, &info});
  }
  std::unique_ptr<Model> model(new Model(std::move(files), std::move(entries)));
  SLUICE_TRY(model->lay_out());
  return model;
}

Result<std::unique_ptr<Model>> Model::open(std::span<const struct sluice_range> ranges) {
  auto files = std::make_shared<Files>();
  std::map<std::string, std::size_t> known;
  std::vector<Entry> entries;
  for (const auto& range : ranges) {
    if (range.path == nullptr) return Error{EINVAL, "open a model", "a range has no path"};
    const auto [at, is_new] = known.emplace(range.path, files->all.size());
    if (is_new) SLUICE_TRY(files->open(range.path));
    auto& file = files->all[at->second];
    const auto size = file.file().size();
    if (!size) return explained("stat", range.path, size.error());

    TensorInfo info{range.name != nullptr ? range.name : range.path, kRangeType, {}, range.offset};
    const std::uint64_t left = *size - std::min(*size, range.offset);
    const std::uint64_t row = std::max<std::uint64_t>(range.row_bytes, 1);
    const std::uint64_t rows = range.rows != 0 ? range.rows : left / row;
    if (range.offset > *size || rows > left / row) {
      return Error{ERANGE, "open a model",
                   std::string(range.path) + ": range " + quoted_name(info.name) +
                       " goes past the end of the file: " + std::to_string(*size) + " bytes"};
    }
    info.shape = range.row_bytes > 1 ? std::vector{rows, row} : std::vector{rows};
    info.bytes = rows * row;
    file.tensors.push_back(std::move(info));
    entries.push_back({at->second, &file.tensors.back()});
  }
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.file, a.info->offset) < std::pair(b.file, b.info->offset);
  });
  std::unique_ptr<Model> model(new Model(std::move(files), std::move(entries)));
  SLUICE_TRY(model->lay_out());
  return model;
}

Result<std::unique_ptr<Model>> Model::select(std::span<const char* const> names) const {
  std::vector<std::size_t> chosen;
  chosen.reserve(names.size());
  for (const char* name : names) {
    const auto found = name != nullptr ? by_name_.find(name) : by_name_.end();
    if (found == by_name_.end()) {
      return Error{ENOENT, "open a model",
                   "there is no tensor " + quoted_name(name != nullptr ? name : "")};
    }
    chosen.push_back(found->second);
  }
  std::sort(chosen.begin(), chosen.end());
  std::vector<Entry> entries;
  entries.reserve(chosen.size());
  for (const auto index : chosen) entries.push_back(entries_[index]);
  std::unique_ptr<Model> model(new Model(files_, std::move(entries)));
  SLUICE_TRY(model->lay_out());
  return model;
}

Result<void> Model::lay_out() {
  tensors_.reserve(entries_.size());
  for (const auto& [file, info] : entries_) {
    struct sluice_tensor tensor {};
    tensor.name = info->name.c_str();
    tensor.dtype = info->dtype.data();  // null-terminated: they are literals
    tensor.shape = info->shape.data();
    tensor.dimensions = static_cast<std::uint32_t>(info->shape.size());
    tensor.bytes = info->bytes;
    // With types smaller than a byte, a row may end within a byte.
    const std::uint64_t rows = info->shape.empty() ? 1 : info->shape[0];
    tensor.rows = rows != 0 && info->bytes % rows == 0 ? rows : (rows != 0 ? 1 : 0);
    tensor.row_bytes = tensor.rows != 0 ? info->bytes / tensor.rows : 0;
    tensor.file = files_->all[file].handle.get();
    tensor.file_offset = info->offset;
    tensor.arena_offset = arena_;
    if (!by_name_.emplace(info->name, tensors_.size()).second) {
      return Error{EINVAL, "open a model", "tensor " + quoted_name(info->name) + " occurs twice"};
    }
    tensors_.push_back(tensor);
    bytes_ += info->bytes;
    // This check also keeps bytes_ from overflowing.
    if (arena_ > SSIZE_MAX - info->bytes - SLUICE_ARENA_ALIGNMENT) {
      return Error{EOVERFLOW, "open a model", "the tensors are too large together"};
    }
    arena_ = aligned(arena_ + info->bytes);
  }
  return {};
}

const struct sluice_tensor* Model::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found != by_name_.end() ? &tensors_[found->second] : nullptr;
}

Result<Outcome> Model::load(Library& library, Buffer& buffer, std::uint64_t offset,
                            const Progress& progress) const {
  if (offset > buffer.length() || arena_ > buffer.length() - offset) {
    return Error{ERANGE, "load a model",
                 "load a model: its arena has " + std::to_string(arena_) +
                     " bytes, but the buffer has only " +
                     std::to_string(buffer.length() - std::min(offset, buffer.length())) +
                     " at this offset"};
  }
  return load_tensors(library, tensors_, buffer, offset, progress);
}

}  // namespace sluice
