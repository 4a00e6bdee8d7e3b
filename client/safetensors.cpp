// SPDX-License-Identifier: BSD-2-Clause
#include "client/safetensors.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <unordered_set>

#include "client/sentence.hpp"

namespace sluice {
namespace {

using Json = nlohmann::json;

struct DType {
  std::string_view name;
  unsigned bits;
};
constexpr std::array<DType, 22> kDTypes{{
    {"BOOL", 8},        {"U8", 8},          {"I8", 8},   {"U16", 16},    {"I16", 16},
    {"U32", 32},        {"I32", 32},        {"U64", 64}, {"I64", 64},    {"F16", 16},
    {"BF16", 16},       {"F32", 32},        {"F64", 64}, {"C64", 64},    {"F8_E4M3", 8},
    {"F8_E5M2", 8},     {"F8_E8M0", 8},     {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6},
    {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8},
}};

constexpr std::size_t kDimensions = 64;  // more than any framework supports
constexpr const char* kMetadata = "__metadata__";

Error wrong(const std::string& words) { return Error{EUCLEAN, "read a safetensors header", words}; }

const DType* find_dtype(std::string_view name) {
  const auto* found = std::find_if(kDTypes.begin(), kDTypes.end(),
                                   [&](const DType& type) { return type.name == name; });
  return found != kDTypes.end() ? found : nullptr;
}

std::string text_of_shape(const std::vector<std::uint64_t>& shape) {
  std::string text;
  for (const auto size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return shape.size() <= 8 ? "[" + text + "]" : std::to_string(shape.size()) + " dimensions";
}

// The size of a tensor in bytes; nothing if it is not a whole number or exceeds the largest file
// size.
std::optional<std::uint64_t> bytes_of(const std::vector<std::uint64_t>& shape, unsigned bits) {
  std::uint64_t total = bits;
  if (std::find(shape.begin(), shape.end(), 0u) != shape.end()) return 0;
  for (const auto size : shape) {
    if (__builtin_mul_overflow(total, size, &total)) return std::nullopt;
  }
  return total % 8 == 0 ? std::optional(total / 8) : std::nullopt;
}

// Common base of both parsers: expects an object without duplicate keys, and keeps a text for the
// first error. A callback that returns false ends the parsing.
class Reader : public nlohmann::json_sax<Json> {
 public:
  // `part` describes the JSON text in error texts.
  Reader(std::string where, std::string part) : where_(std::move(where)), part_(std::move(part)) {}

  bool null() override { return other(); }
  bool boolean(bool) override { return other(); }
  bool number_integer(std::int64_t) override { return other(); }
  bool number_unsigned(std::uint64_t) override { return other(); }
  bool number_float(double, const std::string&) override { return other(); }
  bool binary(Json::binary_t&) override { return other(); }
  bool parse_error(std::size_t, const std::string&, const Json::exception& error) override {
    std::string_view words = error.what();  // "[json.exception.parse_error.101] parse error at ..."
    if (const auto end = words.find("] "); end != words.npos) words.remove_prefix(end + 2);
    std::string text(words.substr(0, 200));
    std::replace_if(
        text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
    return refuse(part_ + text);
  }

  // The text for the first error, beginning with `where`.
  const std::string& message() const { return message_; }

 protected:
  bool refuse(const std::string& words) {
    if (message_.empty()) message_ = where_ + ": " + words;
    return false;
  }
  // Called for a value that is not expected at its place.
  virtual bool other() = 0;

 private:
  const std::string where_, part_;
  std::string message_;
};

class HeaderReader final : public Reader {
 public:
  HeaderReader(const std::string& where, std::uint64_t start, std::uint64_t size)
      : Reader(where, "the header, from byte 8 on: "), start_(start), size_(size) {}

  std::vector<TensorInfo>& tensors() { return tensors_; }

  bool key(std::string& name) override {
    if (level_ == Level::Top) {
      if (!names_.insert(name).second) return refuse(quoted_name(name) + " occurs twice");
      if (name.find('\0') != name.npos) {
        return refuse("tensor " + quoted_name(name) + ": the name contains a zero byte");
      }
      name_ = name;
      is_metadata_ = name == kMetadata;
      return true;
    }
    if (!keys_.insert(name).second) {
      return refuse(label() + ": " + quoted_name(name) + " occurs twice");
    }
    if (is_metadata_) return true;
    field_ = name == "dtype"          ? Field::DType
             : name == "shape"        ? Field::Shape
             : name == "data_offsets" ? Field::Offsets
                                      : Field::None;
    return field_ != Field::None || not_a_tensor();
  }

  bool start_object(std::size_t) override {
    if (level_ == Level::Nothing) {
      level_ = Level::Top;
      return true;
    }
    if (level_ != Level::Top) return other();
    level_ = Level::Entry;
    keys_.clear();
    dtype_ = nullptr;
    shape_.clear();
    offsets_.clear();
    return true;
  }

  bool end_object() override {
    if (level_ == Level::Top) {
      level_ = Level::Nothing;
      return true;
    }
    level_ = Level::Top;
    if (is_metadata_) return true;
    return keys_.size() == 3 ? add_tensor() : not_a_tensor();
  }

  bool start_array(std::size_t) override {
    if (level_ != Level::Entry || is_metadata_ || field_ == Field::DType) return other();
    level_ = Level::List;
    return true;
  }

  bool end_array() override {
    level_ = Level::Entry;
    if (field_ == Field::Offsets && offsets_.size() != 2) return other();
    return true;
  }

  bool number_unsigned(std::uint64_t value) override {
    if (level_ != Level::List || value > INT64_MAX) return other();
    auto& list = field_ == Field::Shape ? shape_ : offsets_;
    if (list.size() == kDimensions) {
      return refuse(label() + ": the shape has more than 64 dimensions, or data_offsets do");
    }
    list.push_back(value);
    return true;
  }

  bool string(std::string& value) override {
    if (level_ != Level::Entry) return other();
    if (is_metadata_) return true;
    if (field_ != Field::DType) return other();
    dtype_ = find_dtype(value);
    return dtype_ != nullptr || refuse(label() + ": dtype " + quoted_name(value) + " is unknown");
  }

 private:
  enum class Level { Nothing, Top, Entry, List };
  enum class Field { None, DType, Shape, Offsets };

  std::string label() const { return is_metadata_ ? kMetadata : "tensor " + quoted_name(name_); }
  bool not_a_tensor() {
    return refuse(label() + ": must be an object with dtype, shape and data_offsets");
  }

  bool other() override {
    if (level_ == Level::Nothing) return refuse("it is not an object");
    if (is_metadata_) return refuse(std::string(kMetadata) + " must be an object of strings");
    if (level_ == Level::Top) return not_a_tensor();
    switch (field_) {
      case Field::DType:
        return refuse(label() + ": dtype must be a string");
      case Field::Shape:
        return refuse(label() + ": the shape must be a list of whole numbers");
      default:
        return refuse(label() + ": data_offsets must be two whole numbers");
    }
  }

  bool add_tensor() {
    const std::uint64_t begin = offsets_[0], end = offsets_[1];
    if (begin > end || end > size_) {
      return refuse(label() + ": data_offsets " + std::to_string(begin) + " to " +
                    std::to_string(end) + " are not within the " + std::to_string(size_) +
                    " bytes of data");
    }
    if (bytes_of(shape_, dtype_->bits) != end - begin) {
      return refuse(label() + ": " + std::string(dtype_->name) + " of shape " +
                    text_of_shape(shape_) + " is not " + std::to_string(end - begin) +
                    " bytes, as data_offsets say");
    }
    tensors_.push_back({name_, dtype_->name, shape_, start_ + begin, end - begin});
    return true;
  }

  const std::uint64_t start_, size_;  // of the data
  std::vector<TensorInfo> tensors_;
  std::unordered_set<std::string> names_;

  Level level_ = Level::Nothing;
  // The entry that is being parsed.
  std::string name_;
  bool is_metadata_ = false;
  std::unordered_set<std::string> keys_;
  Field field_ = Field::None;
  const DType* dtype_ = nullptr;
  std::vector<std::uint64_t> shape_, offsets_;
};

class IndexReader final : public Reader {
 public:
  explicit IndexReader(const std::string& where) : Reader(where, "") {}

  std::map<std::string, std::string>& files() { return files_; }
  bool has_map() const { return has_map_; }

  bool key(std::string& name) override {
    if (depth_ == 1 && !keys_.insert(name).second) {
      return refuse(quoted_name(name) + " occurs twice");
    }
    if (depth_ == 1) is_map_ = name == "weight_map";
    if (depth_ == 2 && is_map_) name_ = name;
    return true;
  }
  bool start_object(std::size_t) override {
    if (depth_ == 1 && is_map_) has_map_ = true;
    if (depth_ == 2 && is_map_) return other();
    ++depth_;
    return true;
  }
  bool end_object() override {
    --depth_;
    return true;
  }
  bool start_array(std::size_t) override {
    if (depth_ == 0 || is_map_) return other();
    ++depth_;
    return true;
  }
  bool end_array() override { return end_object(); }

  bool string(std::string& value) override {
    if (depth_ != 2 || !is_map_) return other();
    const bool is_name = !value.empty() && value != "." && value != ".." &&
                         value.find('/') == value.npos && value.find('\0') == value.npos;
    if (!is_name) return not_a_file(quoted_name(value));
    if (!files_.emplace(name_, value).second) {
      return refuse("weight_map: " + quoted_name(name_) + " occurs twice");
    }
    return true;
  }

 private:
  bool not_a_file(const std::string& what) {
    return refuse("weight_map: " + quoted_name(name_) + ": " + what +
                  " is not the name of a file beside the index");
  }
  bool other() override {
    if (depth_ == 2 && is_map_) return not_a_file("this");
    // Other keys may have any value.
    return depth_ >= 1 && !is_map_
               ? true
               : refuse("weight_map is missing: an object with the file name of each tensor");
  }

  std::map<std::string, std::string> files_;  // by tensor
  std::set<std::string> keys_;
  std::string name_;
  unsigned depth_ = 0;
  bool is_map_ = false;  // inside weight_map
  bool has_map_ = false;
};

// Checks that the tensors cover the data without gaps, to the end of the file.
Result<void> check_cover(const std::string& where, const std::vector<TensorInfo>& tensors,
                         std::uint64_t start, std::uint64_t file_size) {
  std::uint64_t at = start;
  for (const auto& tensor : tensors) {
    if (tensor.offset != at) {
      return wrong(
          where + ": tensor " + quoted_name(tensor.name) +
          (tensor.offset < at ? " overlaps the one before it" : " leaves a gap before it") +
          ": it begins at byte " + std::to_string(tensor.offset) + ", not " + std::to_string(at));
    }
    at += tensor.bytes;
  }
  if (at == file_size) return {};
  return wrong(where + ": the tensors end at byte " + std::to_string(at) + ", the file at " +
               std::to_string(file_size));
}

}  // namespace

std::string quoted_name(std::string_view name) {
  constexpr std::size_t kLongest = 100;
  std::string out = "'";
  for (const char c : name.substr(0, kLongest)) {
    const bool is_control = static_cast<unsigned char>(c) < ' ' || c == 127;
    out += is_control ? '?' : c;
  }
  return out + (name.size() > kLongest ? "...'" : "'");
}

Result<std::uint64_t> parse_header_length(const std::string& where, std::string_view first,
                                          std::uint64_t file_size) {
  if (first.size() < 8 || file_size < 8) {
    return wrong(where + ": a safetensors file has at least 8 bytes, this one " +
                 std::to_string(file_size));
  }
  std::uint64_t length = 0;
  for (std::size_t i = 8; i-- > 0;) length = length << 8 | static_cast<unsigned char>(first[i]);
  if (length > kHeaderLimit) {
    return wrong(where + ": bytes 0 to 8: a header of " + std::to_string(length) +
                 " bytes is more than the " + std::to_string(kHeaderLimit) +
                 " that are allowed; is it a safetensors file?");
  }
  if (length > file_size - 8) {
    return wrong(where + ": bytes 0 to 8: the header has " + std::to_string(length) +
                 " bytes, but only " + std::to_string(file_size - 8) +
                 " follow; is the file complete?");
  }
  return length;
}

Result<std::vector<TensorInfo>> parse_header(const std::string& where, std::string_view text,
                                             std::uint64_t file_size) {
  if (!text.starts_with('{')) {
    return wrong(where + ": the header, from byte 8 on: it does not begin with '{'");
  }
  const std::uint64_t start = 8 + text.size();
  HeaderReader reader(where, start, file_size - start);
  if (!Json::sax_parse(text.begin(), text.end(), &reader)) return wrong(reader.message());
  auto& tensors = reader.tensors();
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
  });
  SLUICE_TRY(check_cover(where, tensors, start, file_size));
  return std::move(tensors);
}

Result<std::map<std::string, std::string>> parse_index(const std::string& where,
                                                       std::string_view text) {
  IndexReader reader(where);
  if (!Json::sax_parse(text.begin(), text.end(), &reader)) return wrong(reader.message());
  if (!reader.has_map()) {
    return wrong(where + ": weight_map is missing: an object with the file name of each tensor");
  }
  return std::move(reader.files());
}

}  // namespace sluice
